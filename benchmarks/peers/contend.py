"""Writer processes of one system on one table: ``python -m peers.contend FOLDER``; ``ContendIceberg.java`` in Java.

The folder holds ``request.json`` and gets ``answer.json``. Nothing of a system is used before the fork, only imported:
runtimes and connections do not survive one. A writer notes each commit in a file of its own as soon as its fate is
known, so that a process that dies takes nothing with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa

FILES, ROWS = "files", "rows"
"""The commit alone, of a data file that is there; or ten rows written and committed."""
PER_COMMIT = {FILES: 1, ROWS: 10}
"""How often a commit's id is found when all of it is there."""

TABLE = "bench.contended"
CATALOG = "frazil"
PER_WRITER = 1_000_000
"""A commit's id is the writer's number times this, plus the number of the commit."""
WARM_UP = -1
"""The id of the first commit, which nobody counts: it loads and creates what later ones find."""
OPEN_S = 300.0
FINISH_S = 300.0
"""How long the slowest of many writers may take to open the table, and to finish its last commit."""

Act = Callable[[], object]
Prepare = Callable[[int], Act]
"""What is ready before a commit's clock starts (rows in memory, a staged file), and the commit itself."""
T = TypeVar("T")

_fork = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Request:
    system: str
    form: str
    uri: str
    """The catalog's database as Frazil names it; empty: the system has none."""
    folder: str
    writers: int
    seconds: float

    @property
    def warehouse(self) -> str:
        return f"{self.folder}/warehouse"


class System(Protocol):
    def create(self) -> None: ...

    def open(self) -> Prepare:
        """Called in each writer's process."""
        ...

    def found(self) -> Counter[int]:
        """The table as the system itself reads it: which commit's id is there how often (see ``PER_COMMIT``)."""
        ...


def ten_rows(commit: int) -> pa.Table:
    return pa.table({"id": pa.array([commit] * 10, pa.int64()), "x": ["a"] * 10})


def by_path(paths: list[str]) -> Counter[int]:
    """Staged files are named by the commit's id."""
    return Counter(int(os.path.basename(path).removesuffix(".parquet")) for path in paths)


def by_row(rows: pa.Table) -> Counter[int]:
    ids: list[Any] = rows.column("id").to_pylist()
    return Counter(ids)


class Frazil:
    def __init__(self, request: Request) -> None:
        self.request = request

    def _lake(self) -> Any:
        import frazil

        return frazil.connect(self.request.uri, warehouse=f"file://{self.request.warehouse}", name=CATALOG)

    def create(self) -> None:
        with self._lake() as lake:
            lake.create_namespace("bench")
            lake.create_table(TABLE, ten_rows(0).schema)

    def open(self) -> Prepare:
        lake = self._lake()
        table = lake.table(TABLE)
        if self.request.form == ROWS:
            return lambda commit: partial(table.append, ten_rows(commit))
        return self._staged(lake)

    @staticmethod
    def _staged(lake: Any) -> Prepare:
        import uuid

        import frazil
        from frazil.commit.context import CommitContext
        from frazil.commit.loop import commit as send
        from frazil.commit.operations import Identity, Kind, Write
        from frazil.model import DataFile, Ident

        context = CommitContext(lake.catalog, lake.storage, Ident.parse(TABLE))
        head = lake.catalog.load(context.ident).metadata

        def prepare(commit: int) -> Act:
            file = DataFile(f"{head.location}/data/{commit}.parquet", record_count=10, file_size_in_bytes=1000)
            operation = Write(Kind.APPEND, head.uuid, added=(file,), written_ids={1: "id", 2: "x"})
            return lambda: send(context, operation, Identity(str(uuid.uuid4()), "bench", given=False), frazil.Retry())

        return prepare

    def found(self) -> Counter[int]:
        with self._lake() as lake:
            table = lake.table(TABLE)
            if self.request.form == ROWS:
                return by_row(table.scan(columns=["id"]).to_arrow())
            return by_path([file.path for file in table.files()])


class PyIceberg:
    def __init__(self, request: Request) -> None:
        self.request = request

    def _catalog(self, **more: str) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        uri = self.request.uri.replace("postgresql://", "postgresql+psycopg2://")
        return SqlCatalog(CATALOG, uri=uri, warehouse=f"file://{self.request.warehouse}", **more)

    def create(self) -> None:
        catalog = self._catalog()
        catalog.create_namespace("bench")
        catalog.create_table(TABLE, ten_rows(0).schema)

    def open(self) -> Prepare:
        # The catalog's tables are there: creating them from many processes at once would be another race.
        catalog = self._catalog(init_catalog_tables="false")
        if self.request.form == ROWS:

            def append(rows: pa.Table) -> None:
                catalog.load_table(TABLE).append(rows)

            return lambda commit: partial(append, ten_rows(commit))

        def append_file(file: Any) -> None:
            table = catalog.load_table(TABLE)
            with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
                update.append_data_file(file)

        return lambda commit: partial(append_file, self._staged(commit))

    def _staged(self, commit: int) -> Any:
        from peers.pyiceberg_files import their_file

        return their_file(f"file://{self.request.warehouse}/data/{commit}.parquet")

    def found(self) -> Counter[int]:
        table = self._catalog().load_table(TABLE)
        if self.request.form == ROWS:
            return by_row(table.scan(selected_fields=("id",)).to_arrow())
        return by_path([task.file.file_path for task in table.scan().plan_files()])


class DeltaRs:
    def __init__(self, request: Request) -> None:
        self.request = request

    def create(self) -> None:
        from deltalake import DeltaTable

        DeltaTable.create(self.request.warehouse, ten_rows(0).schema)

    def open(self) -> Prepare:
        from deltalake import DeltaTable, write_deltalake

        # Only what is new in the log is read before each commit, which is faster than opening the table again.
        table, schema = DeltaTable(self.request.warehouse), ten_rows(0).schema

        def append(rows: pa.Table) -> None:
            table.update_incremental()
            write_deltalake(table, rows, mode="append")

        def append_file(action: Any) -> None:
            table.update_incremental()
            table.create_write_transaction([action], "append", schema)

        if self.request.form == ROWS:
            return lambda commit: partial(append, ten_rows(commit))
        return lambda commit: partial(append_file, self._staged(commit))

    @staticmethod
    def _staged(commit: int) -> Any:
        from deltalake.transaction import AddAction

        return AddAction(f"{commit}.parquet", 1000, {}, time.time_ns() // 1_000_000, True, '{"numRecords": 10}')

    def found(self) -> Counter[int]:
        from deltalake import DeltaTable

        table = DeltaTable(self.request.warehouse)
        if self.request.form == ROWS:
            return by_row(table.to_pyarrow_table(columns=["id"]))
        return by_path(table.file_uris())


def ducklake(folder: str, uri: str, options: str, *, install: bool) -> Any:
    """A connection with a DuckLake on Postgres attached as ``lake``; ``install``: with its extensions fetched."""
    import duckdb
    import psycopg.conninfo

    connection = duckdb.connect(config={"extension_directory": f"{folder}/extensions"})
    for extension in ("ducklake", "postgres_scanner"):
        if install:
            import duckdb_extensions

            duckdb_extensions.import_extension(extension, con=connection)
        connection.execute(f"load {extension}")
    database = psycopg.conninfo.make_conninfo(uri)
    connection.execute(f"attach 'ducklake:postgres:{database}' as lake ({options})")
    return connection


class DuckLake:
    """Ten rows go into a Parquet file; a staged file is added by name, and its footer read."""

    inlined_rows = 0

    def __init__(self, request: Request) -> None:
        self.request = request
        self.staged = f"{request.folder}/staged"

    def _connection(self, *, install: bool = False) -> Any:
        options = f"data_path '{self.request.warehouse}', data_inlining_row_limit {self.inlined_rows}"
        return ducklake(self.request.folder, self.request.uri, options, install=install)

    def create(self) -> None:
        import pyarrow.parquet

        os.mkdir(self.staged)
        pyarrow.parquet.write_table(ten_rows(0), f"{self.staged}/ten.parquet")
        connection = self._connection(install=True)
        connection.execute("create table lake.contended (id bigint, x varchar)")

    def open(self) -> Prepare:
        connection = self._connection()

        def insert(commit: int) -> Act:
            return partial(connection.execute, f"insert into lake.contended select {commit}, 'a' from range(10)")

        def add(commit: int) -> Act:
            path = f"{self.staged}/{commit}.parquet"
            os.link(f"{self.staged}/ten.parquet", path)
            return partial(connection.execute, f"call ducklake_add_data_files('lake', 'contended', '{path}')")

        return add if self._adds_files() else insert

    def _adds_files(self) -> bool:
        return self.request.form == FILES

    def found(self) -> Counter[int]:
        connection = self._connection()
        if self._adds_files():
            listed = connection.execute("select data_file from ducklake_list_files('lake', 'contended')").fetchall()
            return by_path([path for (path,) in listed])
        counted = connection.execute("select id, count(*) from lake.contended group by id").fetchall()
        return Counter({commit: rows // (1 if self.request.form == ROWS else 10) for commit, rows in counted})


class DuckLakeInlined(DuckLake):
    """Ten rows go into the database, as they do by default: no file in either form."""

    inlined_rows = 10

    def _adds_files(self) -> bool:
        return False


SYSTEMS: dict[str, type[Frazil | PyIceberg | DeltaRs | DuckLake]] = {
    "frazil": Frazil,
    "pyiceberg": PyIceberg,
    "delta-rs": DeltaRs,
    "ducklake": DuckLake,
    "ducklake-inlined": DuckLakeInlined,
}


def system_of(request: Request) -> System:
    return SYSTEMS[request.system](request)


def main(folder: Path) -> None:
    logging.disable(logging.CRITICAL)
    request = Request(**json.loads((folder / "request.json").read_text()))
    for module in _apart(_begin, request):
        # What a first commit has loaded is loaded once, not by each writer inside its seconds.
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    # Jobs are processes of their own: none copies, page by page, what its collector finds of the modules loaded here.
    gc.freeze()
    notes = folder / "notes"
    notes.mkdir()
    barrier = _fork.Barrier(request.writers)
    processes = [_fork.Process(target=_write, args=(request, n, barrier, notes)) for n in range(request.writers)]
    for process in processes:
        process.start()
    crashed = _wait(processes, OPEN_S + request.seconds + FINISH_S)
    outcomes = [json.loads(line) for note in notes.iterdir() for line in note.read_text().splitlines()]
    answer = {"outcomes": outcomes, "crashed": crashed, "found": _apart(_found, request)}
    (folder / "answer.json").write_text(json.dumps(answer))


def _apart(act: Callable[[Request], T], request: Request) -> T:
    """Run in a process of its own: this one must stay fit to fork."""
    with ProcessPoolExecutor(1, _fork) as pool:
        return pool.submit(act, request).result()


def _begin(request: Request) -> list[str]:
    system = system_of(request)
    system.create()
    system.open()(WARM_UP)()
    return list(sys.modules)


def _found(request: Request) -> Counter[int]:
    return system_of(request).found()


def _write(request: Request, number: int, barrier: Barrier, notes: Path) -> None:
    # One write for each line: what was acknowledged is noted before the next commit begins.
    with open(notes / str(number), "w", buffering=1) as note:
        try:
            prepare = system_of(request).open()
        finally:
            # Also without a table: the others shall not wait for this one.
            barrier.wait(OPEN_S)
        start = time.perf_counter()
        commit = number * PER_WRITER
        while time.perf_counter() - start < request.seconds:
            act = prepare(commit)
            began = time.perf_counter() - start
            problem = _attempt(act)
            print(json.dumps([commit, began, time.perf_counter() - start, problem]), file=note)
            commit += 1


def _attempt(act: Act) -> str | None:
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return None


def _wait(processes: Sequence[BaseProcess], patience_s: float) -> int:
    """How many did not end as they should."""
    deadline = time.perf_counter() + patience_s
    for process in processes:
        process.join(max(0.0, deadline - time.perf_counter()))
        if process.is_alive():
            process.kill()
            process.join()
    return sum(process.exitcode != 0 for process in processes)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

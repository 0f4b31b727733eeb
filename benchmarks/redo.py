"""What it costs to redo a statement that lost: a delete beside Iceberg's own Spark runtime, and a merge beside appends.

    python benchmarks/redo.py                  make bench-redo
    python benchmarks/redo.py --only merge     the merge alone, without Java

*delete*: the table has 1,000 data files, every one of which may hold matching rows. While the statement runs, another
process appends three files with matching rows. Frazil redoes the delete on these files; Iceberg refuses it
(``ValidationException``, at serializable), and the same statement is run again. Each run starts on the same files,
under a new name.

*merge*: 100,000 source rows on Arrow, alone and beside a process that appends 20 times a second; every append holds a
row that the merge has to update.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing as mp
import shutil
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

import frazil
from common import Report, stopwatch
from frazil.commit.context import OnPhase, Phase
from interop.iceberg_spark import CATALOG, attach, start_iceberg_spark

USERS = 100
USER = 7
WHERE = f"user_id = {USER}"
NEW_FILES = 3
SOURCE_ROWS = 100_000
APPENDS_PER_S = 20
SLOWER_WANTED = 3
FIRST_APPENDED = 10_000_000
"""The first id of the rows that the other process appends."""
PATIENCE_S = 300
TYPES: dict[str, pa.DataType] = {"id": pa.int64(), "user_id": pa.int64(), "name": pa.string()}
DDL = "id bigint, user_id bigint, name string"


def rows(ids: range, user: Callable[[int], int]) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "id": list(ids),
        "user_id": [user(each) for each in ids],
        "name": [f"customer {each}" for each in ids],
    }
    return pa.table(columns, schema=pa.schema(TYPES))


# The other process


def append_files(lake: str, orders: Connection) -> None:
    """For each name of a table, append the new files to it, one commit each, and answer."""
    opened = frazil.connect(lake, create=False)
    while name := orders.recv():
        table = opened.table(name)
        for number in range(NEW_FILES):
            table.append(rows(range(FIRST_APPENDED + 10 * number, FIRST_APPENDED + 10 * number + 10), lambda _: USER))
        orders.send(NEW_FILES)


def append_steadily(lake: str, name: str, first: int, orders: Connection) -> None:
    """Append at fixed moments until told to stop. What is late is made up for. Answers after the first, and at the end.

    The first row of each append has the id of a source row, the others have ids between those of the source.
    """
    table = frazil.connect(lake, create=False).table(name)
    count, began = 0, time.monotonic()
    while not orders.poll(max(0.0, began + count / APPENDS_PER_S - time.monotonic())):
        table.append(rows(range(first + 10 * count, first + 10 * count + 10), lambda each: each))
        count += 1
        if count == 1:
            orders.send(count)
    orders.send((count, time.monotonic() - began))


@contextmanager
def process(work: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    here, there = mp.Pipe()
    found = mp.get_context("spawn").Process(target=work, args=(*arguments, there))
    found.start()
    try:
        yield here
    finally:
        # Whatever it is told after its last order ends it.
        here.send("")
        found.join(60)


def answer(orders: Connection) -> Any:
    assert orders.poll(PATIENCE_S), "the other process does not answer"
    return orders.recv()


# The delete


@dataclass
class Deletes:
    """Copies of one table, and a process that appends to them."""

    spark: Any
    lake: frazil.Lake
    report: Report
    orders: Connection
    files: int
    _made: int = 0

    def table(self) -> frazil.Table:
        """The same files under another name."""
        self._made += 1
        return self.lake.register_table(f"bench.d{self._made}", self.lake.table("bench.base").metadata_location)

    def appended(self, table: frazil.Table) -> None:
        self.orders.send(table.name)
        assert answer(self.orders) == NEW_FILES

    def ours(self, table: frazil.Table, engine: Any, loses: bool) -> Counter[str]:
        """Returns how often each data file was opened in this process once the appends had landed."""
        left = [lambda: self.appended(table)] if loses else []
        opened: Counter[str] = Counter()

        def on_phase(phase: Phase, _attempt: int) -> None:
            if phase is Phase.HEAD_READ and left:
                left.pop()()
                opened.clear()

        with counted(table, opened):
            done = table.delete(WHERE, engine=engine, on_phase=on_phase)
        assert (done.redone > 0) is loses, done
        return opened

    def theirs(self, table: frazil.Table, loses: bool) -> None:
        """In a thread, as the statement is under way when its first job runs: then its snapshot is chosen."""
        refused: list[BaseException] = []

        def run() -> None:
            try:
                self.delete_by_iceberg(table)
            except Exception as problem:
                refused.append(problem)

        if not loses:
            self.delete_by_iceberg(table)
            return
        statement = threading.Thread(target=run)
        statement.start()
        tracker = self.spark.sparkContext.statusTracker()
        while not tracker.getActiveJobsIds():
            assert statement.is_alive(), "the statement ended before the appends"
        self.appended(table)
        statement.join()
        assert refused, "the statement landed in spite of the appends"
        assert is_refusal(refused[0]), refused[0]
        self.delete_by_iceberg(table)

    def delete_by_iceberg(self, table: frazil.Table) -> None:
        self.spark.sql(f"delete from {CATALOG}.{table.name} where {WHERE}").collect()

    def compare(self, repeat: int) -> None:
        sides: dict[str, Callable[[frazil.Table, bool], Any]] = {
            "frazil": lambda table, loses: self.ours(table, "arrow", loses),
            "frazil on Spark": lambda table, loses: self.ours(table, "spark", loses),
            "iceberg": self.theirs,
        }
        times: dict[tuple[str, bool], list[float]] = {}
        read: list[Counter[str]] = []
        left: dict[bool, set[tuple[int, int]]] = {}
        for turn in range(repeat + 1):
            for loses in (False, True):
                for side in sides if turn % 2 else reversed(sides):
                    table = self.table()
                    with stopwatch() as took:
                        result = sides[side](table, loses)
                    if side == "frazil" and loses:
                        read.append(result)
                    # The first turn warms Spark up.
                    if turn:
                        times.setdefault((side, loses), []).append(took[0])
                    found = self.lake.table(table.name)
                    outcome = {(found.scan().count(), found.scan(where=WHERE).count())}
                    assert left.setdefault(loses, outcome) == outcome, (side, loses, outcome)
        self.tell(list(sides), times, read)

    def tell(self, sides: list[str], times: dict[tuple[str, bool], list[float]], read: list[Counter[str]]) -> None:
        report, best = self.report, {key: min(found) for key, found in times.items()}
        what = f"delete over {self.files} files"
        for side in sides:
            report.add(f"{what}, alone, {side}", best[side, False], "s")
            report.add(f"{what}, loses to {NEW_FILES} new ones, {side}", best[side, True], "s")
        for side in sides[:-1]:
            report.ratio(f"{what}, loses: iceberg over {side}", best["iceberg", True], best[side, True], wanted=1)
        most = max(len(each) for each in read)
        report.add(f"{what}, loses: files read again", most)
        report.add(f"{what}, loses: files read again, opened", max(each.total() for each in read))
        assert most == NEW_FILES, read


@contextmanager
def counted(table: frazil.Table, opened: Counter[str]) -> Iterator[None]:
    """Count each data file that the table's lake opens in this process."""
    storage: Any = table._lake.storage
    before = storage.open_input

    def counting(path: str) -> Any:
        if path.endswith(".parquet"):
            opened[path] += 1
        return before(path)

    storage.open_input = counting
    try:
        yield
    finally:
        storage.open_input = before


def is_refusal(problem: BaseException) -> bool:
    cause = getattr(problem, "java_exception", None) or getattr(problem, "_origin", None)
    while cause is not None:
        if cause.getClass().getName() == "org.apache.iceberg.exceptions.ValidationException":
            return True
        cause = cause.getCause()
    return False


def delete(report: Report, work: Path, given: argparse.Namespace) -> None:
    conf = {
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.compression.codec": "zstd",
    }
    folder = str(work / "delete")
    with (
        start_iceberg_spark(memory=given.memory, conf=conf) as spark,
        frazil.connect(folder, name=CATALOG, spark=spark) as lake,
        process(append_files, folder) as orders,
    ):
        attach(spark, lake)
        lake.create_namespace("bench")
        table = lake.create_table(
            "bench.base",
            DDL,
            properties={"write.parquet.compression-codec": "zstd"},
        )
        # In one file of a hundred a user has rows; by its bounds each file may have some of each.
        for number in range(given.files):
            table.append(rows(range(100 * number, 100 * number + 100), user_of))
        assert len(table.files()) == given.files
        Deletes(spark, lake, report, orders, given.files).compare(given.repeat)


def user_of(row: int) -> int:
    """The least and the greatest user in every file of 100 rows, and one other user in half of its rows."""
    file, at = divmod(row, 100)
    return 0 if at == 0 else file % USERS if at % 2 else USERS - 1


# The merge


def merge(report: Report, work: Path, given: argparse.Namespace) -> None:
    folder = str(work / "merge")
    with frazil.connect(folder) as lake:
        lake.create_namespace("bench")
        table = lake.create_table("bench.base", DDL)
        a_tenth = given.rows // 10
        for number in range(10):
            table.append(rows(range(a_tenth * number, a_tenth * (number + 1)), lambda each: each % USERS))
        old, new = SOURCE_ROWS * 4 // 5, SOURCE_ROWS // 5
        ids = [*range(0, given.rows, given.rows // old)][:old]
        # New ids are ten apart: each append has one of them, and nine that are in the source's range alone.
        ids += range(FIRST_APPENDED, FIRST_APPENDED + 10 * new, 10)
        assert len(ids) == SOURCE_ROWS
        source = pa.table({"id": ids, "user_id": [-1] * SOURCE_ROWS, "name": ["changed"] * SOURCE_ROWS})
        for mode in ("merge-on-read", "copy-on-write"):
            Merges(lake, folder, report, source, mode).compare(given.repeat)


@dataclass
class Merges:
    lake: frazil.Lake
    folder: str
    report: Report
    source: pa.Table
    mode: Any
    _made: int = 0

    def merged(self, name: str, on_phase: OnPhase | None = None) -> tuple[frazil.Commit, float]:
        table = self.lake.table(name)
        builder = table.merge(self.source, on=["id"], mode=self.mode, on_phase=on_phase)
        with stopwatch() as took:
            done = builder.when_matched_update_all().when_not_matched_insert_all().execute()
        found = table.scan(where="user_id = -1", snapshot=done.snapshot_id).count()
        assert found == self.source.num_rows, found
        return done, took[0]

    def copy(self) -> str:
        self._made += 1
        base = self.lake.table("bench.base").metadata_location
        return self.lake.register_table(f"bench.{self.mode[:4]}{self._made}", base).name

    def compare(self, repeat: int) -> None:
        alone: list[float] = []
        beside: list[float] = []
        redone: list[int] = []
        rates: list[float] = []
        for turn in range(repeat):
            for loses in (False, True) if turn % 2 else (True, False):
                name = self.copy()
                if not loses:
                    alone.append(self.merged(name)[1])
                    continue
                with process(append_steadily, self.folder, name, FIRST_APPENDED) as orders:
                    assert answer(orders) == 1
                    done, seconds = self.merged(name)
                    orders.send("")
                    count, took = answer(orders)
                beside.append(seconds)
                redone.append(done.redone)
                rates.append(count / took)
        assert any(redone), "no append met the merge"
        self.tell(statistics.median(alone), statistics.median(beside), redone, rates)

    def tell(self, alone: float, beside: float, redone: list[int], rates: list[float]) -> None:
        what = f"merge of {SOURCE_ROWS} rows, {self.mode}"
        self.report.add(f"{what}, alone", alone, "s")
        self.report.add(f"{what}, beside {APPENDS_PER_S} appends/s", beside, "s")
        self.report.at_most(f"{what}, cost at {APPENDS_PER_S} appends/s over cost alone", beside / alone, SLOWER_WANTED)
        print(f"  redone {redone} times; {', '.join(f'{each:.1f}' for each in rates)} appends/s", flush=True)


PARTS: dict[str, Callable[[Report, Path, argparse.Namespace], None]] = {"delete": delete, "merge": merge}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--files", type=int, default=1000, help="of the table that rows are deleted from")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table that is merged into")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--memory", default="2g", help="of Spark's JVM")
    parser.add_argument("--folder", help="where the tables are made, and removed at the end")
    given = parser.parse_args()
    # Lost races are what this is about.
    logging.disable(logging.WARNING)
    report = Report("redo")
    work = Path(tempfile.mkdtemp(prefix="frazil-redo-", dir=given.folder))
    try:
        for name in given.only:
            PARTS[name](report, work, given)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    # A run of one part is for looking at it.
    if len(given.only) == len(PARTS):
        report.save()


if __name__ == "__main__":
    main()

"""The doctor on real catalogs: every liar is caught, every time, and no honest one is accused (rule P31)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fixtures.broken_catalogs import Flaw, OpenFlawed
from fixtures.unguarded_sql import OpenUnguardedSql
from frazil.catalog.open import open_catalog
from frazil.errors import CatalogUnavailable, FrazilError, InvalidInput
from frazil.model import Ident
from frazil.runtime import SYSTEM
from frazil.verify.doctor import Report, examine
from frazil.verify.doctor.surroundings import _pooler_signs
from frazil.verify.probe import empty_table

ROUNDS, PROCESSES, STALL_S = 3, 4, 0.3
CAUGHT_BY = {
    Flaw.BLIND: "swaps from one expected value were all answered Committed",
    Flaw.CHECK_THEN_WRITE: "swaps from one expected value were all answered Committed",
    Flaw.LEASE: "swaps from one expected value were all answered Committed",
    Flaw.STALE_READS: "stale read",
    Flaw.LOST_WRITES: "lost updates",
    Flaw.OLD_VALUE_SHOWN: "A lost swap was answered with its own expected value",
}


def examined(uri: str, **more: Any) -> Report:
    return examine(uri, **{"rounds": ROUNDS, "processes": PROCESSES, "stall_s": STALL_S, **more})


def whats(report: Report, severity: str) -> list[str]:
    return [finding.what for finding in report.findings if finding.severity == severity]


def files_under(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# Liars


@pytest.mark.parametrize("flaw", CAUGHT_BY, ids=str)
def test_p31_a_catalog_with_a_flaw_is_called_not_atomic(flaw: Flaw, tmp_path: Path) -> None:
    report = examined("flawed:", opener=OpenFlawed(str(tmp_path), flaw))

    assert report.verdict == "not atomic"
    assert report.exit_status == 1
    assert any(CAUGHT_BY[flaw] in what for what in whats(report, "violation"))


def test_p31_a_catalog_that_reads_then_writes_is_caught_every_time(tmp_path: Path) -> None:
    verdicts = [
        examine(
            "flawed:",
            rounds=1,
            processes=2,
            stall_s=0.0,
            opener=OpenFlawed(str(tmp_path / str(number)), Flaw.CHECK_THEN_WRITE),
        ).verdict
        for number in range(10)
    ]

    assert verdicts == ["not atomic"] * 10


def test_p31_pyicebergs_sql_catalog_without_its_guard_is_caught_through_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "PY_CATALOG_IMPL": "fixtures.unguarded_sql.ReadThenWriteSqlCatalog",
        "URI": f"sqlite:///{tmp_path}/catalog.db",
        "WAREHOUSE": f"file://{tmp_path}/warehouse",
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__BROKEN__{name}", value)

    report = examined("pyiceberg:broken")

    assert report.verdict == "not atomic"
    assert any("lost updates" in what for what in whats(report, "violation"))


# Honest ones


def test_the_same_catalog_without_a_flaw_is_not_accused(tmp_path: Path) -> None:
    report = examined("flawed:", opener=OpenFlawed(str(tmp_path), Flaw.NONE))

    assert report.verdict == f"no violation in {ROUNDS} rounds"
    assert report.exit_status == 0


def test_an_embedded_lake_is_not_accused_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    report = examined(str(tmp_path / "lake"))

    assert report.verdict == f"no violation in {ROUNDS} rounds"
    assert whats(report, "warning") == []
    assert files_under(tmp_path) <= {f"lake/catalog.db{ending}" for ending in ("", "-wal", "-shm")}
    assert not list(tmp_path.rglob("frazil_doctor_*"))
    opened = open_catalog(str(tmp_path / "lake"))
    assert opened.catalog.tables() == []
    assert opened.catalog.namespaces() == {}
    opened.catalog.close()


def test_a_postgres_catalog_is_not_accused_without_a_warehouse(postgres_uri: str) -> None:
    report = examined(postgres_uri)

    assert report.verdict == f"no violation in {ROUNDS} rounds"
    assert "No transaction pooler" in whats(report, "ok")
    assert "One catalog in this database" in whats(report, "ok")


def test_pyicebergs_own_sql_catalog_is_not_accused(tmp_path: Path) -> None:
    report = examined("pyiceberg:sql", opener=OpenUnguardedSql(str(tmp_path), broken=False))

    assert report.verdict == f"no violation in {ROUNDS} rounds"


# Surroundings


def test_other_catalog_names_and_shared_folders_are_reported(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    for name, place in (("one", "a"), ("one", "a/inner"), ("two", "b")):
        opened = open_catalog(uri, name=name)
        if ("s",) not in opened.catalog.namespaces():
            opened.catalog.create_namespace(("s",), {})
        ident = Ident(("s",), place.replace("/", "_"))
        opened.catalog.create(ident, empty_table(f"file://{tmp_path}/warehouse/{place}", SYSTEM))
        opened.catalog.close()

    report = examined(uri, name="one", rounds=1)

    assert report.verdict == "no violation in 1 rounds"
    assert any("Several catalogs share this database" in what for what in whats(report, "warning"))
    assert any("Two tables share a folder" in what for what in whats(report, "warning"))


class TransactionPooler:
    """What PgBouncer does in transaction mode: a server connection belongs to a client for one transaction only."""

    def __init__(self, uri: str) -> None:
        self.idle = [psycopg.connect(uri, autocommit=True) for _ in range(2)]

    def close(self) -> None:
        for server in self.idle:
            server.close()

    @contextmanager
    def client(self) -> Iterator[PooledClient]:
        yield PooledClient(self)


class PooledClient:
    def __init__(self, pool: TransactionPooler) -> None:
        self.pool = pool
        self.held: psycopg.Connection[Any] | None = None

    def execute(self, *query: Any) -> psycopg.Cursor[Any]:
        if self.held is not None:
            return self.held.execute(*query)
        server = self.pool.idle.pop()
        try:
            return server.execute(*query)
        finally:
            self.pool.idle.append(server)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.held = self.pool.idle.pop()
        try:
            yield
        finally:
            self.pool.idle.append(self.held)
            self.held = None


def test_a_transaction_pooler_is_noticed(postgres_uri: str) -> None:
    pool = TransactionPooler(postgres_uri)
    try:
        connect: Any = pool.client
        assert _pooler_signs(connect) == (True, True)
    finally:
        pool.close()


def test_a_direct_connection_is_not_a_pooler(postgres_uri: str) -> None:
    def connect() -> AbstractContextManager[Any]:
        return psycopg.connect(postgres_uri, autocommit=True)

    opener: Any = connect
    assert _pooler_signs(opener) == (False, False)


# Bad input, clean-up


def test_progress_is_reported_to_the_end(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []

    examined(str(tmp_path), rounds=1, processes=2, stall_s=0.0, on_progress=lambda *each: told.append(each))

    assert [done for done, _, _ in told] == list(range(1, told[0][1] + 1))


def test_a_folder_without_a_lake_is_refused_when_nothing_may_be_created(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="There is no lake"):
        examined(str(tmp_path / "typo"), create=False)

    assert not (tmp_path / "typo").exists()


class Interrupted(Exception):
    pass


def test_the_scratch_table_is_removed_when_the_race_is_broken_off(tmp_path: Path) -> None:
    def interrupt(done: int, total: int, what: str) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        examined(str(tmp_path), on_progress=interrupt)

    opened = open_catalog(str(tmp_path))
    assert opened.catalog.tables() == []
    opened.catalog.close()
    assert not list(tmp_path.rglob("frazil_doctor_*"))


class OpenOnlyHere:
    """Opens in the process that made it, and nowhere else: as a catalog whose address other hosts cannot reach."""

    def __init__(self, folder: str) -> None:
        self.folder, self.pid = folder, os.getpid()

    def __call__(self) -> Any:
        if os.getpid() != self.pid:
            raise CatalogUnavailable("The catalog cannot be reached from here")
        return open_catalog(self.folder)


def test_a_process_that_cannot_open_the_catalog_ends_the_race_with_its_error(tmp_path: Path) -> None:
    with pytest.raises(FrazilError, match="cannot be reached from here"):
        examined("./lake", opener=OpenOnlyHere(str(tmp_path)))

    assert not list(tmp_path.rglob("frazil_doctor_*"))

"""The log of commits that met other writers: kept for people, and never in the way of a commit."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import psycopg
import pytest

from contract.openers import Address, Database, Opener
from contract.samples import EVENTS
from frazil.catalog import _sql_attempts
from frazil.catalog._sql_attempts import ATTEMPTS_KEPT, ATTEMPTS_KEPT_MS
from frazil.catalog.base import AttemptsRecord, Catalog
from frazil.catalog.memory import MemoryStore
from frazil.catalog.postgres import PostgresStore
from frazil.errors import PermissionDenied
from frazil.runtime import SYSTEM

UUID, OTHER = "table-uuid", "another table"
RECORD = AttemptsRecord(
    table_uuid=UUID,
    commit_id="c1",
    app="nightly",
    host="h1",
    verb="delete",
    outcome="conflict",
    attempts=3,
    lost=2,
    faults=1,
    redone=4,
    elapsed_ms=1 << 40,
    check="one owner for each row",
    winner_app="ingest",
    winner_verb="update",
    winner_commit_id="c0",
    detail="one owner for each row (1 file)",
)
BARE = AttemptsRecord(UUID, "c2", "", "", "append", "committed", 2, 2, 0, 0, 7)


def ids(found: list[AttemptsRecord]) -> list[str]:
    return [each.commit_id for each in found]


def test_a_record_comes_back_as_it_was_with_the_catalogs_time(catalog: Catalog, opener: Opener) -> None:
    log = catalog.attempts
    assert (log is not None) is opener.ours
    if log is None:
        return
    before = SYSTEM.now_ms() - 60_000
    for each in (RECORD, BARE, replace(RECORD, table_uuid=OTHER, commit_id="c3")):
        log.add(each)
    newest, oldest = log.find(UUID, 10)
    assert before < oldest.at_ms <= newest.at_ms < before + 120_000
    assert [replace(each, at_ms=0) for each in (newest, oldest)] == [BARE, RECORD]
    assert ids(log.find(UUID, 1)) == ["c2"]
    assert ids(log.find(OTHER, 10)) == ["c3"]
    assert log.find("no such table", 10) == []


def test_other_processes_read_it(address: Address, catalog: Catalog, opener: Opener) -> None:
    if catalog.attempts is None:
        assert not opener.ours
        return
    catalog.attempts.add(RECORD)
    with closing(address.open().catalog) as other:
        assert other.attempts is not None
        assert ids(other.attempts.find(UUID, 10)) == ["c1"]


def test_a_database_keeps_so_many_of_all_tables_and_none_for_longer(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sql_attempts, "ATTEMPTS_KEPT", 3)
    with closing(database.open()) as store:
        log = store.attempts
        assert log is not None
        for number in range(5):
            log.add(replace(RECORD, commit_id=f"c{number}", table_uuid=OTHER if number == 3 else UUID))
        assert ids(log.find(UUID, 10)) == ["c4", "c2"]
        assert ids(log.find(OTHER, 10)) == ["c3"]
        database.ask(f"UPDATE frazil_attempts SET recorded_at = recorded_at - {ATTEMPTS_KEPT_MS + 60_000}")
        log.add(BARE)
        assert database.ask("SELECT commit_id FROM frazil_attempts") == [("c2",)]


def test_memory_keeps_so_many_and_none_for_longer() -> None:
    now = 10 * ATTEMPTS_KEPT_MS
    store = MemoryStore(runtime=replace(SYSTEM, now_ms=lambda: now))
    for number in range(ATTEMPTS_KEPT + 2):
        store.attempts.add(replace(RECORD, commit_id=str(number)))
    found = ids(store.attempts.find(UUID, ATTEMPTS_KEPT + 10))
    assert (len(found), found[0], found[-1]) == (ATTEMPTS_KEPT, str(ATTEMPTS_KEPT + 1), "2")
    now += ATTEMPTS_KEPT_MS + 1
    store.attempts.add(BARE)
    assert ids(store.attempts.find(UUID, 10)) == ["c2"]


def test_a_reader_reads_it_and_adds_nothing(database: Database) -> None:
    with closing(database.open()) as store:
        assert store.attempts is not None
        store.attempts.add(RECORD)
    with closing(database.open(read_only=True)) as reader:
        assert reader.attempts is not None
        reader.attempts.add(BARE)
        assert ids(reader.attempts.find(UUID, 10)) == ["c1"]


def test_a_reader_of_an_older_database_has_no_log_and_a_writer_makes_it(database: Database) -> None:
    with closing(database.open()):
        pass
    database.ask("DROP TABLE frazil_attempts")
    with closing(database.open(read_only=True)) as reader:
        assert reader.attempts is None
    with closing(database.open()) as writer:
        assert writer.attempts is not None
        writer.attempts.add(RECORD)
        assert ids(writer.attempts.find(UUID, 10)) == ["c1"]


def test_a_user_who_may_not_touch_it_works_without(postgres_uri: str) -> None:
    with closing(PostgresStore(postgres_uri)) as owner, psycopg.connect(postgres_uri, autocommit=True) as connection:
        owner.create_namespace(("shop",), {})
        owner.insert(EVENTS, "v0")
        connection.execute(
            "DO $$ BEGIN CREATE ROLE etl LOGIN PASSWORD 'etl'; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        )
        connection.execute("GRANT SELECT, UPDATE ON iceberg_tables TO etl")
        connection.execute("GRANT SELECT ON iceberg_namespace_properties TO etl")
        theirs = postgres_uri.replace(postgres_uri.split("://")[1].split("@", maxsplit=1)[0], "etl:etl")
        with closing(PostgresStore(theirs)) as store:
            assert store.read(EVENTS).location == "v0"
            assert store.attempts is not None
            with pytest.raises(PermissionDenied):
                store.attempts.add(RECORD)
            store.attempts.add(RECORD)
        connection.execute("DROP TABLE frazil_attempts")
        with closing(PostgresStore(theirs)) as store:
            assert store.read(EVENTS).location == "v0"
            assert store.attempts is None

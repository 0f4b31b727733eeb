"""What snapshots did, kept beside the pointer; and all tables at one instant."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from contract.openers import Address, Database, Opener
from contract.samples import EVENTS, add_column, create_table, race, set_property
from frazil.catalog.base import Catalog, ChangeRecord, CommitRecord, Committed, Head, OpenedCatalog, Stale
from frazil.catalog.memory import MemoryStore
from frazil.catalog.pointer import PointerCatalog
from frazil.catalog.postgres import PostgresStore
from frazil.catalog.sqlite import SqliteStore
from frazil.catalog.store import Swap
from frazil.errors import NoSuchTable, PermissionDenied, StorageError
from frazil.model import Ident

STOCK = Ident(("shop",), "stock")
UUID = "table-uuid"
RECORD = CommitRecord(UUID, "c1", "digest", None, 1, {})


def change(
    number: int, snapshot_id: int | None = None, body: bytes = b"\x00\xffbody", uuid: str = UUID
) -> ChangeRecord:
    return ChangeRecord(uuid, 7_000_000_000_000_000_000 + number if snapshot_id is None else snapshot_id, number, body)


# Every catalog, through the protocol


def kept(catalog: Catalog, table_uuid: str, after: int = 0, up_to: int = 10) -> list[ChangeRecord]:
    return [] if catalog.changes is None else catalog.changes.find(table_uuid, after, up_to)


def found(catalog: Catalog, head: Head, after: int = 0, up_to: int = 1 << 40) -> list[int]:
    return [each.sequence_number for each in kept(catalog, head.metadata.uuid, after, up_to)]


def test_changes_land_with_the_swap_and_not_with_a_lost_one(opened: OpenedCatalog, opener: Opener) -> None:
    catalog = opened.catalog
    assert (catalog.changes is not None) is opener.ours
    head = create_table(opened)
    uuid = head.metadata.uuid
    winner, loser = change(1, uuid=uuid), change(1, snapshot_id=9, uuid=uuid)
    first = catalog.prepare(EVENTS, head, replace(add_column(head, "a"), changes=(winner,)))
    second = catalog.prepare(EVENTS, head, replace(add_column(head, "b"), changes=(loser,)))
    assert not opener.ours or kept(catalog, uuid) == []
    assert isinstance(catalog.swap(first), Committed)
    assert isinstance(catalog.swap(second), Stale)
    if not opener.ours:
        return
    assert kept(catalog, uuid) == [winner]
    assert isinstance(catalog.swap(first), Committed), "the answer was lost, and the same swap is sent again"
    assert kept(catalog, uuid) == [winner]


def test_changes_are_found_by_their_numbers_in_order(opened: OpenedCatalog, opener: Opener) -> None:
    catalog = opened.catalog
    head = create_table(opened)
    for numbers in ((3, 4, 5), (6,), (8, 9)):
        current = catalog.load(EVENTS)
        several = tuple(change(each, uuid=head.metadata.uuid) for each in numbers)
        proposal = replace(set_property(current, str(numbers)), changes=several)
        assert isinstance(catalog.swap(catalog.prepare(EVENTS, current, proposal)), Committed)
    assert found(catalog, head) == ([3, 4, 5, 6, 8, 9] if opener.ours else [])
    assert found(catalog, head, after=4, up_to=8) == ([5, 6, 8] if opener.ours else [])
    assert kept(catalog, "another table", 0, 100) == []


def test_a_dropped_table_leaves_no_changes_and_others_keep_theirs(opened: OpenedCatalog, opener: Opener) -> None:
    catalog = opened.catalog
    heads = {ident: create_table(opened, ident) for ident in (EVENTS, STOCK)}
    for ident, head in heads.items():
        proposal = replace(set_property(head, "x"), changes=(change(1, uuid=head.metadata.uuid),))
        catalog.swap(catalog.prepare(ident, head, proposal))
    catalog.drop(EVENTS)
    assert found(catalog, heads[EVENTS]) == []
    assert found(catalog, heads[STOCK]) == ([1] if opener.ours else [])


def test_p28_an_instant_names_every_table_and_its_versions_can_be_loaded_later(
    opened: OpenedCatalog, opener: Opener
) -> None:
    catalog = opened.catalog
    heads = {ident: create_table(opened, ident) for ident in (EVENTS, STOCK)}
    instant = catalog.instant()
    for ident, head in heads.items():
        assert isinstance(catalog.swap(catalog.prepare(ident, head, set_property(head, "later"))), Committed)
        assert "k" in catalog.load(ident).metadata.properties
        pinned = catalog.load_at(ident, head.location)
        assert "k" not in pinned.metadata.properties
        assert (pinned.location, pinned.metadata.uuid) == (head.location, head.metadata.uuid)
    assert instant == ({ident: head.location for ident, head in heads.items()} if opener.ours else None)


def test_p28_an_instant_never_shows_the_second_of_two_commits_without_the_first(
    opened: OpenedCatalog, opener: Opener
) -> None:
    catalog = opened.catalog
    if not opener.ours:
        # Each table is loaded at its own moment there, and the catalog says that it has no instant.
        assert catalog.instant() is None
        return
    for ident in (EVENTS, STOCK):
        create_table(opened, ident)
    ended = threading.Event()

    def swap_in_turn() -> None:
        try:
            for n in range(1, 31):
                for ident in (EVENTS, STOCK):
                    head = catalog.load(ident)
                    catalog.swap(catalog.prepare(ident, head, set_property(head, str(n))))
        finally:
            ended.set()

    def look() -> int:
        looks = 0
        while not ended.is_set():
            instant = catalog.instant()
            assert instant is not None
            counts = [
                int(catalog.load_at(ident, instant[ident]).metadata.properties.get("k", "0"))
                for ident in (EVENTS, STOCK)
            ]
            assert counts[0] - counts[1] in (0, 1), counts
            looks += 1
        return looks

    _, looks = race([swap_in_turn, look])
    assert isinstance(looks, int), looks


def test_concurrent_swaps_keep_the_winners_changes_alone(opened: OpenedCatalog, opener: Opener) -> None:
    catalog = opened.catalog
    if not opener.ours:
        # Properties of several writers all land there, and no catalog of others keeps a change.
        assert catalog.changes is None
        return
    head = create_table(opened)
    uuid = head.metadata.uuid
    for number in range(1, 6):
        current = catalog.load(EVENTS)
        ready = [
            catalog.prepare(
                EVENTS, current, replace(set_property(current, f"{n}"), changes=(change(number, n, uuid=uuid),))
            )
            for n in range(8)
        ]
        outcomes = race([lambda each=each: catalog.swap(each) for each in ready])  # type: ignore[misc]
        winners = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Committed)]
        assert len(winners) == 1, outcomes
        assert kept(catalog, uuid, number - 1, number) == [change(number, winners[0], uuid=uuid)]


def test_p28_a_pinned_version_that_was_cleaned_up_says_so(tmp_path: Path) -> None:
    opened = Address(str(tmp_path / "lake")).open()
    with closing(opened.catalog) as catalog:
        head = create_table(opened)
        catalog.swap(catalog.prepare(EVENTS, head, set_property(head, "x")))
        opened.storage.delete([head.location])
        other = Address(str(tmp_path / "lake")).open()
        with closing(other.catalog), pytest.raises(StorageError, match="pinned"):
            other.catalog.load_at(EVENTS, head.location)
        catalog.drop(EVENTS)
        with closing(Address(str(tmp_path / "lake")).open().catalog) as third, pytest.raises(StorageError):
            third.load_at(EVENTS, head.location)
        with pytest.raises(NoSuchTable):
            catalog.load(EVENTS)


# The stores themselves


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    made: Any
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "sqlite":
        made = SqliteStore(tmp_path / "catalog.db")
    else:
        made = PostgresStore(request.getfixturevalue("postgres_uri"))
    made.create_namespace(("shop",), {})
    made.insert(EVENTS, "v0")
    yield made
    made.close()


def test_a_commit_id_that_is_taken_rolls_the_changes_back(store: Any) -> None:
    assert store.commits.put(RECORD)
    assert store.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD, [change(1)])) == Stale("v0")
    assert store.changes.find(UUID, 0, 10) == []


def test_a_change_that_is_there_already_is_no_obstacle(store: Any) -> None:
    assert store.swap(Swap.of_table(EVENTS, "v0", "v1", None, [change(1, body=b"first")])) == Committed("v1")
    assert store.swap(Swap.of_table(EVENTS, "v1", "v2", None, [change(1, body=b"again"), change(2)])) == Committed("v2")
    assert [each.body for each in store.changes.find(UUID, 0, 10)] == [b"first", change(2).body]


def test_old_changes_go_every_500_numbers(store: Any) -> None:
    location = store.read(EVENTS).location
    others = ChangeRecord("another table", 1, 1, b"x")
    swaps = [[others], [change(each) for each in range(1, 5)], [change(10_400)], [change(10_502)]]
    for n, changes in enumerate(swaps):
        assert store.swap(Swap.of_table(EVENTS, location, f"w{n}", None, changes)) == Committed(f"w{n}")
        location = f"w{n}"
    assert len(store.changes.find(UUID, 0, 1 << 40)) == 6
    # 10_999, 11_000, 11_001 crosses a multiple of 500; what lies more than 10,000 behind goes.
    three = [change(each) for each in (10_999, 11_000, 11_001)]
    assert store.swap(Swap.of_table(EVENTS, location, "end", None, three)) == Committed("end")
    assert [each.sequence_number for each in store.changes.find(UUID, 0, 1 << 40)] == [
        10_400,
        10_502,
        10_999,
        11_000,
        11_001,
    ]
    assert store.changes.find("another table", 0, 10) == [others]


def test_changes_may_be_large_and_of_any_bytes(store: Any) -> None:
    body = os.urandom(64 << 10)
    assert store.swap(
        Swap.of_table(EVENTS, "v0", "v1", None, [change(1, body=body), change(2, body=b"")])
    ) == Committed("v1")
    assert [each.body for each in store.changes.find(UUID, 0, 10)] == [body, b""]


def test_forgotten_changes_are_gone_and_other_tables_keep_theirs(store: Any) -> None:
    others = ChangeRecord("another table", 1, 1, b"x")
    store.swap(Swap.of_table(EVENTS, "v0", "v1", None, [change(1), others]))
    store.changes.forget(UUID)
    store.changes.forget(UUID)
    assert store.changes.find(UUID, 0, 10) == []
    assert store.changes.find("another table", 0, 10) == [others]


# Databases without the table


@pytest.fixture
def older(database: Database) -> Database:
    """A catalog as it was before changes were kept: one table, and no frazil_changes."""
    with closing(database.open()) as store:
        store.create_namespace(("shop",), {})
        store.insert(EVENTS, "v0")
    database.ask("DROP TABLE frazil_changes")
    return database


def test_an_older_database_gets_the_table_when_a_writer_connects(older: Database) -> None:
    with closing(older.open()) as store:
        assert not store.created
        assert store.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD, [change(1)])) == Committed("v1")
        assert store.changes.find(UUID, 0, 10) == [change(1)]
    with closing(older.open(read_only=True)) as reader:
        assert reader.changes.find(UUID, 0, 10) == [change(1)]
        with pytest.raises(PermissionDenied, match="read_only"):
            reader.changes.forget(UUID)


def test_a_reader_of_an_older_database_finds_nothing_and_makes_nothing(older: Database) -> None:
    with closing(older.open(read_only=True)) as store:
        assert store.read(EVENTS).location == "v0"
        assert store.changes.find(UUID, 0, 10) == []
    with pytest.raises((sqlite3.OperationalError, psycopg.errors.UndefinedTable)):
        older.ask("SELECT * FROM frazil_changes")


def test_p10_the_table_may_be_dropped_under_a_running_writer(older: Database) -> None:
    with closing(older.open()) as store:
        assert store.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD, [change(1)])) == Committed("v1")
        older.ask("DROP TABLE frazil_changes")
        assert store.changes.find(UUID, 0, 10) == []
        assert store.swap(Swap.of_table(EVENTS, "v1", "v2", replace(RECORD, commit_id="c2"), [change(2)])) == Committed(
            "v2"
        )
        assert store.commits.find(UUID, "c2") is not None
        assert store.swap(Swap.of_table(EVENTS, "v2", "v3", None, [change(3)])) == Committed("v3")
        assert store.swap(Swap.of_table(EVENTS, "v1", "v4", None, [change(4)])) == Stale("v3")
        store.changes.forget(UUID)
    with closing(older.open()) as again:
        assert again.swap(Swap.of_table(EVENTS, "v3", "v4", None, [change(4)])) == Committed("v4")
        assert again.changes.find(UUID, 0, 10) == [change(4)]


def test_p10_a_user_who_may_not_touch_the_table_commits_all_the_same(postgres_uri: str) -> None:
    with closing(PostgresStore(postgres_uri)) as owner, psycopg.connect(postgres_uri, autocommit=True) as connection:
        owner.create_namespace(("shop",), {})
        owner.insert(EVENTS, "v0")
        connection.execute(
            "DO $$ BEGIN CREATE ROLE etl LOGIN PASSWORD 'etl'; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        )
        connection.execute("GRANT SELECT, UPDATE ON iceberg_tables TO etl")
        connection.execute("GRANT SELECT ON iceberg_namespace_properties TO etl")
        connection.execute("GRANT SELECT, INSERT ON frazil_commits TO etl")
        theirs = postgres_uri.replace(postgres_uri.split("://")[1].split("@", maxsplit=1)[0], "etl:etl")
        with closing(PostgresStore(theirs)) as store:
            assert store.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD, [change(1)])) == Committed("v1")
            assert store.changes.find(UUID, 0, 10) == []
            assert store.swap(Swap.of_table(EVENTS, "v1", "v2", None, [change(2)])) == Committed("v2")
        # Nor does it matter that this user cannot add the table to an older database.
        connection.execute("DROP TABLE frazil_changes")
        with closing(PostgresStore(theirs)) as store:
            assert store.swap(Swap.of_table(EVENTS, "v2", "v3", None, [change(3)])) == Committed("v3")
            assert store.changes.find(UUID, 0, 10) == []
        assert owner.read(EVENTS).location == "v3"


def test_changes_and_the_order_cost_one_statement_each_inside_the_swaps_transaction(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "catalog.db")
    store.create_namespace(("shop",), {})
    store.insert(EVENTS, "v0")
    (connection,) = store._engine._connections._idle  # type: ignore[attr-defined]
    statements: list[str] = []
    connection.set_trace_callback(lambda sql: statements.append(" ".join(sql.split()[:3])))
    assert store.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD, [change(1), change(2), change(3)])) == Committed("v1")
    store.close()
    assert [each for each in statements if not each.startswith("PRAGMA")] == [
        "BEGIN IMMEDIATE",
        "UPDATE iceberg_tables SET",
        "INSERT INTO frazil_commits",
        "INSERT INTO frazil_changes",
        "WITH stamped AS",
        "COMMIT",
    ]


def test_a_drop_of_a_table_whose_metadata_is_gone_still_works(tmp_path: Path) -> None:
    opened = Address(str(tmp_path / "lake")).open()
    head = create_table(opened)
    opened.catalog.close()
    opened = Address(str(tmp_path / "lake")).open()
    opened.storage.delete([head.location])
    assert isinstance(opened.catalog, PointerCatalog)
    assert opened.catalog.drop(EVENTS) == head.location
    opened.catalog.close()

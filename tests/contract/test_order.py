"""The order of all commits of a lake: recorded by every swap, and what can be read from it (rule P41)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

from contract.openers import Database
from contract.samples import EVENTS
from frazil.catalog.base import CommitRecord, Committed, Guard, OrderCut, PointerMove, Stale
from frazil.catalog.memory import MemoryStore
from frazil.catalog.postgres import PostgresStore
from frazil.catalog.sqlite import SqliteStore
from frazil.catalog.store import PointerSwap, Swap
from frazil.errors import InvalidInput, NoSuchTable, TableExists
from frazil.model import Ident
from frazil.runtime import SYSTEM

OTHER, NEW = Ident(("shop",), "other"), Ident(("shop",), "new")
HOUR = 3_600_000
START = 1_800_000_000_000


@dataclass
class Clock:
    now: int = START


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Any]:
    """A store whose database has this clock."""
    runtime = replace(SYSTEM, now_ms=lambda: clock.now)
    if request.param == "memory":
        found: Any = MemoryStore(runtime=runtime)
    elif request.param == "sqlite":
        found = SqliteStore(tmp_path / "catalog.db", runtime=runtime)
    else:
        found = with_clock(PostgresStore(request.getfixturevalue("postgres_uri")), clock)
    with closing(found):
        found.create_namespace(("shop",), {})
        yield found


def with_clock(store: PostgresStore, clock: Clock) -> PostgresStore:
    store._engine.clock = lambda: f"{clock.now}::bigint"
    return store


def recorded(store: Any) -> list[tuple[int, list[tuple[str, str | None, str | None]]]]:
    return [
        (each.stamp_ms - START, [(move.ident.name, move.previous, move.location) for move in each.moves])
        for each in store.order.newest(None)
    ]


def moved(store: Any, ident: Ident, *locations: str) -> None:
    for old, new in pairwise(locations):
        assert isinstance(store.swap(Swap.of_table(ident, old, new)), Committed)


def test_p41_every_change_of_a_pointer_is_one_entry(store: Any, clock: Clock) -> None:
    steps: list[Callable[[], object]] = [
        lambda: store.insert(EVENTS, "e0"),
        lambda: store.insert(OTHER, "o0"),
        lambda: moved(store, EVENTS, "e0", "e1"),
        lambda: store.swap(Swap((PointerSwap(OTHER, "o0", "o1"), PointerSwap(EVENTS, "e1", "e2")))),
        lambda: store.rename(OTHER, NEW),
        lambda: store.swap(Swap((PointerSwap(EVENTS, "e2", None), PointerSwap(OTHER, None, "p0")))),
        lambda: store.delete(NEW),
        lambda: store.swap(Swap((), guards=(Guard(OTHER, "p0"),))),
    ]
    for step in steps:
        clock.now += 10
        step()
    assert recorded(store) == [
        (10, [("events", None, "e0")]),
        (20, [("other", None, "o0")]),
        (30, [("events", "e0", "e1")]),
        (40, [("events", "e1", "e2"), ("other", "o0", "o1")]),
        (50, [("new", None, "o1"), ("other", "o1", None)]),
        (60, [("events", "e2", None), ("other", None, "p0")]),
        (70, [("new", "o1", None)]),
    ]
    assert [len(each.moves) for each in store.order.newest(3)] == [2, 2, 1]
    assert store.order.newest(0) == []


def test_p41_the_pointers_of_every_time_are_found(store: Any, clock: Clock) -> None:
    test_p41_every_change_of_a_pointer_is_one_entry(store, clock)

    def named(cut: OrderCut) -> dict[str, str]:
        return {ident.name: location for ident, location in cut.undone().items()}

    found = {at: named(store.order.cut(START + at)) for at in range(10, 80, 10)}
    assert found == {
        10: {"events": "e0"},
        20: {"events": "e0", "other": "o0"},
        30: {"events": "e1", "other": "o0"},
        40: {"events": "e2", "other": "o1"},
        50: {"events": "e2", "new": "o1"},
        60: {"other": "p0", "new": "o1"},
        70: {"other": "p0"},
    }
    for at, pointers in found.items():
        assert named(store.order.cut(START + at + 9)) == pointers
        earlier = store.order.cut(START + at).earlier
        assert {ident.name: location for ident, location in earlier.items() if location} == pointers


def test_p41_what_is_rolled_back_is_not_recorded(store: Any, clock: Clock) -> None:
    store.insert(EVENTS, "e0")
    store.insert(OTHER, "o0")
    record = CommitRecord("events", "once", "d", 1, 1)
    assert isinstance(store.swap(Swap.of_table(EVENTS, "e0", "e1", record)), Committed)
    before = store.order.newest(None)
    clock.now += 10
    assert store.swap(Swap.of_table(EVENTS, "e0", "e9")) == Stale("e1")
    assert store.swap(Swap.of_table(EVENTS, "e1", "e2", record)) == Stale("e1"), "the commit id is taken"
    both = Swap((PointerSwap(EVENTS, "e1", "e2"), PointerSwap(OTHER, "old", "o1")))
    assert store.swap(both) == Stale("o0", OTHER)
    with pytest.raises(TableExists):
        store.insert(EVENTS, "x")
    with pytest.raises(TableExists):
        store.rename(EVENTS, OTHER)
    with pytest.raises(NoSuchTable):
        store.delete(NEW)
    assert store.order.newest(None) == before


def test_p41_a_swap_that_is_sent_again_is_recorded_once(store: Any, clock: Clock) -> None:
    store.insert(EVENTS, "e0")
    store.insert(OTHER, "o0")
    swap = Swap((PointerSwap(EVENTS, "e0", "e1"), PointerSwap(OTHER, "o0", "o1")))
    assert store.swap(swap) == Committed("e1")
    clock.now += 10
    assert store.swap(swap) == Committed("e1")
    assert [stamp for stamp, _ in recorded(store)] == [0, 0, 0]


def test_p41_stamps_never_run_back_when_the_clock_does(store: Any, clock: Clock) -> None:
    store.insert(EVENTS, "e0")
    clock.now += 5
    moved(store, EVENTS, "e0", "e1")
    clock.now -= HOUR
    moved(store, EVENTS, "e1", "e2")
    store.insert(OTHER, "o0")
    assert store.order.cut(START + 4).undone() == {EVENTS: "e0"}
    with pytest.raises(InvalidInput, match="lies in the future"):
        store.order.cut(START + 5)
    clock.now += 2 * HOUR
    moved(store, EVENTS, "e2", "e3")
    assert [stamp for stamp, _ in recorded(store)] == [0, 5, 5, 5, HOUR + 5]
    assert store.order.cut(START + 5).undone() == {EVENTS: "e2", OTHER: "o0"}


def test_times_without_a_recorded_order_are_refused(store: Any, clock: Clock) -> None:
    with pytest.raises(InvalidInput, match="No commit is recorded yet"):
        store.order.cut(START - 1)
    store.insert(EVENTS, "e0")
    clock.now += 10
    with pytest.raises(InvalidInput, match="It begins at 2027-01-15T08:00:00"):
        store.order.cut(START - 1)
    with pytest.raises(InvalidInput, match="lies in the future"):
        store.order.cut(START + HOUR)
    assert store.order.cut(START).undone() == {EVENTS: "e0"}


def test_the_oldest_commits_are_trimmed_and_their_times_refused(
    store: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("_sql_order", "_memory_order"):
        monkeypatch.setattr(f"frazil.catalog.{module}.ORDER_KEPT", 4)
        monkeypatch.setattr(f"frazil.catalog.{module}.TRIMMED_AT_ONCE", 1 if module == "_memory_order" else 100)
    monkeypatch.setattr("frazil.catalog._sql_order.TRIM_EVERY", 1)
    store.insert(EVENTS, "e0")
    for number in range(10):
        clock.now += 10
        moved(store, EVENTS, f"e{number}", f"e{number + 1}")
    kept = recorded(store)
    assert kept[-1] == (100, [("events", "e9", "e10")])
    assert 4 <= len(kept) <= 5
    oldest = START + kept[0][0]
    assert store.order.cut(oldest).undone() == {EVENTS: kept[0][1][0][2]}
    with pytest.raises(InvalidInput, match="begins later"):
        store.order.cut(oldest - 1)


def test_old_commits_are_trimmed_by_age(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frazil.catalog._sql_order.TRIM_EVERY", 1)
    store = database.open()
    store.create_namespace(("shop",), {})
    store.insert(EVENTS, "e0")
    database.ask("UPDATE frazil_order SET stamp = stamp - 3456000000")
    moved(store, EVENTS, "e0", "e1", "e2")
    assert [each[1] for each in recorded(store)] == [[("events", "e0", "e1")], [("events", "e1", "e2")]]


def test_catalogs_in_one_database_have_orders_of_their_own(database: Database) -> None:
    ours, theirs = database.open(name="a"), database.open(name="b")
    for store, location in ((ours, "a0"), (theirs, "b0")):
        store.create_namespace(("shop",), {})
        store.insert(EVENTS, location)
    assert [each[1] for each in recorded(ours)] == [[("events", None, "a0")]]
    assert [each[1] for each in recorded(theirs)] == [[("events", None, "b0")]]


# Optional, as everything beside the pointers (rule P10)


def test_p10_swaps_go_on_without_the_order_when_it_is_dropped(database: Database) -> None:
    store = database.open()
    store.create_namespace(("shop",), {})
    store.insert(EVENTS, "e0")
    database.ask("DROP TABLE frazil_order")
    moved(store, EVENTS, "e0", "e1", "e2")
    store.insert(OTHER, "o0")
    store.rename(OTHER, NEW)
    assert store.delete(NEW) == "o0"
    assert store.read(EVENTS).location == "e2"
    again = database.open()
    moved(again, EVENTS, "e2", "e3")
    assert [each[1] for each in recorded(again)] == [[("events", "e2", "e3")]]


def test_p10_a_swap_with_changes_goes_on_without_the_order(database: Database) -> None:
    from frazil.catalog.base import ChangeRecord

    store = database.open()
    store.create_namespace(("shop",), {})
    store.insert(EVENTS, "e0")
    database.ask("DROP TABLE frazil_order")
    change = ChangeRecord("events", 1, 1, b"x")
    for number in range(2):
        swap = Swap.of_table(EVENTS, f"e{number}", f"e{number + 1}", changes=(replace(change, sequence_number=number),))
        assert isinstance(store.swap(swap), Committed)
    assert [each.sequence_number for each in store.changes.find("events", -1, 9)][-1] == 1, "later ones are kept again"


def test_a_catalog_without_the_table_opens_read_only(database: Database) -> None:
    store = database.open()
    store.create_namespace(("shop",), {})
    store.insert(EVENTS, "e0")
    database.ask("DROP TABLE frazil_order")
    reader = database.open(read_only=True)
    assert reader.order is None
    assert reader.read(EVENTS).location == "e0"


def test_a_reader_reads_the_order_and_records_nothing(database: Database) -> None:
    store = database.open()
    store.create_namespace(("shop",), {})
    store.insert(EVENTS, "e0")
    reader = database.open(read_only=True)
    assert recorded(reader) == recorded(store)
    stamp = reader.order.newest(1)[0].stamp_ms  # type: ignore[union-attr]
    assert reader.order.cut(stamp).undone() == {EVENTS: "e0"}  # type: ignore[union-attr]


def test_p10_a_user_without_rights_on_the_order_commits_as_another_engine_does(postgres_uri: str) -> None:
    with closing(PostgresStore(postgres_uri)) as store:
        store.create_namespace(("shop",), {})
        store.insert(EVENTS, "e0")
        with psycopg.connect(postgres_uri, autocommit=True) as connection:
            connection.execute(
                "DO $$ BEGIN CREATE ROLE older LOGIN PASSWORD 'older'; "
                "EXCEPTION WHEN duplicate_object THEN NULL; END $$"
            )
            connection.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO older")
            connection.execute("REVOKE ALL ON frazil_order FROM older")
        theirs = "postgresql://older:older@" + postgres_uri.partition("@")[2]
        with closing(PostgresStore(theirs)) as other:
            moved(other, EVENTS, "e0", "e1")
        moved(store, EVENTS, "e1", "e2")
        assert [each[1] for each in recorded(store)] == [[("events", None, "e0")], [("events", "e1", "e2")]]


# Interleavings


def held(store: Any) -> tuple[threading.Event, threading.Event]:
    """Makes the store's next swap stop between its stamp and its COMMIT: (it has stamped, it may go on)."""
    stamped, go_on, record = threading.Event(), threading.Event(), store._record

    def hold(db: Any, swap: Swap) -> None:
        record(db, swap)
        stamped.set()
        assert go_on.wait(30)

    store._record = hold
    return stamped, go_on


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    return thread, answers


def test_p41_a_commit_that_waited_for_another_has_no_smaller_stamp(postgres_uri: str) -> None:
    """A swap reads a guard that another one is moving. It was sent before that one ended, and its clock is behind."""
    first, second = Clock(START + 5000), Clock(START)
    with (
        closing(with_clock(PostgresStore(postgres_uri), second)) as slow,
        closing(with_clock(PostgresStore(postgres_uri), first)) as fast,
    ):
        slow.create_namespace(("shop",), {})
        slow.insert(EVENTS, "e0")
        slow.insert(OTHER, "o0")
        stamped, go_on = held(fast)
        moving, _ = in_thread(lambda: fast.swap(Swap.of_table(EVENTS, "e0", "e1")))
        assert stamped.wait(30)
        guarded = Swap((PointerSwap(OTHER, "o0", "o1"),), guards=(Guard(EVENTS, "e1"),))
        waiting, answers = in_thread(lambda: slow.swap(guarded))
        waits = "SELECT 1 FROM pg_locks WHERE NOT granted"
        with psycopg.connect(postgres_uri, autocommit=True) as connection:
            while connection.execute(waits).fetchone() is None:
                pass
        go_on.set()
        moving.join(30)
        waiting.join(30)
        assert answers == [Committed("o1")]
        assert [stamp for stamp, _ in recorded(slow)] == [0, 0, 5000, 5000]
        assert [moves[0][0] for _, moves in recorded(slow)][2:] == ["events", "other"]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_p41_a_time_is_answered_when_its_commits_are_visible(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A swap has its stamp and is not committed: a reader of a later time waits for it, and sees it."""
    uri = request.getfixturevalue("postgres_uri") if kind == "postgres" else None
    opened: Callable[[], Any] = lambda: PostgresStore(uri) if uri else SqliteStore(tmp_path / "catalog.db")  # noqa: E731
    with closing(opened()) as store, closing(opened()) as reader, closing(opened()) as other:
        store.create_namespace(("shop",), {})
        store.insert(EVENTS, "e0")
        store.insert(OTHER, "o0")
        stamped, go_on = held(store)
        moving, _ = in_thread(lambda: store.swap(Swap.of_table(EVENTS, "e0", "e1")))
        assert stamped.wait(30)
        as_of = other.read(OTHER).now_ms
        reading, answers = in_thread(lambda: reader.order.cut(as_of))
        reading.join(0.3)
        assert not answers, "it was answered without the commit that is under way"
        if kind == "postgres":
            while other.read(OTHER).now_ms <= as_of:
                pass
            # A reader that waits holds up no writer.
            assert other.swap(Swap.of_table(OTHER, "o0", "o1")) == Committed("o1")
            assert not answers
        go_on.set()
        moving.join(30)
        reading.join(30)
        assert answers[0].undone() == {EVENTS: "e1", OTHER: "o0"}
        assert reader.order.cut(as_of).undone() == answers[0].undone()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def moving(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A store with two tables."""
    if request.param == "memory":
        store: Any = MemoryStore()
    elif request.param == "sqlite":
        store = SqliteStore(tmp_path / "catalog.db")
    else:
        store = PostgresStore(request.getfixturevalue("postgres_uri"))
    with closing(store):
        store.create_namespace(("shop",), {})
        store.swap(Swap((PointerSwap(EVENTS, None, "e0"), PointerSwap(OTHER, None, "o0"))))
        yield store


def move_both(store: Any, writer: str, times: int) -> None:
    """Move both tables together, to locations with the same ending, until that has succeeded so often."""
    while times:
        events, other = store.pointers()[EVENTS], store.pointers()[OTHER]
        ending = f"{events[1:]}{writer}"
        both = PointerSwap(EVENTS, events, f"e{ending}"), PointerSwap(OTHER, other, f"o{ending}")
        times -= isinstance(store.swap(Swap(both)), Committed)


def test_p41_no_time_shows_half_of_a_commit_and_answers_do_not_change(moving: Any) -> None:
    """Two writers move both tables together, a reader asks for the present again and again."""
    seen: dict[int, dict[str, str]] = {}
    finished = threading.Event()

    def read() -> None:
        while not finished.is_set():
            at = moving.read(EVENTS).now_ms
            seen[at] = numbers(moving.order.cut(at))

    reader, _ = in_thread(read)
    writers = [in_thread(partial(move_both, moving, name, 25))[0] for name in "xy"]
    for each in writers:
        each.join(60)
    finished.set()
    reader.join(60)
    assert len(moving.order.newest(None)) == 51
    assert seen
    for at, pair in seen.items():
        assert pair["events"] == pair["other"]
        assert numbers(moving.order.cut(at)) == pair


def numbers(cut: OrderCut) -> dict[str, str]:
    return {ident.name: location[1:] for ident, location in cut.undone().items()}


def test_moves_that_were_committed_while_the_order_is_read_are_undone() -> None:
    later = (PointerMove(EVENTS, "e1", "e2"), PointerMove(OTHER, None, "o0"), PointerMove(EVENTS, "e0", "e1"))
    assert OrderCut({EVENTS: "e1"}, later, {}).undone() == {EVENTS: "e0"}
    assert OrderCut({EVENTS: "e2", OTHER: "o0"}, later, {}).undone() == {EVENTS: "e0"}

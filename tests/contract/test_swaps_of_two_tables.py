"""One swap for several tables: all pointers are set, or none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.openers import OPENERS, REST, Opener
from contract.samples import EVENTS, add_column, create_table
from frazil.catalog._sql_records import CHANGES_KEPT, oldest_kept
from frazil.catalog.base import (
    Catalog,
    ChangeRecord,
    CommitRecord,
    Committed,
    DroppedManifestLists,
    Guard,
    Head,
    OpenedCatalog,
    Prepared,
    Proposal,
    QueuedCommit,
    QueueState,
    QueueUpdate,
    Stale,
)
from frazil.catalog.memory import MemoryStore
from frazil.catalog.pointer import PointerCatalog
from frazil.catalog.postgres import PostgresStore
from frazil.catalog.sqlite import SqliteStore
from frazil.catalog.store import PointerSwap, Swap
from frazil.errors import NoSuchNamespace, Unsupported
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import Ident

OTHER = Ident(("shop",), "other")
RECORDS = (CommitRecord("events", "both", "d", 1, 1), CommitRecord("other", "both", "d", 2, 1))
CHANGES = (ChangeRecord("events", 1, 1, b"e"), ChangeRecord("other", 2, 1, b"o"))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        found: Any = MemoryStore()
    elif request.param == "sqlite":
        found = SqliteStore(tmp_path / "catalog.db")
    else:
        found = PostgresStore(request.getfixturevalue("postgres_uri"))
    with closing(found):
        found.create_namespace(("shop",), {})
        found.insert(EVENTS, "e0")
        found.insert(OTHER, "o0")
        yield found


def both(events: tuple[str, str], other: tuple[str, str], **more: Any) -> Swap:
    return Swap((PointerSwap(EVENTS, *events), PointerSwap(OTHER, *other)), **more)


def heads(store: Any) -> tuple[str, str]:
    return store.read(EVENTS).location, store.read(OTHER).location


def test_both_pointers_are_set_with_all_that_belongs_to_them(store: Any) -> None:
    dropped = (DroppedManifestLists("events", ("e-list",)), DroppedManifestLists("other", ("o-list",)))
    swap = both(("e0", "e1"), ("o0", "o1"), records=RECORDS, changes=CHANGES, dropped=dropped)
    assert store.swap(swap) == Committed("e1")
    assert heads(store) == ("e1", "o1")
    for record, change, lists in zip(RECORDS, CHANGES, dropped, strict=True):
        assert store.commits.find(record.table_uuid, "both") == record
        assert store.changes.find(record.table_uuid, 0, 10) == [change]
        assert store.changes.dropped_lists(record.table_uuid) == list(lists.manifest_lists)


@pytest.mark.parametrize(
    ("events", "other", "ident", "actual"),
    [
        (("old", "e1"), ("o0", "o1"), EVENTS, "e0"),
        (("e0", "e1"), ("old", "o1"), OTHER, "o0"),
        (("old", "e1"), ("old", "o1"), EVENTS, "e0"),
    ],
)
def test_p5_one_stale_pointer_rolls_both_back(
    store: Any, events: tuple[str, str], other: tuple[str, str], ident: Ident, actual: str
) -> None:
    assert store.swap(both(events, other, records=RECORDS, changes=CHANGES)) == Stale(actual, ident)
    assert heads(store) == ("e0", "o0")
    assert store.commits.find("events", "both") is None
    assert store.changes.find("other", 0, 10) == []


def test_a_table_that_is_gone_is_stale(store: Any) -> None:
    store.delete(OTHER)
    assert store.swap(both(("e0", "e1"), ("o0", "o1"))) == Stale(None, OTHER)
    assert store.read(EVENTS).location == "e0"


def test_p9_the_same_swap_sent_again_is_harmless(store: Any) -> None:
    swap = both(("e0", "e1"), ("o0", "o1"), records=RECORDS)
    assert store.swap(swap) == Committed("e1")
    assert store.swap(swap) == Committed("e1")
    assert store.swap(Swap.of_table(OTHER, "o1", "o2")) == Committed("o2")
    assert store.swap(swap) == Committed("e1"), "the second table has moved on since"
    assert heads(store) == ("e1", "o2")


def test_p1_a_commit_id_that_is_taken_or_a_withdrawn_commit_rolls_both_back(store: Any) -> None:
    store.queue.put(QueuedCommit("a", "events", "commit-a", 1, b"", queue_key="q"), 60_000)
    assert store.queue.withdraw("a").state is QueueState.WITHDRAWN
    update = QueueUpdate({"a": b""})
    if store.queue.claims is None:
        assert store.swap(both(("e0", "e1"), ("o0", "o1"), queue_update=update)) == Stale("e0", EVENTS)
    assert store.commits.put(RECORDS[1])
    assert store.swap(both(("e0", "e1"), ("o0", "o1"), records=RECORDS)) == Stale("e0", EVENTS)
    assert heads(store) == ("e0", "o0")
    assert store.commits.find("events", "both") is None


@pytest.mark.parametrize("new", ["e0", "o0"])
def test_p40_a_guard_that_has_moved_rolls_all_back(store: Any, new: str) -> None:
    swap = Swap((PointerSwap(OTHER, "o0", "o1"),), guards=(Guard(EVENTS, "e0", RECORDS[0]),), records=RECORDS)
    if new == "o0":
        store.swap(Swap.of_table(EVENTS, "e0", "e1"))
        assert store.swap(swap) == Stale("e1", EVENTS)
        assert heads(store) == ("e1", "o0")
        assert store.commits.find("other", "both") is None
    else:
        assert store.swap(swap) == Committed("o1")
        assert heads(store) == ("e0", "o1")


@pytest.mark.parametrize("last", ["events", "other"])
def test_p10_old_changes_of_every_table_of_a_swap_are_deleted(store: Any, last: str) -> None:
    """Whichever of them is named last."""
    number = CHANGES_KEPT + 1_000
    for at, new in ((1, "1"), (number, "2")):
        old = str(int(new) - 1)
        changes = [ChangeRecord(each, at, at, b"x") for each in ("events", "other")]
        changes.sort(key=lambda each: each.table_uuid == last)
        swap = both((f"e{old}", f"e{new}"), (f"o{old}", f"o{new}"), changes=tuple(changes))
        assert isinstance(store.swap(swap), Committed)
    for each in ("events", "other"):
        assert [found.sequence_number for found in store.changes.find(each, 0, number)] == [number]


def test_changes_of_tables_of_different_age_are_not_deleted_with_each_swap() -> None:
    changes = [ChangeRecord("young", 1, 3, b""), ChangeRecord("old", 2, 20_300, b"")]
    assert oldest_kept(changes) == {}
    assert oldest_kept([ChangeRecord("old", 2, 20_500, b""), changes[0]]) == {"old": 20_500 - CHANGES_KEPT}


def test_p40_a_guard_that_is_gone_is_stale(store: Any) -> None:
    store.delete(EVENTS)
    swap = Swap((PointerSwap(OTHER, "o0", "o1"),), guards=(Guard(EVENTS, "e0"),))
    assert store.swap(swap) == Stale(None, EVENTS)
    assert store.read(OTHER).location == "o0"


def test_p40_guards_alone_are_compared_at_one_moment(store: Any) -> None:
    guards = (Guard(EVENTS, "e0"), Guard(OTHER, "o0"))
    assert isinstance(store.swap(Swap((), guards=guards)), Committed)
    store.swap(Swap.of_table(OTHER, "o0", "o1"))
    assert store.swap(Swap((), guards=guards)) == Stale("o1", OTHER)


def test_p40_tables_are_made_and_dropped_with_the_others(store: Any) -> None:
    new = Ident(("shop",), "new")
    swap = Swap((PointerSwap(EVENTS, "e0", None), PointerSwap(new, None, "n0"), PointerSwap(OTHER, "o0", "o1")))
    assert isinstance(store.swap(swap), Committed)
    assert store.pointers() == {new: "n0", OTHER: "o1"}
    assert store.swap(Swap((PointerSwap(new, None, "n1"), PointerSwap(OTHER, "o1", "o2")))) == Stale("n0", new)
    with pytest.raises(NoSuchNamespace):
        store.swap(Swap((PointerSwap(OTHER, "o1", "o2"), PointerSwap(Ident(("zoo",), "x"), None, "x0"))))
    assert store.pointers() == {new: "n0", OTHER: "o1"}


def test_p40_a_guarded_table_cannot_move_before_the_swap_is_committed(postgres_uri: str) -> None:
    """Between the comparison of a guard and COMMIT, another session tries to move its pointer."""
    with closing(PostgresStore(postgres_uri)) as store, closing(PostgresStore(postgres_uri)) as other:
        store.create_namespace(("shop",), {})
        store.insert(EVENTS, "e0")
        store.insert(OTHER, "o0")
        began, moved = threading.Event(), threading.Event()

        def move() -> None:
            began.wait(10)
            assert isinstance(other.swap(Swap.of_table(EVENTS, "e0", "e1")), Committed)
            moved.set()

        set_pointer = store._set_pointer

        def hold(db: Any, pointer: PointerSwap) -> bool:
            # The guard sorts first, so it is compared and locked by now.
            began.set()
            assert not moved.wait(0.5), "the guarded table moved inside the transaction"
            return set_pointer(db, pointer)

        store._set_pointer = hold  # type: ignore[method-assign]
        thread = threading.Thread(target=move)
        thread.start()
        swap = Swap((PointerSwap(OTHER, "o0", "o1"),), guards=(Guard(EVENTS, "e0"),))
        assert store.swap(swap) == Committed("o1")
        thread.join(10)
        assert heads(store) == ("e1", "o1"), "afterwards it may"


def test_p40_swaps_of_the_same_tables_never_deadlock(postgres_uri: str) -> None:
    """Two transactions name two tables in opposite orders; a deadlock would take Postgres a second to find."""
    storage = Storage()
    with closing(PostgresStore(postgres_uri)) as store:
        store.create_namespace(("shop",), {})
        store.insert(EVENTS, "e0")
        store.insert(OTHER, "o0")
        catalog = PointerCatalog(store, storage)
        head = Head("", TableMetadata({}), 0)
        seen: list[Ident] = []
        set_pointer = store._set_pointer

        def set_and_note(db: Any, pointer: PointerSwap) -> bool:
            seen.append(pointer.ident)
            return set_pointer(db, pointer)

        store._set_pointer = set_and_note  # type: ignore[method-assign]
        for n, order in enumerate([(EVENTS, OTHER), (OTHER, EVENTS)]):
            ready = [
                Prepared(
                    ident, replace(head, location=f"{ident.name[0]}{n}"), Proposal((), ()), f"{ident.name[0]}{n + 1}"
                )
                for ident in order
            ]
            assert isinstance(catalog.swap(*ready), Committed)
        assert seen == [EVENTS, OTHER, EVENTS, OTHER]


@pytest.mark.parametrize("opener", [*OPENERS, REST], ids=lambda each: each.name, indirect=True)
def test_a_catalog_swaps_two_tables_or_refuses_before_it_sends(opened: OpenedCatalog, opener: Opener) -> None:
    catalog = opened.catalog
    assert catalog.capabilities.swaps_tables is (opener.ours or opener.swaps)
    before = create_table(opened), create_table(opened, OTHER)
    swap = prepared_column(catalog, EVENTS, before[0], "k"), prepared_column(catalog, OTHER, before[1], "k")
    if not catalog.capabilities.swaps_tables:
        with pytest.raises(Unsupported, match="2 tables at once"):
            catalog.swap(*swap)
        assert [catalog.load(ident).location for ident in (EVENTS, OTHER)] == [each.location for each in before]
        return
    assert isinstance(catalog.swap(*swap), Committed)
    after = catalog.load(EVENTS), catalog.load(OTHER)
    assert [len(each.metadata.schema().fields) for each in after] == [3, 3]
    late = prepared_column(catalog, EVENTS, before[0], "x"), prepared_column(catalog, OTHER, after[1], "x")
    assert catalog.swap(*late) == Stale(after[0].location, EVENTS)
    assert catalog.load(OTHER).location == after[1].location


SWAPPING = [each for each in (*OPENERS, REST) if each.ours or each.swaps]


@pytest.mark.parametrize("opener", SWAPPING, ids=lambda each: each.name, indirect=True)
def test_p40_a_catalog_that_swaps_tables_compares_what_was_only_read(opened: OpenedCatalog) -> None:
    catalog = opened.catalog
    read, _ = create_table(opened), create_table(opened, OTHER)
    # By its columns: the table has no snapshots.
    guard = Guard(EVENTS, read.location, requirements=add_column(read, "k").requirements)
    first = prepared_column(catalog, OTHER, catalog.load(OTHER), "k")
    assert isinstance(catalog.swap(first, guards=[guard]), Committed)
    assert isinstance(catalog.swap(prepared_column(catalog, EVENTS, read, "k")), Committed)
    moved, before = catalog.load(EVENTS).location, catalog.load(OTHER)
    assert catalog.swap(prepared_column(catalog, OTHER, before, "x"), guards=[guard]) == Stale(moved, EVENTS)
    assert catalog.load(OTHER).location == before.location


def prepared_column(catalog: Catalog, ident: Ident, head: Head, name: str) -> Prepared:
    """With a commit id, as every commit to several tables has one."""
    record = CommitRecord(head.metadata.uuid, f"add-{name}", "d", None, 0)
    return catalog.prepare(ident, head, replace(add_column(head, name), record=record))

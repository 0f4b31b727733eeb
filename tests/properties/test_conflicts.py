"""Checks of random operations against random winners: which are refused, and what must not make a difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.commit.conflicts import REQUIRED, head_conflicts, required
from frazil.commit.history import History
from frazil.commit.operations import Kind, Read, Write
from frazil.commit.rebase import Rebased
from frazil.expr import parse_filter
from frazil.model import Change, Conflict, DataFile, Entry, Isolation, Status
from properties.world import HEAD, KINDS, FullInspector, World, operations, worlds
from unit.rebasing import checked

MORE = settings(max_examples=200)
READS = (Read(parse_filter("id > 10", HEAD.schema())),)
"""Statistics decide which files this may match: see ``far`` and ``near``."""


def verdict(write: Write, changes: Sequence[Change], base: World, now: World) -> tuple[Rebased, tuple[Conflict, ...]]:
    return checked(write, History(tuple(changes), base_is_ancestor=True), FullInspector(base, now))


def drawn(data: st.DataObject, world: World, kinds: Sequence[str] = KINDS) -> Write:
    write = data.draw(operations(world, kinds).filter(lambda found: found is not None))
    assert write is not None
    return write


def number(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


def far(path: str) -> DataFile:
    """A file of which no row can have an id above ten."""
    return DataFile(path, 3, 10, value_counts={1: 3}, null_value_counts={1: 0}, lower_bounds={1: number(1)},
                    upper_bounds={1: number(10)})  # fmt: skip


def irrelevant(at: int, kind: str) -> Change:
    """Another writer's commit, unrelated to the files and filters of the operation."""
    entry = Entry(Status.ADDED, far(f"far-{at}"), at, at, at)
    match kind:
        case "append":
            return Change(at, at, "append", added=(entry,))
        case "delete":
            return Change(at, at, "delete", removed=(far(f"gone-{at}"),), is_delete=True)
        case _:
            return Change(at, at, "replace", added=(entry,), removed=(far(f"old-{at}"),), lineage_path=f"none-{at}")


@pytest.mark.parametrize("kind", list(Kind))
def test_serializable_asks_for_everything_that_snapshot_asks_for(kind: Kind) -> None:
    assert set(REQUIRED[kind, Isolation.SNAPSHOT]) <= set(REQUIRED[kind, Isolation.SERIALIZABLE])


@MORE
@given(worlds(), st.data())
def test_two_writers_of_the_same_rows_get_the_same_conflict_in_either_order(base: World, data: st.DataObject) -> None:
    kinds = ("mark", "copy", "compact")
    one, other = drawn(data, base, kinds), drawn(data, base, kinds)
    refused = []
    for mine, theirs in ((one, other), (other, one)):
        now = base.copy()
        refused.append(bool(verdict(mine, [now.land(theirs)], base, now)[1]))
    assert refused[0] == refused[1]


@MORE
@given(worlds(), st.data())
def test_two_deletes_never_conflict(base: World, data: st.DataObject) -> None:
    one, other = drawn(data, base, ("mark", "copy", "drop")), drawn(data, base, ("mark", "copy", "drop"))
    if one.kind is other.kind is Kind.DELETE:
        now = base.copy()
        assert verdict(one, [now.land(other)], base, now)[1] == ()


@MORE
@given(
    worlds(), st.sampled_from(list(Isolation)), st.lists(st.sampled_from(["append", "delete", "replace"])), st.data()
)
def test_commits_that_have_nothing_to_do_with_an_operation_change_no_verdict(
    base: World, level: Isolation, others: list[str], data: st.DataObject
) -> None:
    mine = replace(drawn(data, base), isolation=level, reads=READS)
    now = base.copy()
    changes = [now.land(drawn(data, now)) for _ in range(data.draw(st.integers(0, 2))) if now.rows()]
    before = verdict(mine, changes, base, now)
    mixed = list(changes)
    for at, kind in enumerate(others):
        mixed.insert(data.draw(st.integers(0, len(mixed))), irrelevant(1000 + at, kind))
    after = verdict(mine, mixed, base, now)
    assert after[1] == before[1]
    if changes:
        assert plan_of(after[0]) == plan_of(before[0])


def plan_of(carried: Rebased) -> object:
    """What an operation would do at the head."""
    positions = {path: list(rows) for path, rows in carried.positions.items()}
    paths = [[file.file_path for file in files] for files in (carried.removed, carried.added, carried.deletes)]
    return positions, paths, carried.gone_already


@MORE
@given(worlds(), st.data())
def test_a_check_never_raises_and_names_a_winner(base: World, data: st.DataObject) -> None:
    """Also where winners left no record of where rows went, and where history is broken or lost."""
    mine = replace(drawn(data, base, (*KINDS, "key", "add")), reads=data.draw(st.sampled_from([(), READS])))
    now = base.copy()
    changes = [now.land(drawn(data, now, (*KINDS, "add"))) for _ in range(data.draw(st.integers(0, 3))) if now.rows()]
    if data.draw(st.booleans()):
        changes = [replace(each, lineage_path=None) for each in changes]
    whole, lost = data.draw(st.booleans()), data.draw(st.booleans())
    for level in Isolation:
        write = replace(mine, isolation=level)
        assert head_conflicts(write, HEAD) == ()
        history = History(tuple(changes), base_is_ancestor=whole, base_is_lost=lost)
        for found in checked(write, history, FullInspector(base, now))[1]:
            assert found.check in required(write)
            assert found.detail
            assert found.advice
            assert found.snapshot_id in {None, *(each.snapshot_id for each in changes)}


@MORE
@given(worlds(), st.data())
def test_what_snapshot_isolation_refuses_serializable_refuses_too(base: World, data: st.DataObject) -> None:
    mine = replace(drawn(data, base), reads=data.draw(st.sampled_from([(), READS])))
    now = base.copy()
    changes = [now.land(drawn(data, now, (*KINDS, "add"))) for _ in range(data.draw(st.integers(1, 3))) if now.rows()]
    weak, strong = (
        verdict(replace(mine, isolation=level), changes, base, now)[1]
        for level in (Isolation.SNAPSHOT, Isolation.SERIALIZABLE)
    )
    assert bool(strong) or not weak


@MORE
@given(worlds(), st.data())
def test_a_rewrite_without_lineage_stops_deletes_of_rows_of_its_files(base: World, data: st.DataObject) -> None:
    mine = drawn(data, base, ("mark", "copy"))
    now = base.copy()
    theirs = drawn(data, now, ("compact",))
    change = replace(now.land(theirs), lineage_path=None)
    touched = {*mine.positions, *(file.file_path for file in mine.removed)}
    refused = bool(verdict(mine, [change], base, now)[1])
    assert refused == bool(touched & {file.file_path for file in theirs.removed})

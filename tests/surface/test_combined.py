"""Consecutive writes of a transaction in one snapshot: which are, which are not, and that it makes no difference."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import frazil
from surface.matrix import files_of, named_files, rows_of

NAME = "ns.t"
PARTS = "ABCD"
Step = Callable[[Any], object]


def rows(part: str, *keys: int) -> list[dict[str, Any]]:
    return [{"id": key, "part": part, "v": key} for key in keys]


def table_of(lake: frazil.Lake) -> frazil.Table:
    lake.create_namespace("ns")
    table = lake.create_table(NAME, "id bigint not null, part string, v bigint", partition_by=["part"], keys=["id"])
    for number, part in enumerate(PARTS):
        table.append(rows(part, *range(10 * number, 10 * number + 4)))
    return table


def append(part: str, key: int, **options: Any) -> Step:
    return lambda table: table.append(rows(part, key), **options)


def delete(where: str, mode: str) -> Step:
    return lambda table: table.delete(where, mode=mode)


def update(where: str, mode: str) -> Step:
    return lambda table: table.update({"v": "v + 100"}, where, mode=mode)


READ, COPY = "merge-on-read", "copy-on-write"
ONE: list[list[Step]] = [
    [append("A", 90), append("A", 91), append("B", 92)],
    [update("part = 'A' and v > 1", READ), update("part = 'B'", COPY)],
    [delete("id = 1", READ), update("id = 11", COPY)],
    [update("id = 1", COPY), delete("id = 11", COPY), update("id = 21", READ)],
    [append("A", 90, on_deleted="keep"), delete("id = 11", READ)],
    [update("id = 11", READ), append("B", 90, on_deleted="keep")],
]
SEVERAL: list[list[Step]] = [
    # The second one names files that the first one has added, or replaced, or marked.
    [append("A", 90, on_deleted="keep"), delete("id = 90 or id = 91", READ)],
    [update("id = 1", COPY), update("id = 2", COPY)],
    [update("id = 1", READ), update("id = 2", READ)],
    [update("id = 1", READ), delete("id = 2", COPY)],
    # Two conditions of deletes; two policies; two summaries.
    [delete("id = 1", READ), delete("id = 11", READ)],
    [append("A", 90), delete("id = 11", READ)],
    [append("A", 90, snapshot_properties={"a": "1"}), append("A", 91, snapshot_properties={"a": "2"})],
    # Equality deletes apply to what is older.
    [lambda table: table.upsert(rows("A", 1), mode="equality"), append("A", 1)],
    [append("A", 1), lambda table: table.upsert(rows("A", 1), mode="equality")],
    [append("A", 90), lambda table: table.set_properties({"a": "1"}), append("A", 91)],
    [append("A", 90), lambda table: table.create_tag("t", table.snapshot().snapshot_id), append("A", 91)],
]


@pytest.mark.parametrize("steps", ONE)
def test_writes_of_different_files_are_one_snapshot(steps: list[Step]) -> None:
    table, before, expected = committed(steps)
    assert len(table.history()) == before + 1
    assert rows_of(table) == expected
    assert files_of(table) == named_files(table)


@pytest.mark.parametrize("steps", SEVERAL)
def test_writes_that_need_their_own_sequence_numbers_are_several(steps: list[Step]) -> None:
    table, before, expected = committed(steps)
    assert len(table.history()) == before + 2
    assert rows_of(table) == expected
    assert files_of(table) == named_files(table)


def committed(steps: list[Step]) -> tuple[frazil.Table, int, list[dict[str, Any]]]:
    """The table, how many snapshots it had before, and the rows after the same calls outside of a transaction."""
    lake, other = frazil.connect("memory://"), frazil.connect("memory://")
    table, plain = table_of(lake), table_of(other)
    before = len(table.history())
    with lake.transaction() as tx:
        for step in steps:
            step(tx.table(NAME))
        within = rows_of(tx.table(NAME))
    for step in steps:
        step(plain)
    expected = rows_of(plain)
    assert within == expected
    return table, before, expected


def random_step(chance: random.Random, keys: list[int]) -> Step:
    part, mode = chance.choice(PARTS), chance.choice((READ, COPY))
    key = 10 * PARTS.index(part) + chance.randrange(4)
    where = chance.choice((f"id = {key}", f"part = '{part}'", f"part = '{part}' and v % 2 = 0"))
    keys.append(1000 + len(keys))
    return chance.choice(
        (
            append(part, keys[-1], on_deleted=chance.choice(("keep", "abort"))),
            append(part, keys[-1], on_deleted="keep"),
            delete(where, mode),
            update(where, mode),
            update(where, mode),
        )
    )


@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
@pytest.mark.parametrize("seed", range(40))
def test_what_lands_is_what_would_land_in_several_snapshots(
    seed: int, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for is_combined in (True, False):
        with monkeypatch.context() as patch:
            if not is_combined:
                patch.setattr("frazil.transaction.combined", tuple)
            found.append(outcome(random.Random(seed), isolation))
    (landed, snapshots, there), (landed_apart, snapshots_apart, there_apart) = found
    assert landed == landed_apart
    assert there == there_apart
    assert snapshots <= snapshots_apart


def outcome(chance: random.Random, isolation: str) -> tuple[bool, int, list[dict[str, Any]]]:
    """A transaction of random writes, other writers' in between: whether it landed, and what is in the table."""
    lake = frazil.connect("memory://")
    table, keys = table_of(lake), list[int]()
    tx = lake.transaction(isolation=isolation)
    tx.table(NAME)
    others = [random_step(chance, keys) for _ in range(chance.randrange(3))]
    for step in [random_step(chance, keys) for _ in range(chance.randrange(2, 5))]:
        step(tx.table(NAME))
        if others and chance.random() < 0.5:
            others.pop()(table)
    for other in others:
        other(table)
    try:
        tx.commit()
        landed = True
    except frazil.ConflictError:
        landed = False
    assert files_of(table) == named_files(table)
    return landed, len(table.history()), rows_of(table)

"""What a writer does, drawn at random. A program yields steps; for a scan it is sent the rows that were read.

Keys and partitions are few, so that writers race often. The table stays small: rows that are added are deleted again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from concurrency.histories.model import Assignment, Condition, Layout, Row, Step

KEYS = 12
PARTITIONS = ("a", "b", "c")
COLUMNS = ("c0", "c1", "c2")
"""Columns that writers add and then use, all of type bigint."""
DISPUTED = ("d0", "d1")
"""Columns that writers add with different types and never use: only one type can win."""
PROPERTIES = ("owner", "team")
DELETE_MODES = ("merge-on-read", "copy-on-write")
UPSERT_MODES = ("equality", "equality", "position", "copy-on-write")

Program = Generator[Step, list[Row], None]


@dataclass(frozen=True)
class Writer:
    """The source of a program's choices."""

    chance: random.Random
    id: str
    """Unique; rows that the program writes contain it, so that an unexpected row names its writer."""
    layout: Layout
    columns: tuple[str, ...]
    """Which of COLUMNS the table has."""

    def pick(self, options: Sequence[Any]) -> Any:
        return self.chance.choice(options)

    def happens(self, share: float) -> bool:
        return self.chance.random() < share

    def row(self, **fixed: Any) -> Row:
        drawn: dict[str, Any] = {
            "k": self.chance.randrange(KEYS),
            "p": self.pick(PARTITIONS),
            "v": None if self.happens(0.1) else self.chance.randrange(100),
            # Without the writer's name, rows of two writers can be equal.
            "note": None if self.happens(0.2) else self.id,
        }
        for name in self.columns:
            if self.happens(0.3):
                drawn[name] = self.chance.randrange(10)
        return {**drawn, **fixed}

    def rows(self, most: int) -> tuple[Row, ...]:
        drawn = [self.row() for _ in range(self.chance.randint(1, most))]
        if self.happens(0.2):
            drawn.append(drawn[0])
        return tuple(drawn)

    def keyed_rows(self, most: int) -> tuple[Row, ...]:
        """One row for each key: an upsert refuses a key twice in one batch."""
        return tuple({self.layout.key(row): row for row in self.rows(most)}.values())

    def narrow(self) -> Condition:
        key = self.chance.randrange(KEYS)
        simple: list[Condition] = [
            ("=", "k", key),
            ("=", "k", key),
            ("in", "k", sorted({key, self.chance.randrange(KEYS)})),
            ("and", ("=", "p", self.pick(PARTITIONS)), ("=", "k", key)),
            ("and", ("=", "p", self.pick(PARTITIONS)), ("<", "v", self.chance.randrange(50))),
            ("or", ("=", "k", key), ("=", "v", self.chance.randrange(100))),
            ("and", ("=", "k", key), ("not", ("<", "v", self.chance.randrange(100)))),
            ("null", "v"),
        ]
        if self.columns:
            simple.append(("=", self.pick(self.columns), self.chance.randrange(10)))
            simple.append(("and", ("=", "k", key), ("null", self.pick(self.columns))))
        return self.pick(simple)  # type: ignore[no-any-return]

    def wide(self) -> Condition:
        options: list[Condition] = [
            ("=", "p", self.pick(PARTITIONS)),
            ("<", "k", self.chance.randrange(1, KEYS)),
            (">=", "k", self.chance.randrange(KEYS)),
            (">=", "v", self.chance.randrange(100)),
            ("<>", "p", self.pick(PARTITIONS)),
            ("=", "p", self.pick(PARTITIONS)),
            ("true",),
        ]
        return self.pick(options)  # type: ignore[no-any-return]

    def condition(self, wide: float) -> Condition:
        return self.wide() if self.happens(wide) else self.narrow()

    def assignments(self) -> dict[str, Assignment]:
        options: list[dict[str, Assignment]] = [
            {"v": ("plus", "v", self.chance.randint(1, 9))},
            {"v": ("plus", "v", self.chance.randint(1, 9)), "note": ("value", self.id)},
            {"v": ("value", self.chance.randrange(100)), "note": ("value", self.id)},
            {"v": ("value", None)},
            {"p": ("value", self.pick(PARTITIONS)), "note": ("value", self.id)},
            {"k": ("value", self.chance.randrange(KEYS)), "note": ("value", self.id)},
        ]
        options += [{name: ("value", self.chance.randrange(10))} for name in self.columns]
        options += [{name: ("plus", "v", 1)} for name in self.columns[:1]]
        return self.pick(options)  # type: ignore[no-any-return]


# Single verbs


def append(writer: Writer) -> Step:
    # Now and then many rows at once: only files with many rows have several writers.
    return Step("append", rows=writer.rows(30 if writer.happens(0.25) else 4))


def overwrite(writer: Writer) -> Step:
    """The new rows must match the condition, so they are drawn to."""
    partition, key = writer.pick(PARTITIONS), writer.chance.randrange(KEYS)
    options: list[tuple[Condition, dict[str, Any]]] = [
        (("=", "p", partition), {"p": partition}),
        (("=", "k", key), {"k": key}),
        (("and", ("=", "p", partition), ("=", "k", key)), {"p": partition, "k": key}),
        (("<=", "k", key), {"k": writer.chance.randint(0, key)}),
    ]
    where, fixed = writer.pick(options)
    rows = tuple(writer.row(**fixed) for _ in range(writer.chance.randint(1, 4)))
    return Step("overwrite", rows=rows, where=where)


def replace_partitions(writer: Writer) -> Step:
    if not writer.layout.partition_by:
        return overwrite(writer)
    return Step("replace_partitions", rows=writer.rows(4))


def delete(writer: Writer) -> Step:
    return Step("delete", where=writer.condition(wide=0.08), mode=writer.pick((None, *DELETE_MODES)))


def update(writer: Writer) -> Step:
    mode = writer.pick((None, *DELETE_MODES))
    return Step("update", set=writer.assignments(), where=writer.condition(wide=0.2), mode=mode)


def upsert(writer: Writer) -> Step:
    return Step("upsert", rows=writer.keyed_rows(3), mode=writer.pick(UPSERT_MODES))


def compact(writer: Writer) -> Step:
    return Step("compact", where=("=", "p", writer.pick(PARTITIONS)) if writer.happens(0.3) else None)


def add_column(writer: Writer) -> Step:
    if writer.happens(0.5):
        return Step("add_column", name=writer.pick(COLUMNS), value="bigint")
    return Step("add_column", name=writer.pick(DISPUTED), value=writer.pick(("int", "string")))


def set_properties(writer: Writer) -> Step:
    return Step("set_properties", name=writer.pick(PROPERTIES), value=writer.id)


Verb = Callable[[Writer], Step]
ROW_VERBS: dict[Verb, int] = {
    append: 22,
    overwrite: 8,
    replace_partitions: 6,
    delete: 12,
    update: 18,
    upsert: 14,
    compact: 8,
}
VERBS: dict[Verb, int] = {**ROW_VERBS, add_column: 2, set_properties: 2}


# Transactions


def delayed(writer: Writer) -> Program:
    """One verb whose commit is delayed: other commits land between its base and its commit."""
    yield _drawn(writer, ROW_VERBS)(writer)


def several_writes(writer: Writer) -> Program:
    for _ in range(writer.chance.randint(2, 3)):
        yield _drawn(writer, ROW_VERBS)(writer)


def transfer(writer: Writer) -> Program:
    """Move an amount from one key to another, as new values computed from the rows that were read."""
    source, target = writer.chance.sample(range(KEYS), 2)
    rows = yield Step("scan", where=("in", "k", sorted((source, target))))
    amount, mode = writer.chance.randint(1, 9), writer.pick(DELETE_MODES)
    for key, change in ((source, -amount), (target, amount)):
        values = {row.get("v") for row in rows if row["k"] == key}
        if len(values) == 1 and (value := values.pop()) is not None:
            set_: dict[str, Assignment] = {"v": ("value", value + change), "note": ("value", writer.id)}
            yield Step("update", set=set_, where=("=", "k", key), mode=mode)


def next_number(writer: Writer) -> Program:
    """Two of these at once must not draw the same number: a read of what is not there yet."""
    partition = writer.pick(PARTITIONS)
    rows = yield Step("scan", where=("=", "p", partition))
    highest = max((row["v"] for row in rows if row.get("v") is not None), default=0)
    yield Step("append", rows=(writer.row(p=partition, v=highest % 1000 + 1),))


def insert_if_absent(writer: Writer) -> Program:
    key = writer.chance.randrange(KEYS)
    rows = yield Step("scan", where=("=", "k", key))
    if rows:
        yield Step("update", set={"v": ("plus", "v", 1)}, where=("=", "k", key), mode=writer.pick(DELETE_MODES))
    else:
        yield Step("append", rows=(writer.row(k=key),))


def delete_smallest(writer: Writer) -> Program:
    rows = yield Step("scan", where=writer.condition(wide=0.5))
    if rows:
        smallest = min(rows, key=lambda row: (row.get("v") or 0, row["k"], row["p"]))
        where: Condition = ("and", ("=", "k", smallest["k"]), ("=", "p", smallest["p"]))
        yield Step("delete", where=where, mode=writer.pick(DELETE_MODES))


def write_elsewhere(writer: Writer) -> Program:
    """Read one partition, write another: two of these crosswise are a write skew."""
    read, written = writer.chance.sample(PARTITIONS, 2)
    rows = yield Step("scan", where=("=", "p", read))
    total = sum(row.get("v") or 0 for row in rows)
    if total % 2:
        yield Step("append", rows=(writer.row(p=written, v=total % 100),))
    else:
        where: Condition = ("and", ("=", "p", written), ("<", "v", total % 50))
        yield Step("delete", where=where, mode=writer.pick(DELETE_MODES))


def upsert_what_was_read(writer: Writer) -> Program:
    rows = yield Step("scan", where=writer.narrow())
    changed = {writer.layout.key(row): {**row, "v": (row.get("v") or 0) + 1, "note": writer.id} for row in rows}
    if changed:
        yield Step("upsert", rows=tuple(changed.values()), mode=writer.pick(UPSERT_MODES))


def read_own_writes(writer: Writer) -> Program:
    yield append(writer)
    where = writer.narrow()
    rows = yield Step("scan", where=where)
    yield Step("update", set={"v": ("value", len(rows))}, where=where, mode=writer.pick(DELETE_MODES))
    yield Step("scan", where=where)
    yield delete(writer)


def audit(writer: Writer) -> Program:
    """Only reads: all of them must come from one state of the table."""
    yield Step("scan", where=writer.wide())
    yield Step("scan", where=writer.narrow())


Transaction = Callable[[Writer], Program]
TRANSACTIONS: dict[Transaction, int] = {
    several_writes: 6,
    transfer: 6,
    next_number: 4,
    insert_if_absent: 4,
    delete_smallest: 4,
    write_elsewhere: 4,
    upsert_what_was_read: 4,
    read_own_writes: 3,
    audit: 2,
}


@dataclass(frozen=True)
class Drawn:
    """What a writer does next: one verb called on the table itself, or a transaction."""

    single: Step | None = None
    program: Program | None = None


def draw(writer: Writer, *, delays: bool) -> Drawn:
    """``delays``: also hold back single verbs, where nothing else puts commits between a base and its commit."""
    if writer.happens(0.35):
        return Drawn(program=_drawn(writer, TRANSACTIONS)(writer))
    if delays and writer.happens(0.6):
        return Drawn(program=delayed(writer))
    return Drawn(single=_drawn(writer, VERBS)(writer))


def seen(step: Step, rows: list[Row]) -> Step:
    return replace(step, seen=tuple(rows))


def _drawn(writer: Writer, options: dict[Any, int]) -> Any:
    return writer.chance.choices(list(options), weights=list(options.values()))[0]

"""The sequential model: what each verb does to a list of rows. Written without the engine, to judge it."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = Mapping[str, Any]
"""A column that is absent is null, so that rows from before and after a new column compare."""
State = tuple[Row, ...]
Condition = Sequence[Any]
"""``("=", column, value)``, ``("in", column, values)``, ``("null", column)``, ``("true",)``, and/or/not of those."""
Assignment = Sequence[Any]
"""``("value", x)`` or ``("plus", column, n)``."""
Frozen = tuple[tuple[str, Any], ...]

WITHOUT_ROWS = frozenset({"add_column", "set_properties"})
"""Verbs that make no snapshot."""
REDOABLE = frozenset({"overwrite", "replace_partitions", "delete", "update", "upsert", "compact"})
"""Verbs that can be evaluated again; of upserts, those that look at the table."""

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "<>": operator.ne,
}


@dataclass(frozen=True)
class Layout:
    """How the table is cut: by the column ``p``, by ranges of ``k``, or not at all; and which columns are its keys."""

    partition_by: str
    keys: tuple[str, ...]

    def partition(self, row: Row) -> Any:
        if self.partition_by == "p":
            return row["p"]
        if self.partition_by == "truncate(4, k)":
            return row["k"] // 4
        raise ValueError(f"the model knows no partitioning {self.partition_by!r}")

    def key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.keys)


LAYOUTS = (
    Layout("p", ("k",)),
    Layout("p", ("p", "k")),
    Layout("truncate(4, k)", ("k",)),
    Layout("", ("k",)),
)


@dataclass(frozen=True)
class Step:
    """One call: a verb with its arguments; for a scan also the rows it returned."""

    verb: str
    rows: tuple[Row, ...] = ()
    where: Condition | None = None
    set: Mapping[str, Assignment] = field(default_factory=dict)
    mode: str | None = None
    """None: the table's default."""
    name: str = ""
    """A column's or a property's."""
    value: str = ""
    """A column's type or a property's value."""
    seen: tuple[Row, ...] | None = None
    """None: no scan, or one that has not run."""

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Step:
        seen = raw["seen"]
        return Step(**{**raw, "rows": tuple(raw["rows"]), "seen": None if seen is None else tuple(seen)})

    def __str__(self) -> str:
        arguments = [
            *([_rows_text(self.rows)] if self.rows else []),
            *([repr(self.name), repr(self.value)] if self.name else []),
            *([f"set={ {name: assignment_sql(each) for name, each in self.set.items()} }"] if self.set else []),
            *([f"where={condition_sql(self.where)!r}"] if self.where is not None else []),
            *([f"mode={self.mode!r}"] if self.mode else []),
        ]
        read = "" if self.seen is None else f" -> {_rows_text(self.seen)}"
        return f"{self.verb}({', '.join(arguments)}){read}"


@dataclass(frozen=True)
class Effect:
    """The rows after a step, and how many it touched."""

    state: State
    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    @property
    def touches_nothing(self) -> bool:
        return not (self.inserted or self.updated or self.deleted)


def holds(condition: Condition, row: Row) -> bool | None:
    """SQL's answer, with None for unknown."""
    kind, *parts = condition
    match kind:
        case "true":
            return True
        case "null":
            return row.get(parts[0]) is None
        case "and":
            return _all(holds(each, row) for each in parts)
        case "or":
            negated = _all(_not(holds(each, row)) for each in parts)
            return _not(negated)
        case "not":
            return _not(holds(parts[0], row))
        case "in":
            value = row.get(parts[0])
            return None if value is None else value in parts[1]
        case _:
            value = row.get(parts[0])
            return None if value is None else _COMPARE[kind](value, parts[1])


def selected(state: Iterable[Row], condition: Condition) -> State:
    return tuple(row for row in state if holds(condition, row) is True)


def apply(state: State, step: Step, layout: Layout) -> Effect:
    """What a step does to rows, were it alone in the world."""
    match step.verb:
        case "append":
            return Effect((*state, *step.rows), inserted=len(step.rows))
        case "delete" | "overwrite":
            condition = step.where
            assert condition is not None
            return _exchanged(state, lambda row: holds(condition, row) is True, step.rows)
        case "replace_partitions":
            replaced = {layout.partition(row) for row in step.rows}
            return _exchanged(state, lambda row: layout.partition(row) in replaced, step.rows)
        case "update":
            return _updated(state, step)
        case "upsert":
            return _upserted(state, step, layout)
        case "scan" | "compact" | "add_column" | "set_properties":
            return Effect(state)
        case _:
            raise ValueError(f"the model knows no verb {step.verb!r}")


def looked_at(state: State, step: Step, layout: Layout) -> State:
    """The rows on which a step's meaning depends."""
    match step.verb:
        case "scan" | "delete" | "update" | "overwrite":
            return selected(state, step.where or ("true",))
        case "replace_partitions":
            replaced = {layout.partition(row) for row in step.rows}
            return tuple(row for row in state if layout.partition(row) in replaced)
        case "upsert" if step.mode != "equality":
            keys = {layout.key(row) for row in step.rows}
            return tuple(row for row in state if layout.key(row) in keys)
        case _:
            return ()


def frozen(row: Row) -> Frozen:
    """A row as a value that counts: nulls left out, columns in order."""
    return tuple(sorted((name, value) for name, value in row.items() if value is not None))


def counted(rows: Iterable[Row]) -> Counter[Frozen]:
    return Counter(map(frozen, rows))


def condition_sql(condition: Condition) -> str:
    kind, *parts = condition
    match kind:
        case "true":
            return "true"
        case "null":
            return f"{parts[0]} is null"
        case "and" | "or":
            return "(" + f" {kind} ".join(map(condition_sql, parts)) + ")"
        case "not":
            return f"not ({condition_sql(parts[0])})"
        case "in":
            return f"{parts[0]} in ({', '.join(map(_literal, parts[1]))})"
        case _:
            return f"{parts[0]} {kind} {_literal(parts[1])}"


def assignment_sql(assignment: Assignment) -> str:
    kind, *parts = assignment
    return _literal(parts[0]) if kind == "value" else f"{parts[0]} + {parts[1]}"


def _literal(value: Any) -> str:
    if value is None:
        return "null"
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def _not(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def _all(answers: Iterable[bool | None]) -> bool | None:
    found = list(answers)
    if False in found:
        return False
    return None if None in found else True


def _exchanged(state: State, goes: Callable[[Row], bool], rows: State) -> Effect:
    kept = tuple(row for row in state if not goes(row))
    return Effect((*kept, *rows), inserted=len(rows), deleted=len(state) - len(kept))


def _updated(state: State, step: Step) -> Effect:
    assert step.where is not None
    changed = 0
    rows: list[Row] = []
    for row in state:
        if holds(step.where, row) is True:
            changed += 1
            row = {**row, **{name: _assigned(each, row) for name, each in step.set.items()}}
        rows.append(row)
    return Effect(tuple(rows), updated=changed)


def _assigned(assignment: Assignment, row: Row) -> Any:
    kind, *parts = assignment
    if kind == "value":
        return parts[0]
    value = row.get(parts[0])
    return None if value is None else value + parts[1]


def _upserted(state: State, step: Step, layout: Layout) -> Effect:
    keys = {layout.key(row) for row in step.rows}
    kept = tuple(row for row in state if layout.key(row) not in keys)
    after = (*kept, *step.rows)
    if step.mode == "equality":
        # The old rows are never read, so their number is unknown.
        return Effect(after, inserted=len(step.rows))
    met = {layout.key(row) for row in state} & keys
    gone = len(state) - len(kept)
    return Effect(after, inserted=len(step.rows) - len(met), updated=len(met), deleted=gone - len(met))


def _rows_text(rows: Sequence[Row]) -> str:
    return "[" + ", ".join(row_text(row) for row in rows) + "]"


def row_text(row: Row) -> str:
    return "{" + " ".join(f"{name}={value}" for name, value in frozen(row)) + "}"

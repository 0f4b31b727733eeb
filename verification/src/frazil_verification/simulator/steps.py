"""The sequential model: one call of a verb as data, its effect on rows, and the call itself.

The model has no files, snapshots or conflicts: it gives the rows after the same calls in sequence.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa

from frazil.commit.retry import Retry
from frazil.model import Commit
from frazil.table.handle import TableHandle
from frazil.table.options import WriteOptions
from frazil.table.table import Table

Row = Mapping[str, Any]
"""Null columns are left out, so that rows from before and after a new column compare."""
State = tuple[Row, ...]
Condition = tuple[tuple[str, str, Any], ...]
"""All of (column, operator, value); none: every row."""
Frozen = tuple[tuple[str, Any], ...]

SCHEMA = "id bigint not null, p string not null, v bigint not null, note string"
_ARROW = {"id": pa.int64(), "p": pa.string(), "v": pa.int64(), "note": pa.string()}
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    ">=": operator.ge,
    "in": lambda value, values: value in values,
}
ROW_VERBS = frozenset({"append", "overwrite", "delete", "update", "upsert", "compact", "cherry_pick", "stream"})
"""Verbs that make a snapshot; the other verbs change schema, properties or refs."""
REDOABLE = frozenset({"overwrite", "delete", "update", "upsert", "compact"})
"""Statements that are evaluated again when they meet a conflict; of upserts, those that look at the table."""
OLD_MS = 500
"""Snapshots may expire when they are older than this."""


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a verb."""

    verb: str
    rows: tuple[Row, ...] = ()
    where: Condition = ()
    set: Mapping[str, int | str] = field(default_factory=dict)
    """Column → its new value, or a number to be added to ``v`` where the column is ``+v``."""
    mode: str | None = None
    isolation: str | None = None
    on_conflict: str | None = None
    """None: the default, which is to evaluate the statement again."""
    branch: str = "main"
    name: str = ""
    """Of a column, a property, a branch or a stream."""
    value: Any = None
    """Of a property; terms of a partitioning; the snapshot that a branch moves to; a stream's batch."""

    def __str__(self) -> str:
        parts = [
            *([f"{len(self.rows)} rows"] if self.rows else []),
            *([f"where {condition_sql(self.where)}"] if self.verb in ("delete", "update", "overwrite") else []),
            *([f"set {dict(self.set)}"] if self.set else []),
            *([self.mode] if self.mode else []),
            *([f"at {self.isolation}"] if self.isolation else []),
            *([f"on conflict {self.on_conflict}"] if self.on_conflict else []),
            *([f"on {self.branch}"] if self.branch != "main" else []),
            *([self.name] if self.name else []),
            *([str(self.value)] if self.value is not None else []),
        ]
        return f"{self.verb}({', '.join(parts)})"


def holds(condition: Condition, row: Row) -> bool:
    return all(_COMPARE[sign](row[column], value) for column, sign, value in condition)


def selected(state: Iterable[Row], condition: Condition) -> State:
    return tuple(row for row in state if holds(condition, row))


def apply(state: State, step: Step) -> State:
    """The rows after a step."""
    match step.verb:
        case "append" | "cherry_pick" | "stream":
            return (*state, *step.rows)
        case "delete" | "overwrite":
            return (*(row for row in state if not holds(step.where, row)), *step.rows)
        case "update":
            return tuple(_changed(row, step.set) if holds(step.where, row) else row for row in state)
        case "upsert":
            keys = {row["id"] for row in step.rows}
            return (*(row for row in state if row["id"] not in keys), *step.rows)
        case _:
            return state


def _changed(row: Row, assigned: Mapping[str, int | str]) -> Row:
    new = dict(row)
    for column, value in assigned.items():
        if column == "+v":
            new["v"] = row["v"] + value
        else:
            new[column] = value
    return new


def frozen(row: Row) -> Frozen:
    return tuple(sorted((name, value) for name, value in row.items() if value is not None))


def counted(rows: Iterable[Row]) -> Counter[Frozen]:
    return Counter(map(frozen, rows))


def projected(rows: Iterable[Row], columns: Collection[str]) -> State:
    """The rows with these columns only: other columns are no longer readable."""
    return tuple({name: value for name, value in row.items() if name in columns} for row in rows)


def condition_sql(condition: Condition) -> str:
    def one(column: str, sign: str, value: Any) -> str:
        if sign == "in":
            return f"{column} in ({', '.join(map(_literal, value))})"
        return f"{column} {sign} {_literal(value)}"

    return " and ".join(one(*each) for each in condition) or "true"


def _literal(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def arrow(rows: Iterable[Row]) -> pa.Table:
    """The rows as an Arrow table. Columns that were added later are numbers."""
    given = list(rows)
    extra = sorted({name for row in given for name in row} - _ARROW.keys())
    types = {**_ARROW, **dict.fromkeys(extra, pa.int64())}
    return pa.table({name: pa.array([row.get(name) for row in given], kind) for name, kind in types.items()})


def call(table: TableHandle, step: Step, options: WriteOptions) -> Commit:
    """The step as a call of the public interface."""
    where, mode = condition_sql(step.where), cast("Any", step.mode)
    match step.verb:
        case "append":
            return table.append(arrow(step.rows), **options)
        case "overwrite":
            return table.overwrite(arrow(step.rows), where, **options)
        case "delete":
            return table.delete(where, mode=mode, **options)
        case "update":
            return table.update(_assignments(step.set), where, mode=mode, **options)
        case "upsert":
            return table.upsert(arrow(step.rows), mode=mode, **options)
        case "compact":
            fewer: WriteOptions = {**options, "options": {"min-input-files": "2"}}
            return table.compact(where if step.where else None, **fewer)
        case "cherry_pick":
            return table.cherry_pick(step.value, **options)
        case _:
            return _change(table, step, options.get("retry"), options.get("commit_id"))


def _change(table: TableHandle, step: Step, retry: Retry | None, commit_id: str | None) -> Commit:
    match step.verb:
        case "add_column":
            return table.add_column(step.name, "bigint", retry=retry, commit_id=commit_id)
        case "drop_column":
            return table.drop_column(step.name, retry=retry, commit_id=commit_id)
        case "set_partitioning":
            return table.set_partitioning(step.value, retry=retry, commit_id=commit_id)
        case "set_properties":
            return table.set_properties({step.name: step.value}, retry=retry, commit_id=commit_id)
        case "create_branch":
            return table.create_branch(step.name, retry=retry, commit_id=commit_id)
        case "fast_forward":
            return table.fast_forward(step.branch, step.name, retry=retry, commit_id=commit_id)
        case "rollback_to":
            return table.rollback_to(step.value, retry=retry, commit_id=commit_id)
        case "expire_snapshots":
            older_than, retain_last = step.value
            # Its files stay: what a simulated reader has pinned is not known to the catalog.
            return table.expire_snapshots(older_than, retain_last, delete_files=False, retry=retry, commit_id=commit_id)
        case _:
            raise ValueError(f"there is no verb {step.verb!r}")


def stream(table: Table, step: Step, options: WriteOptions) -> Commit | None:
    """One batch of a stream. None: it was written before."""
    return table.stream_sink(step.name, **options)(arrow(step.rows), step.value)


def _assignments(assigned: Mapping[str, int | str]) -> dict[str, object]:
    return {
        "v" if column == "+v" else column: f"v + {value}" if column == "+v" else _literal(value)
        for column, value in assigned.items()
    }

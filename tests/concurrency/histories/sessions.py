"""Runs one program on a lake and records its calls, reads and outcomes."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import frazil
from concurrency.histories.model import Layout, Row, Step, assignment_sql, condition_sql
from concurrency.histories.programs import COLUMNS, Writer, draw, seen
from concurrency.histories.records import Record, Remains, Version

DDL = "k bigint not null, p string not null, v bigint, note string"
TABLE = "ns.t"


Clock = Callable[[], float]


def create_table(lake: frazil.Lake, layout: Layout) -> None:
    lake.create_namespace("ns")
    lake.create_table(
        TABLE, DDL, partition_by=[layout.partition_by] if layout.partition_by else [], keys=list(layout.keys)
    )


def rows_of(table: Any) -> list[Row]:
    """Arrow rows as the model holds them."""
    rows: list[Row] = table.to_pylist()
    return rows


class Session:
    """A program in progress. ``advance()`` takes it one step further; the last one commits and returns the record."""

    def __init__(
        self,
        lake: frazil.Lake,
        layout: Layout,
        seed: str,
        clock: Clock,
        *,
        delays: bool,
        about_to_commit: Callable[[Record], None] = lambda _record: None,
    ) -> None:
        self.id = seed
        self._lake = lake
        self._clock = clock
        self._started = clock()
        self._about_to_commit = about_to_commit
        names = lake.table(TABLE).schema.column_names
        columns = tuple(name for name in COLUMNS if name in names)
        self._drawn = draw(Writer(random.Random(seed), seed, layout, columns), delays=delays)
        self.steps: tuple[Step, ...] = ()
        self._tx: Any = None
        self._next = next(self._drawn.program, None) if self._drawn.program is not None else None

    def advance(self) -> Record | None:
        """None: there is more to do."""
        try:
            return self._advance()
        except frazil.ConflictError as error:
            return self._ended("conflict", error, checks=tuple(dict.fromkeys(each.check for each in error.conflicts)))
        except frazil.RetriesExhausted as error:
            return self._ended("exhausted", error)
        except frazil.CommitUnknown as error:
            return self._ended("unknown", error)
        except Exception as error:
            refused = isinstance(error, frazil.InvalidInput) and self.steps[0].verb == "add_column"
            return self._ended("refused" if refused else "crashed", error)

    def run(self) -> Record:
        while (record := self.advance()) is None:
            pass
        return record

    def abandon(self) -> None:
        if self._tx is not None:
            self._tx.rollback()

    def _advance(self) -> Record | None:
        if self._drawn.single is not None:
            self.steps = (self._drawn.single,)
            self._about_to_commit(self._record("unknown", finished=float("inf")))
            done = perform(self._lake.table(TABLE), self._drawn.single, commit_id=self.id)
            return self._committed(done)
        if self._tx is None:
            self._tx = self._lake.transaction(commit_id=self.id)
        if self._next is not None:
            self._step(self._next)
            return None
        return self._commit()

    def _step(self, step: Step) -> None:
        assert self._drawn.program is not None
        self.steps = (*self.steps, step)
        answer = perform(self._tx.table(TABLE), step)
        rows: list[Row] = []
        if step.verb == "scan":
            rows = answer
            self.steps = (*self.steps[:-1], seen(step, rows))
        try:
            self._next = self._drawn.program.send(rows)
        except StopIteration:
            self._next = None

    def _commit(self) -> Record:
        if all(step.verb == "scan" for step in self.steps):
            self._tx.rollback()
            return self._record("abandoned")
        self._about_to_commit(self._record("unknown", finished=float("inf")))
        return self._committed(self._tx.commit())

    def _committed(self, done: Any) -> Record:
        return replace(
            self._record("committed" if done.changed else "unchanged"),
            snapshot_id=done.snapshot_id if done.changed else None,
            group_index=done.group_index,
            inserted=done.rows_inserted,
            updated=done.rows_updated,
            deleted=done.rows_deleted,
            redone=done.redone,
        )

    def _ended(self, outcome: str, error: Exception, checks: tuple[str, ...] = ()) -> Record:
        detail = "".join(traceback.format_exception(error)) if outcome == "crashed" else str(error)
        self.abandon()
        return replace(self._record(outcome), checks=checks, detail=detail)

    def _record(self, outcome: str, finished: float | None = None) -> Record:
        return Record(
            id=self.id,
            steps=self.steps,
            outcome=outcome,
            started=self._started,
            finished=self._clock() if finished is None else finished,
            transaction=self._drawn.program is not None,
        )


def perform(table: Any, step: Step, **options: Any) -> Any:
    """Call a step's verb on a table, or on a transaction's table."""
    where = condition_sql(step.where) if step.where is not None else None
    mode = {} if step.mode is None else {"mode": step.mode}
    match step.verb:
        case "scan":
            return rows_of(table.scan(where=where).to_arrow())
        case "append" | "replace_partitions":
            return getattr(table, step.verb)(list(step.rows), **options)
        case "upsert":
            return table.upsert(list(step.rows), **mode, **options)
        case "overwrite":
            return table.overwrite(list(step.rows), where=where, **options)
        case "delete":
            return table.delete(where, **mode, **options)
        case "update":
            assignments = {name: assignment_sql(each) for name, each in step.set.items()}
            return table.update(set=assignments, where=where, **mode, **options)
        case "compact":
            return table.compact(where=where, **options)
        case "add_column":
            return table.add_column(step.name, step.value, **options)
        case "set_properties":
            return table.set_properties({step.name: step.value}, **options)
        case _:
            raise ValueError(f"no verb {step.verb!r}")


def remains(lake: frazil.Lake) -> Remains:
    """What is left of the table, for the replay to judge."""
    table = lake.table(TABLE)
    words = {"long": "bigint"}
    return Remains(
        versions=[
            Version(each.snapshot_id, each.summary.get("frazil.commit-id", ""))
            for each in table.history()
            if each.is_current_ancestor
        ],
        read=lambda snapshot_id: rows_of(table.scan(snapshot=snapshot_id).to_arrow()),
        columns={each.name: words.get(str(each.field_type), str(each.field_type)) for each in table.schema.fields},
        properties=table.properties,
    )

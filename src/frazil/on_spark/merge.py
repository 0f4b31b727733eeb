"""MERGE on Spark.

    source ─▶ materialised once (P34) ─▶ its keys prune the table's files ─▶ join ─▶ one row for each match
    ─▶ which clause, which values ─▶ materialised ─▶ new rows written, old rows marked or left out of copies

The source is run once and the join is run once: everything after that reads what they gave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import pyarrow as pa
from pyiceberg.types import NestedField

from frazil.commit.operations import Kind, Read, RowCounts, Write
from frazil.dml.assignments import is_column
from frazil.dml.merge import Clause, Merge, Source, When
from frazil.dml.merge_binding import BoundMerge, repeated
from frazil.dml.view import Mode, Settings, View
from frazil.expr import Column, parse_filter
from frazil.on_spark.columns import SparkColumn, condition
from frazil.on_spark.keys import MOST_KEYS, range_read, read_of
from frazil.on_spark.scan import FILE, POSITION
from frazil.on_spark.session import Frame, Session, materialised, translated
from frazil.on_spark.types import frame_schema, spark_type
from frazil.on_spark.values import new_value, replaced
from frazil.on_spark.write_builder import SparkWriteBuilder
from frazil.read.plan import FileTask

ROW, CLAUSE = "__frazil_source", "__frazil_clause"
_BROADCAST_ROWS = 2_000_000


def merge(spark: Session, view: View, source: Source, plan: Merge, settings: Settings, mode: Mode) -> Write:
    """Join source and table, and apply the merge's clauses."""
    given: Frame = source.rows
    merging = _MergeRun(spark, view, given, plan)
    with SparkWriteBuilder(spark, view, settings) as builder, translated(f"merge into {view.table}"):
        if source.held is None:
            source.held = materialised(given.withColumn(ROW, merging.row_number()))
        return merging.run(builder, mode, *source.held)


def explain(spark: Session, view: View, source: Frame, plan: Merge) -> str:
    """How the merge would be run, without running more than its source's keys."""
    return _MergeRun(spark, view, source, plan).explain()


class _MergeRun:
    def __init__(self, spark: Session, view: View, source: Frame, plan: Merge) -> None:
        from pyspark.sql import functions

        self._f: Any = functions
        self._spark = spark
        self._view = view
        self._plan = plan
        self._given = source
        self._bound = BoundMerge.of(plan, view.schema, frame_schema(source))
        # All errors are found before a job runs.
        self._bound.check_clauses()
        for clause in plan.clauses:
            if clause.action != "delete":
                self._values(clause)

    def _values(self, clause: Clause) -> list[tuple[tuple[NestedField, ...], Any]]:
        """For each column that the clause sets, where it is and what it gets."""
        bound, sensitive = self._bound, self._plan.case_sensitive
        return [
            (path, new_value(each, path, bound.both, sensitive, bound.scopes(clause)))
            for path, each in bound.assignments(clause)
        ]

    # Running

    def row_number(self) -> SparkColumn:
        return self._f.monotonically_increasing_id()

    def run(self, builder: SparkWriteBuilder, mode: Mode, made: Frame, count: int) -> Write:
        """``made``: the source's rows with their numbers in ROW."""
        f, plan = self._f, self._plan
        source = made.alias(plan.source_alias)
        read = self._keys_read(source, count)
        tasks = self._tasks(read)
        reads = [read]
        by_source = plan.of("not matched by source")
        if by_source:
            everything = parse_filter(None, self._view.schema)
            reads, tasks = [Read(everything)], self._view.tasks(everything)
        given = f.broadcast(source) if count <= _BROADCAST_ROWS else source
        changed: list[Frame] = []
        met, changes = None, 0
        if tasks and count and self._bound.needs_matches:
            met, changes = materialised(self._matches(builder, given, tasks))
            changed.append(met.where(f.col(CLAUSE).isNotNull()))
        added = self._inserted(source, met, changes) if plan.of("not matched") and count else None
        if by_source and tasks:
            unmet, others = materialised(self._unmet(builder, given, tasks))
            changed.append(unmet)
            changes += others
        few = self._collect_few(builder, tasks, changed, changes, met)
        return self._finish(builder, tasks, changed, added, tuple(reads), mode, few)

    def _collect_few(
        self,
        builder: SparkWriteBuilder,
        tasks: Sequence[FileTask],
        changed: list[Frame],
        changes: int,
        met: Frame | None,
    ) -> pa.Table | None:
        """The changed positions with their clauses, if they are few. Raises InvalidInput for a row matched twice."""
        if not changed:
            return None
        few = builder.few(_union([each.select(FILE, POSITION, CLAUSE) for each in changed]), tasks, changes)
        if few is None:
            self._refuse_repeated_targets(met)
        elif few.group_by([FILE, POSITION]).aggregate([]).num_rows < few.num_rows:
            self._refuse_repeated_targets(met)
            few = few.group_by([FILE, POSITION]).aggregate([(CLAUSE, "min")]).rename_columns([FILE, POSITION, CLAUSE])
        return few

    def _finish(
        self,
        builder: SparkWriteBuilder,
        tasks: Sequence[FileTask],
        changed: list[Frame],
        added: Frame | None,
        reads: tuple[Read, ...],
        mode: Mode,
        few: pa.Table | None,
    ) -> Write:
        f = self._f
        updates = [index for index, each in enumerate(self._plan.clauses) if each.action == "update"]
        names = [f"`{field.name}`" for field in self._view.schema.fields]
        new_rows = [each.where(f.col(CLAUSE).isin(updates)).select(*names) for each in changed] if updates else []
        if added is not None:
            new_rows.append(added)
        staged = builder.add_frame(_union(new_rows)) if new_rows else None
        written = 0 if staged is None else staged.rows
        taken = updated = 0
        if changed:
            rows = _union([each.select(FILE, POSITION, CLAUSE) for each in changed])
            counted = _counted(rows, few)
            updated = sum(counted.get(index, 0) for index in updates)
            taken = sum(counted.values())
        if taken:
            # Had another writer deleted the row first, the merge might have inserted one instead.
            moved = bool(updates) or added is not None
            builder.delete_positions(tasks, rows.select(FILE, POSITION), mode, moved=moved, few=few)
        counts = RowCounts(inserted=written - updated, updated=updated, deleted=taken - updated)
        return builder.build(Kind.MERGE, counts, reads=reads)

    def _keys_read(self, source: Frame, count: int) -> Read:
        """The read of the merge: which rows of the table it depends on."""
        pairs = self._bound.pairs
        if not pairs:
            return Read(parse_filter(None, self._view.schema))
        kinds = [spark_type(self._view.schema.find_type(pair.field_id)) for pair in pairs]
        columns = [self._column(pair.source).try_cast(kind) for pair, kind in zip(pairs, kinds, strict=True)]
        keys = source.select(*(each.alias(f"__frazil_key{number}") for number, each in enumerate(columns)))
        field_ids = tuple(pair.field_id for pair in pairs)
        if count <= MOST_KEYS:
            # NULL equals nothing, so rows with a NULL key match no row.
            return read_of(keys.toArrow().drop_null(), field_ids, self._view)
        named = [self._f.col(name).isNotNull() for name in keys.columns]
        return range_read(keys.where(reduce(lambda a, b: a & b, named)), field_ids, self._view)

    def _tasks(self, read: Read) -> tuple[FileTask, ...]:
        """The files that may hold a row with one of the keys. Rows are compared by the join alone."""
        return tuple(replace(task, residual=None) for task in self._view.tasks(read.where))

    def _target(self, builder: SparkWriteBuilder, tasks: Sequence[FileTask]) -> Frame:
        return builder.rows(tasks, self._view.schema).alias(self._plan.target_alias)

    @property
    def _joined_on(self) -> SparkColumn:
        if self._bound.on is None:
            return self._plan.on
        return condition(self._bound.on, self._column)

    def _matches(self, builder: SparkWriteBuilder, given: Frame, tasks: Sequence[FileTask]) -> Frame:
        """One row per match: the position of the table's row, the clause that applies, the new values."""
        met = self._target(builder, tasks).join(given, self._joined_on, "inner")
        return self._decided(met, "matched", keep=ROW)

    def _unmet(self, builder: SparkWriteBuilder, given: Frame, tasks: Sequence[FileTask]) -> Frame:
        alone = self._target(builder, tasks).join(given, self._joined_on, "left_anti")
        decided = self._decided(alone, "not matched by source")
        return decided.where(self._f.col(CLAUSE).isNotNull())

    def _decided(self, rows: Frame, when: When, keep: str | None = None) -> Frame:
        """FILE, POSITION, CLAUSE, and the columns as the clause leaves them."""
        alias = self._plan.target_alias
        old = {field.name: self._f.col(f"`{alias}`.`{field.name}`") for field in self._view.schema.fields}
        chosen, new = self._by_clause(rows, when, old)
        kept = [keep] if keep is not None else []
        return chosen.select(FILE, POSITION, CLAUSE, *kept, *(column.alias(name) for name, column in new.items()))

    def _by_clause(
        self, rows: Frame, when: When, columns: Mapping[str, SparkColumn]
    ) -> tuple[Frame, dict[str, SparkColumn]]:
        """The rows with the number of the clause that takes each, and the columns with what that clause sets."""
        f, at, found = self._f, self._column, dict(columns)
        numbered = [(index, each) for index, each in enumerate(self._plan.clauses) if each.when == when]
        clause = f.lit(None).cast("int")
        for index, each in reversed(numbered):
            clause = f.when(self._condition_column(each, at), f.lit(index)).otherwise(clause)
        for index, each in numbered:
            for path, make in self._values(each) if each.action != "delete" else ():
                top, kind = path[0].name, spark_type(path[0].field_type)
                value = replaced(found[top], path, make(at)).cast(kind)
                found[top] = f.when(f.col(CLAUSE) == index, value).otherwise(found[top])
        # The clause is computed first, so that each value depends on an integer and not on the condition.
        return rows.select("*", clause.alias(CLAUSE)), found

    def _condition_column(self, clause: Clause, at: Any) -> SparkColumn:
        if clause.condition is None:
            return self._f.lit(True)
        if is_column(clause.condition):
            return clause.condition
        return condition(self._bound.condition(clause), at)

    def _inserted(self, source: Frame, met: Frame | None, count: int) -> Frame:
        """The rows to insert for source rows without a match."""
        f = self._f
        alone = source
        if met is not None:
            rows = met.select(f.col(ROW).alias("__frazil_met"))
            rows = f.broadcast(rows) if count <= _BROADCAST_ROWS else rows
            alone = source.join(rows, source[ROW] == rows["__frazil_met"], "left_anti")
        nothing = {each.name: f.lit(None).cast(spark_type(each.field_type)) for each in self._view.schema.fields}
        chosen, new = self._by_clause(alone, "not matched", nothing)
        return chosen.where(f.col(CLAUSE).isNotNull()).select(*(column.alias(name) for name, column in new.items()))

    def _refuse_repeated_targets(self, matches: Frame | None) -> None:
        """Refuse a table row that two source rows would change: their order is undefined."""
        f = self._f
        if matches is None or self._bound.allows_repeats:
            return
        counted = matches.where(f.col(CLAUSE).isNotNull()).groupBy(FILE, POSITION).count().where("count > 1")
        twice = counted.limit(1).collect()
        if twice:
            raise repeated(self._view.table, twice[0]["count"])

    # Columns

    def _column(self, column: Column) -> SparkColumn:
        """Where a column of either side is in a frame that has both by their aliases."""
        names = [self._bound.both.find_field(field_id).name for field_id in column.path]
        found = self._f.col(".".join(f"`{name}`" for name in names))
        # Spark has more integer types than Iceberg.
        return found.cast(spark_type(column.source)) if self._bound.is_source(column) else found

    def explain(self) -> str:
        return self._bound.explain(self._view.table)


def _union(frames: Sequence[Frame]) -> Frame:
    return reduce(lambda one, other: one.unionByName(other), frames)


def _counted(rows: Frame, few: pa.Table | None) -> dict[int, int]:
    """The number of rows per clause."""
    if few is None:
        return {each[CLAUSE]: each["count"] for each in rows.groupBy(CLAUSE).count().collect()}
    counted = few.group_by(CLAUSE).aggregate([([], "count_all")])
    pairs: Any = zip(counted[CLAUSE].to_pylist(), counted["count_all"].to_pylist(), strict=True)
    return dict(pairs)

"""MERGE on Spark.

    source ─▶ materialised once (P34) ─▶ its keys prune the table's files ─▶ join ─▶ one row for each match
    ─▶ which clause, which values ─▶ materialised ─▶ new rows written, old rows marked or left out of copies

The source is run once and the join is run once: everything after that reads what they gave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StructType

from frazil.commit.operations import Kind, Read, RowCounts, Write
from frazil.dml.assignments import check_apart, find_column
from frazil.dml.merge import Clause, Merge, When
from frazil.dml.view import Mode, Settings, View
from frazil.errors import InvalidInput
from frazil.expr import BOOL, Call, Column, Filter, Node, did_you_mean, parse_filter
from frazil.format.schemas import match_name
from frazil.on_spark.columns import SparkColumn, condition
from frazil.on_spark.keys import MOST_KEYS, range_read, read_of
from frazil.on_spark.scan import FILE, POSITION
from frazil.on_spark.session import Frame, Session, materialised, translated
from frazil.on_spark.types import frame_schema, spark_type
from frazil.on_spark.values import is_column, new_value, replaced
from frazil.on_spark.write_builder import SparkWriteBuilder
from frazil.read.plan import FileTask

ROW, CLAUSE = "__frazil_source", "__frazil_clause"
_BROADCAST_ROWS = 2_000_000
_UNSTABLE = (
    "rand",
    "randn",
    "random",
    "randstr",
    "uniform",
    "uuid",
    "shuffle",
    "monotonically_increasing_id",
    "spark_partition_id",
)


def merge(spark: Session, view: View, source: Frame, plan: Merge, settings: Settings, mode: Mode) -> Write:
    """Join source and table, and apply the merge's clauses."""
    merging = _MergeRun(spark, view, source, plan)
    with SparkWriteBuilder(spark, view, settings) as builder, translated(f"merge into {view.table}"):
        return merging.run(builder, mode)


def explain(spark: Session, view: View, source: Frame, plan: Merge) -> str:
    """How the merge would be run, without running more than its source's keys."""
    return _MergeRun(spark, view, source, plan).explain()


@dataclass(frozen=True, slots=True)
class _Pair:
    """``target.a = source.b``: a column of the table by its id, and the source's by name."""

    field_id: int
    source: Column


class _MergeRun:
    def __init__(self, spark: Session, view: View, source: Frame, plan: Merge) -> None:
        from pyspark.sql import functions

        self._f: Any = functions
        self._spark = spark
        self._view = view
        self._plan = plan
        self._both = _both_schemas(view.schema, source, plan)
        self._scopes = (plan.target_alias, plan.source_alias)
        self._source_only = (plan.source_alias,)
        self._target_only = (plan.target_alias,)
        self._given = source
        self._on = self._matching_condition(plan.on)
        self._pairs = [] if self._on is None else _equal_pairs(self._on.condition, self._both, plan)
        # All errors are found before a job runs.
        for clause in plan.clauses:
            self._check_condition(clause)
            if clause.action != "delete":
                self._values(clause)

    # Binding

    def _matching_condition(self, on: object) -> Filter | None:
        """None: a Spark Column, which cannot be analysed."""
        plan = self._plan
        if isinstance(on, str):
            _refuse_unstable(on)
            return parse_filter(on, self._both, case_sensitive=plan.case_sensitive, scopes=self._scopes)
        if is_column(on):
            _refuse_unstable(str(on))
            return None
        if not isinstance(on, Sequence):
            raise InvalidInput(f"on is a condition or a list of column names, not {on!r}")
        text = " and ".join(
            f"`{plan.target_alias}`.{_quoted(each)} = `{plan.source_alias}`.{_quoted(each)}" for each in on
        )
        return parse_filter(text, self._both, case_sensitive=plan.case_sensitive)

    def _check_condition(self, clause: Clause) -> None:
        if clause.condition is None:
            return
        _refuse_unstable(str(clause.condition))
        if not is_column(clause.condition):
            self._condition_filter(clause)

    def _condition_filter(self, clause: Clause) -> Filter:
        scopes = {
            "matched": self._scopes,
            "not matched": self._source_only,
            "not matched by source": self._target_only,
        }[clause.when]
        text: Any = clause.condition
        found = parse_filter(text, self._both, case_sensitive=self._plan.case_sensitive, scopes=scopes)
        for column in found.columns:
            alias = self._both.find_field(column.path[0]).name
            if alias not in scopes:
                raise InvalidInput(
                    f"The condition of '{clause}' names {column.name}, but the clause has no {alias} row",
                    advice=f"Use only columns of {scopes[0]}",
                )
        return found

    def _values(self, clause: Clause) -> list[tuple[tuple[NestedField, ...], Any]]:
        """For each column that the clause sets, where it is and what it gets."""
        plan, schema = self._plan, self._view.schema
        given: Mapping[str, object]
        if clause.values is None:
            given = self._all_columns(clause)
        elif not isinstance(clause.values, Mapping) or not clause.values:
            raise InvalidInput(f"The clause '{clause}' names no column", advice="Write {'n': 'source.n'}")
        else:
            given = {_unqualified(name, plan.target_alias): each for name, each in clause.values.items()}
        scopes = {"matched": self._scopes, "not matched": self._source_only}.get(clause.when, self._target_only)
        found = []
        for name, each in given.items():
            path = find_column(name, schema, plan.case_sensitive)
            found.append((path, new_value(each, path, self._both, plan.case_sensitive, scopes)))
        check_apart([path for path, _ in found])
        return found

    def _all_columns(self, clause: Clause) -> dict[str, object]:
        names = self._given.columns
        left_out = {each.lower() for each in clause.leave_out}
        found: dict[str, object] = {}
        for field in self._view.schema.fields:
            if field.name.lower() in left_out:
                continue
            there = match_name(field.name, names)
            if there is None:
                raise InvalidInput(
                    f"The source lacks the column {field.name!r}, which '{clause}' sets",
                    advice=did_you_mean(field.name, names) or f"Add it, or name it in except_cols=[{field.name!r}]",
                )
            found[f"`{field.name}`"] = f"`{self._plan.source_alias}`.`{there}`"
        return found

    # Running

    def run(self, builder: SparkWriteBuilder, mode: Mode) -> Write:
        f, plan = self._f, self._plan
        made, count = materialised(self._given.withColumn(ROW, f.monotonically_increasing_id()))
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
        if tasks and count and self._needs_matches:
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

    @property
    def _needs_matches(self) -> bool:
        """Whether the clauses depend on which rows match."""
        return bool(self._plan.of("matched") or self._plan.of("not matched"))

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
        if not self._pairs:
            return Read(parse_filter(None, self._view.schema))
        kinds = [spark_type(self._view.schema.find_type(pair.field_id)) for pair in self._pairs]
        columns = [self._column(pair.source).try_cast(kind) for pair, kind in zip(self._pairs, kinds, strict=True)]
        keys = source.select(*(each.alias(f"__frazil_key{number}") for number, each in enumerate(columns)))
        field_ids = tuple(pair.field_id for pair in self._pairs)
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
        if self._on is None:
            return self._plan.on
        return condition(self._on, self._column)

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
        return condition(self._condition_filter(clause), at)

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
        f, clauses = self._f, self._plan.of("matched")
        if (
            matches is None
            or not clauses
            or (len(clauses) == 1 and clauses[0].action == "delete" and clauses[0].condition is None)
        ):
            return
        counted = matches.where(f.col(CLAUSE).isNotNull()).groupBy(FILE, POSITION).count().where("count > 1")
        twice = counted.limit(1).collect()
        if twice:
            raise InvalidInput(
                f"A row of {self._view.table} matches {twice[0]['count']} rows of the source, and a clause would "
                "change it for each of them",
                advice="Keep one source row for each row it matches, or tighten the condition",
            )

    # Columns

    def _column(self, column: Column) -> SparkColumn:
        """Where a column of either side is in a frame that has both by their aliases."""
        names = [self._both.find_field(field_id).name for field_id in column.path]
        found = self._f.col(".".join(f"`{name}`" for name in names))
        # Spark has more integer types than Iceberg.
        return found.cast(spark_type(column.source)) if names[0] == self._plan.source_alias else found

    def explain(self) -> str:
        plan = self._plan
        by_key = ", ".join(str(self._view.schema.find_column_name(pair.field_id)) for pair in self._pairs)
        lines = [
            f"Merge into {self._view.table}",
            f"  on         {plan.on if self._on is None else self._on.text}",
            f"  by key     {by_key or 'none: every row of the table is compared'}",
            *(f"  clause {index}   {each}" for index, each in enumerate(plan.clauses)),
        ]
        return "\n".join(lines)


def _union(frames: Sequence[Frame]) -> Frame:
    return reduce(lambda one, other: one.unionByName(other), frames)


def _counted(rows: Frame, few: pa.Table | None) -> dict[int, int]:
    """The number of rows per clause."""
    if few is None:
        return {each[CLAUSE]: each["count"] for each in rows.groupBy(CLAUSE).count().collect()}
    counted = few.group_by(CLAUSE).aggregate([([], "count_all")])
    pairs: Any = zip(counted[CLAUSE].to_pylist(), counted["count_all"].to_pylist(), strict=True)
    return dict(pairs)


def _both_schemas(target: Schema, source: Frame, plan: Merge) -> Schema:
    """One schema with a struct for each side, named by its alias."""
    given = frame_schema(source, first_id=2_000_000)
    return Schema(
        NestedField(1_999_998, plan.target_alias, StructType(*target.fields), required=False),
        NestedField(1_999_999, plan.source_alias, StructType(*given.fields), required=False),
    )


def _equal_pairs(node: Node, both: Schema, plan: Merge) -> list[_Pair]:
    """The equalities between a column of the table and one of the source that every match fulfils."""
    if isinstance(node, Call) and node.op == "and":
        return [pair for each in node.args for pair in _equal_pairs(each, both, plan)]
    if not (isinstance(node, Call) and node.op == "eq" and node.type == BOOL):
        return []
    left, right = node.args
    if not (isinstance(left, Column) and isinstance(right, Column)):
        return []
    sides = [both.find_field(each.path[0]).name for each in (left, right)]
    if sides == [plan.source_alias, plan.target_alias]:
        left, right = right, left
    elif sides != [plan.target_alias, plan.source_alias]:
        return []
    return [_Pair(left.field_id, right)]


def _quoted(name: str) -> str:
    return name if "`" in name else ".".join(f"`{part}`" for part in name.split("."))


def _unqualified(name: str, alias: str) -> str:
    head, dot, rest = str(name).partition(".")
    return rest if dot and head.strip("`").lower() == alias.lower() else str(name)


def _refuse_unstable(text: str) -> None:
    lowered = text.lower()
    for name in _UNSTABLE:
        at = lowered.find(f"{name}(")
        if at == 0 or (at > 0 and not (lowered[at - 1].isalnum() or lowered[at - 1] == "_")):
            raise InvalidInput(
                f"The condition uses {name}(), which returns a different value each time",
                advice="Compute it in a column of the source, which runs once, and use that column",
            )

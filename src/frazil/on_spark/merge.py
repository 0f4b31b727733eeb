"""MERGE on Spark.

    source ─▶ materialised once (P34) ─▶ its keys prune the table's files ─▶ join ─▶ one row for each match
    ─▶ which clause, which values ─▶ materialised ─▶ new rows written, old rows marked or left out of copies

The source is run once and the join is run once: everything after that reads what they gave. A merge that is redone
(P39) joins the source with the files that changed alone. What it found in the other files is still materialised, so
that new rows of files that changed are taken out without reading the table again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from frazil.model import DataFile
from frazil.on_spark.columns import SparkColumn, condition
from frazil.on_spark.keys import MOST_KEYS, range_read, read_of
from frazil.on_spark.scan import FILE, POSITION, inside, outside, with_numbers
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
            source.held = _Held(*materialised(given.withColumn(ROW, merging.row_number())))
        return merging.run(builder, mode, source.held)


def explain(spark: Session, view: View, source: Frame, plan: Merge) -> str:
    """How the merge would be run, without running more than its source's keys."""
    return _MergeRun(spark, view, source, plan).explain()


# What is kept from one evaluation to the next


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """What the search of some files found."""

    tasks: tuple[FileTask, ...]
    met: Frame | None = None
    """One row for each match: the position of the table's row, the clause that applies, the new values, and ROW."""
    matches: int = 0
    """How many rows ``met`` has."""
    unmet: Frame | None = None
    """The same for rows of the table without a match that a clause takes."""
    taken: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Data file → clause → how many rows it takes."""
    gone: frozenset[str] = frozenset()
    """Files that have changed since: what was found in them does not count."""

    def without(self, stale: frozenset[str]) -> _Found:
        return replace(self, gone=self.gone | (stale & {task.file.file_path for task in self.tasks}))

    def count(self, clauses: Collection[int]) -> int:
        """How many rows these clauses take."""
        files = (found for path, found in self.taken.items() if path not in self.gone)
        return sum(count for found in files for clause, count in found.items() if clause in clauses)

    @property
    def matched(self) -> Frame | None:
        return None if self.met is None else outside(self.met, self.tasks, self.gone)

    @property
    def changed(self) -> list[Frame]:
        """The rows of the table that a clause takes."""
        return [outside(each, self.tasks, self.gone) for each in self.everything_changed]

    @property
    def everything_changed(self) -> list[Frame]:
        taken = [] if self.met is None else [self.met.where(f"{CLAUSE} is not null")]
        return taken if self.unmet is None else [*taken, self.unmet]


@dataclass(frozen=True, slots=True, eq=False)
class _Staged:
    """Files with new rows, and what these are."""

    found: tuple[_Found, ...]
    """The rows that were updated."""
    inserts: Frame | None
    """The source rows that were inserted; some may have been left out by the conditions of the clauses."""
    files: tuple[DataFile, ...]

    def without(self, stale: frozenset[str]) -> _Staged:
        return replace(self, found=tuple(each.without(stale) for each in self.found))

    def count(self, clauses: Collection[int]) -> int:
        """How many rows these clauses take."""
        return sum(each.count(clauses) for each in self.found)


@dataclass(slots=True, eq=False)
class _Held:
    """What a merge keeps."""

    rows: Frame
    """The source's rows, with their numbers in ROW."""
    count: int
    read: Read | None = None
    staged: tuple[_Staged, ...] = ()


class _MergeRun:
    def __init__(self, spark: Session, view: View, source: Frame, plan: Merge) -> None:
        from pyspark.sql import functions

        self._f: Any = functions
        self._spark = spark
        self._view = view
        self._plan = plan
        self._given = source
        self._bound = BoundMerge.of(plan, view.schema, frame_schema(source))
        self._updates = {index for index, each in enumerate(plan.clauses) if each.action == "update"}
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

    def run(self, builder: SparkWriteBuilder, mode: Mode, held: _Held) -> Write:
        plan, kept = self._plan, self._view.kept
        inserts = bool(plan.of("not matched")) and held.count > 0
        if kept is None or held.read is None:
            held.read, held.staged = self._read(held), ()
        tasks = self._tasks(held.read)
        found, few = self._search(builder, held, tasks)
        stale = frozenset[str]() if kept is None else kept.stale
        before = held.staged
        held.staged = tuple(each.without(stale) for each in before)
        more, is_whole = self._to_insert(held, before, found) if inserts else (None, False)
        self._stage(builder, held, before, found, more, is_whole=is_whole)
        if found.count(range(len(plan.clauses))):
            # Had another writer deleted the row first, the merge might have inserted one instead.
            moved = bool(self._updates) or inserts
            rows = _union([each.select(FILE, POSITION) for each in found.changed])
            builder.delete_positions(tasks, rows, mode, moved=moved, few=few)
        return builder.build(Kind.MERGE, self._counts(held), reads=(held.read,))

    def _counts(self, held: _Held) -> RowCounts:
        """Of all evaluations together."""
        written = sum(file.record_count for staged in held.staged for file in staged.files)
        updated = sum(each.count(self._updates) for each in held.staged)
        taken = sum(each.count(range(len(self._plan.clauses))) for each in held.staged)
        return RowCounts(inserted=written - updated, updated=updated, deleted=taken - updated)

    def _search(
        self, builder: SparkWriteBuilder, held: _Held, tasks: tuple[FileTask, ...]
    ) -> tuple[_Found, pa.Table | None]:
        """What there is to do in these files; and the changed positions with their clauses, if they are few."""
        found, few, changes = _Found(tasks), None, 0
        given = self._source(held)
        given = self._f.broadcast(given) if held.count <= _BROADCAST_ROWS else given
        if tasks and held.count and self._bound.needs_matches:
            met, changes = materialised(self._matches(builder, given, tasks))
            found = replace(found, met=met, matches=changes)
        if tasks and self._plan.of("not matched by source"):
            unmet, others = materialised(self._unmet(builder, given, tasks))
            found, changes = replace(found, unmet=unmet), changes + others
        if found.everything_changed:
            few = self._collect_few(builder, found, changes)
            found = replace(found, taken=self._taken(found, few))
        return found, few

    def _collect_few(self, builder: SparkWriteBuilder, found: _Found, changes: int) -> pa.Table | None:
        """The changed positions with their clauses, if they are few. Raises InvalidInput for a row matched twice."""
        changed = _union([each.select(FILE, POSITION, CLAUSE) for each in found.everything_changed])
        few = builder.few(changed, found.tasks, changes)
        if few is None:
            self._refuse_repeated_targets(found.met)
        elif few.group_by([FILE, POSITION]).aggregate([]).num_rows < few.num_rows:
            self._refuse_repeated_targets(found.met)
            few = few.group_by([FILE, POSITION]).aggregate([(CLAUSE, "min")]).rename_columns([FILE, POSITION, CLAUSE])
        return few

    def _taken(self, found: _Found, few: pa.Table | None) -> dict[str, dict[int, int]]:
        """Data file → clause → how many rows it takes."""
        counted: list[tuple[int, int, int]]
        if few is not None:
            table = few.group_by([FILE, CLAUSE]).aggregate([([], "count_all")])
            counted = list(zip(*(table[name].to_pylist() for name in (FILE, CLAUSE, "count_all")), strict=True))
        else:
            rows = _union([each.select(FILE, POSITION, CLAUSE) for each in found.everything_changed])
            if self._bound.allows_repeats and found.met is not None:
                rows = rows.dropDuplicates([FILE, POSITION])
            numbered = with_numbers(self._spark, rows.groupBy(FILE, CLAUSE).count(), found.tasks)
            counted = [(each[FILE], each[CLAUSE], each["count"]) for each in numbered.collect()]
        taken: dict[str, dict[int, int]] = {}
        for number, clause, count in counted:
            taken.setdefault(found.tasks[number].file.file_path, {})[clause] = count
        return taken

    # New rows

    def _stage(
        self,
        builder: SparkWriteBuilder,
        held: _Held,
        before: Sequence[_Staged],
        found: _Found,
        more: Frame | None,
        *,
        is_whole: bool,
    ) -> None:
        """Write what is new. Files that also hold new rows of files that changed are written again without these.

        ``more``: source rows to insert; ``is_whole``: all of them, in place of those inserted before.
        """
        kept: list[_Staged] = []
        again: list[_Staged] = []
        for was, now in zip(before, held.staged, strict=True):
            is_stale = was.count(self._updates) != now.count(self._updates)
            (again if is_stale or (is_whole and now.inserts is not None) else kept).append(now)
        for each in again:
            builder.discard_rows(each.files)
        together = (*(one for each in again for one in each.found), found)
        inserts = [each.inserts for each in again if each.inserts is not None and not is_whole]
        inserts += [] if more is None else [more]
        inserted = _union(inserts) if inserts else None
        new_rows = [rows for each in together for rows in self._new_values(each)]
        if inserted is not None:
            new_rows.append(self._inserted(inserted))
        files = builder.add_frame(_union(new_rows)).files if new_rows else ()
        held.staged = (*kept, _Staged(together, inserted, files))

    def _new_values(self, found: _Found) -> list[Frame]:
        if not found.count(self._updates):
            return []
        names = [f"`{each.name}`" for each in self._view.schema.fields]
        updates = self._f.col(CLAUSE).isin(sorted(self._updates))
        return [each.where(updates).select(*names) for each in found.changed]

    def _to_insert(self, held: _Held, before: Sequence[_Staged], found: _Found) -> tuple[Frame | None, bool]:
        """The source rows that have lost their matches. Or all without a match, and True, where one that was inserted
        has a match now: which of the new rows is its row is not known.
        """
        earlier = [one for each in before for one in each.found]
        now = [one for each in held.staged for one in each.found]
        matched = [each for each in (*(one.matched for one in now), found.matched) if each is not None]
        if not before or self._has_new_matches(found, earlier):
            count = found.matches + sum(each.matches for each in now)
            return self._unmatched(held, matched, count), True
        lost = [
            inside(one.met, one.tasks, one.gone - was.gone)
            for was, one in zip(earlier, now, strict=True)
            if one.met is not None and one.gone != was.gone
        ]
        if not lost:
            return None, False
        numbers = _apart(_numbers(lost).distinct(), matched)
        rows, count = materialised(self._source(held).join(numbers, ROW, "left_semi"))
        return (rows if count else None), False

    def _has_new_matches(self, found: _Found, earlier: Sequence[_Found]) -> bool:
        """Whether a source row that had no match has one now."""
        if found.met is None or not found.matches:
            return False
        known = [each for each in (one.matched for one in earlier) if each is not None]
        return bool(_apart(_numbers([found.met]).distinct(), known).take(1))

    def _unmatched(self, held: _Held, matched: Sequence[Frame], count: int) -> Frame:
        """All source rows without a match. ``count``: how many matches there are."""
        if not matched:
            return self._source(held)
        numbers = _numbers(matched)
        numbers = self._f.broadcast(numbers) if count <= _BROADCAST_ROWS else numbers
        return self._source(held).join(numbers, ROW, "left_anti")

    def _inserted(self, rows: Frame) -> Frame:
        """The new rows for source rows without a match."""
        nothing = {each.name: self._f.lit(None).cast(spark_type(each.field_type)) for each in self._view.schema.fields}
        chosen, new = self._by_clause(rows.alias(self._plan.source_alias), "not matched", nothing)
        taken = chosen.where(self._f.col(CLAUSE).isNotNull())
        return taken.select(*(column.alias(name) for name, column in new.items()))

    # Matching

    def _source(self, held: _Held) -> Frame:
        return held.rows.alias(self._plan.source_alias)

    def _read(self, held: _Held) -> Read:
        """The read of the merge: which rows of the table it depends on."""
        if self._plan.of("not matched by source"):
            return Read(parse_filter(None, self._view.schema))
        return self._keys_read(self._source(held), held.count)

    def _keys_read(self, source: Frame, count: int) -> Read:
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


def _numbers(frames: Sequence[Frame]) -> Frame:
    return _union([each.select(ROW) for each in frames])


def _apart(numbers: Frame, others: Sequence[Frame]) -> Frame:
    """The numbers of source rows that are in none of the others."""
    return numbers.join(_numbers(others), ROW, "left_anti") if others else numbers

"""MERGE in this process: the source in memory, the table's files one after another.

each file ─▶ its rows with the source rows that match them ─▶ which clause ─▶ new rows, staged as they come
─▶ source rows without a match ─▶ rows to insert ─▶ old rows marked or left out of copies
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField
from pyroaring import BitMap64

from frazil.commit.operations import Kind, Read, RowCounts, Write
from frazil.dml.assignments import constant_value, is_column, replaced
from frazil.dml.merge import Clause, Merge, Source, When
from frazil.dml.merge_binding import BoundMerge, Path, repeated
from frazil.dml.merge_match import Matcher, Pairs, Sides, columns_of, numbered, read_source, source_schema
from frazil.dml.view import Mode, Settings, View
from frazil.dml.write_builder import WriteBuilder
from frazil.errors import Unsupported
from frazil.expr import Column, Filter, Lit, assigned, check_nulls, find_array, parse_expression, parse_filter
from frazil.format.schemas import arrow_schema
from frazil.read.arrow import BATCH_ROWS
from frazil.read.plan import FileTask
from frazil.read.positions import bitmap
from frazil.stage.rows import conform, opened, without_untyped

Array = Any
pc: Any = pyarrow.compute
arrow: Any = pa
Values = Callable[[pa.RecordBatch], Array]


def merge(view: View, source: Source, plan: Merge, settings: Settings, mode: Mode) -> Write:
    """Join source and table, and apply the merge's clauses."""
    rows = without_untyped(opened(source.rows), view.schema) if source.held is None else source.held
    bound = _bound(view, rows, plan)
    # All errors that do not depend on values are found before a row is read.
    clauses = _Clauses.of(bound)
    if source.held is None:
        source.held = read_source(rows, bound.source, view)
    schemas = tuple(view.metadata.schemas()), view.schema.schema_id
    if source.join is None or source.join.schemas != schemas:
        source.join = _Join.of(schemas, bound, source.held, view)
    with WriteBuilder(view, settings) as builder:
        return _MergeRun(builder, clauses, source.join, source).run(mode)


def explain(view: View, rows: object, plan: Merge) -> str:
    """How the merge would be run, without reading a row."""
    bound = _bound(view, without_untyped(rows, view.schema), plan)
    _Clauses.of(bound)
    return bound.explain(view.table)


def _bound(view: View, rows: object, plan: Merge) -> BoundMerge:
    _refuse_columns(plan)
    bound = BoundMerge.of(plan, view.schema, source_schema(rows, view.schema))
    bound.check_clauses()
    return bound


def _refuse_columns(plan: Merge) -> None:
    for each in plan.given:
        if is_column(each):
            raise Unsupported(
                f"The merge has the Spark Column {each}, and its source is not a DataFrame",
                advice="Write it as SQL text, or pass a DataFrame",
            )


# Clauses


@dataclass(frozen=True, slots=True, eq=False)
class _BoundClause:
    index: int
    clause: Clause
    condition: Filter | None
    values: tuple[tuple[Path, Values], ...]
    """For each column that is set, where it is and its values in the rows of both sides."""
    columns: tuple[Column, ...]
    """What the condition and the values read."""

    @staticmethod
    def of(bound: BoundMerge, index: int, clause: Clause) -> _BoundClause:
        condition = None if clause.condition is None else bound.condition(clause)
        columns = list(condition.columns) if condition is not None else []
        values = []
        for path, given in bound.assignments(clause) if clause.action != "delete" else ():
            make, read = _value(bound, clause, path, given)
            values.append((path, make))
            columns += read
        return _BoundClause(index, clause, condition, tuple(values), tuple(columns))

    def rows(self, both: pa.RecordBatch, old: Sequence[Array], schema: Schema) -> pa.RecordBatch:
        """The rows as the clause leaves them. Every value sees the old ones."""
        columns = list(old)
        names = [each.name for each in schema.fields]
        for path, values in [(path, make(both)) for path, make in self.values]:
            position = names.index(path[0].name)
            columns[position] = replaced(columns[position], path, values)
        return conform(arrow.RecordBatch.from_arrays(columns, names=names), schema)


def _value(bound: BoundMerge, clause: Clause, path: Path, given: object) -> tuple[Values, list[Column]]:
    column, shown = path[-1], ".".join(each.name for each in path)
    if not isinstance(given, str):
        constant = constant_value(given.value if isinstance(given, Lit) else given, column, shown)
        return lambda rows: constant.take(arrow.repeat(0, rows.num_rows)), []
    expression = parse_expression(
        given, bound.both, case_sensitive=bound.plan.case_sensitive, scopes=bound.scopes(clause)
    )
    read = list(columns_of(expression.node))
    bound.check_sides(clause, read, f"A value of '{clause}'")
    node = expression.node
    if isinstance(node, Column) and (node.source == column.field_type or not node.source.is_primitive):
        return _taken_over(bound, node, column, shown), read
    return assigned(expression, column, shown), read


def _taken_over(bound: BoundMerge, node: Column, column: NestedField, shown: str) -> Values:
    """A column as it is. For structs, lists and maps there is no other way."""
    alone = Schema(column)

    def values(rows: pa.RecordBatch) -> Array:
        found = find_array(rows, bound.both, node)
        check_nulls(found, column, shown)
        return conform(arrow.RecordBatch.from_arrays([found], names=[column.name]), alone).column(0)

    kind = arrow_schema(Schema(NestedField(node.field_id, column.name, node.source))).field(0).type
    conform(arrow.RecordBatch.from_arrays([arrow.array([], kind)], names=[column.name]), alone)
    return values


@dataclass(frozen=True, slots=True, eq=False)
class _Clauses:
    """The clauses of one merge, by the rows that they are for."""

    bound: BoundMerge
    by_kind: dict[When, tuple[_BoundClause, ...]]
    sides: dict[When, Sides]

    @staticmethod
    def of(bound: BoundMerge) -> _Clauses:
        found: dict[When, tuple[_BoundClause, ...]] = {}
        for index, each in enumerate(bound.plan.clauses):
            found[each.when] = (*found.get(each.when, ()), _BoundClause.of(bound, index, each))
        sides = {when: Sides.of(bound, _columns(clauses)) for when, clauses in found.items()}
        return _Clauses(bound, found, sides)

    def chosen(self, when: When, rows: pa.RecordBatch) -> list[tuple[_BoundClause, Array]]:
        """Each clause with the numbers of the rows that it is the first to fit."""
        left = numbered(rows.num_rows)
        found = []
        for each in self.by_kind.get(when, ()):
            if not len(left):
                break
            mine = left
            if each.condition is not None:
                some = rows if len(left) == rows.num_rows else rows.take(left)
                fits = each.condition.mask(some)
                mine, left = left.filter(fits), left.filter(pc.invert(fits))
            if len(mine):
                found.append((each, mine))
            if each.condition is None:
                break
        return found

    def columns(self) -> list[Column]:
        return [column for clauses in self.by_kind.values() for column in _columns(clauses)]


def _columns(clauses: Sequence[_BoundClause]) -> list[Column]:
    return [column for each in clauses for column in each.columns]


# Running


@dataclass(frozen=True, slots=True, eq=False)
class _Join:
    """The source's rows by their keys, and the read set: the same on all versions of the table with these schemas."""

    schemas: object
    matcher: Matcher
    read: Read

    @staticmethod
    def of(schemas: object, bound: BoundMerge, rows: pa.RecordBatch, view: View) -> _Join:
        matcher = Matcher.of(bound, rows)
        by_source = bool(bound.plan.of("not matched by source"))
        return _Join(schemas, matcher, Read(parse_filter(None, view.schema)) if by_source else matcher.read(view))


@dataclass(slots=True)
class _Changes:
    """What the clauses have done so far."""

    matched: dict[str, BitMap64] = field(default_factory=dict)
    """Data file → the source rows that match a row of it."""
    taken: list[tuple[FileTask, BitMap64]] = field(default_factory=list)
    """The rows of files that are updated or deleted."""
    updated: int = 0


class _MergeRun:
    def __init__(self, builder: WriteBuilder, clauses: _Clauses, join: _Join, source: Source) -> None:
        self._builder = builder
        self._source = source
        self._view = builder.view
        self._schema = builder.view.schema
        self._clauses = clauses
        self._bound = clauses.bound
        self._read, self._matcher = join.read, join.matcher
        self._plan = clauses.bound.plan
        self._updates = any(each.action == "update" for each in self._plan.clauses)
        self._by_source = bool(self._plan.of("not matched by source"))
        self._changes = _Changes()

    def run(self, mode: Mode) -> Write:
        builder, view, changes = self._builder, self._view, self._changes
        read = self._read
        tasks = view.tasks(read.where)
        view.check_size(tasks, "merge")
        if self._bound.needs_matches or self._by_source:
            self._matcher.check(tasks, view)
        builder.add_rows(self._new_values(tasks))
        inserts = bool(self._plan.of("not matched")) and self._matcher.source.num_rows > 0
        inserted = self._insert() if inserts else 0
        for task, rows in changes.taken:
            builder.take_out(task, rows, mode)
            # Had another writer deleted the row first, the merge might have inserted one instead.
            if self._updates or inserts:
                builder.move(task.file.file_path, rows)
        taken = sum(len(rows) for _, rows in changes.taken)
        counts = RowCounts(inserted=inserted, updated=changes.updated, deleted=taken - changes.updated)
        return builder.build(Kind.MERGE, counts, reads=(read,))

    def _new_values(self, tasks: Sequence[FileTask]) -> Iterator[pa.RecordBatch]:
        """Rows with new values, file by file; what else happens is kept in ``changes``."""
        for task in tasks:
            yield from self._file(task)

    def _insert(self) -> int:
        """Insert source rows without a match. Returns how many more there are than in the evaluation before."""
        source, kept = self._source, self._view.kept
        before = {} if kept is None else source.matched
        still = {path: rows for path, rows in before.items() if kept is not None and path not in kept.stale}
        matched = {**still, **self._changes.matched}
        if kept is not None and _union(matched) == _union(before):
            source.matched = matched
            return 0
        earlier = source.inserted if kept is not None else ()
        self._builder.discard_rows(earlier)
        staged = self._builder.add_rows(self._inserted(_union(matched)))
        source.matched, source.inserted = matched, staged.files
        return staged.rows - sum(file.record_count for file in earlier)

    def _file(self, task: FileTask) -> Iterator[pa.RecordBatch]:
        whole = self._builder.read_context
        context = whole if self._updates else self._matcher.context(whole, self._clauses.columns())
        taken, matched = BitMap64(), BitMap64()
        for batch, positions in self._matcher.batches(task, context):
            met = BitMap64()
            for pairs in self._matcher.pairs(batch):
                matched |= bitmap(pairs.source)
                if self._by_source:
                    met |= bitmap(pairs.target)
                yield from self._matched(batch, positions, pairs, taken)
            if self._by_source:
                yield from self._unmatched(batch, positions, met, taken)
        self._changes.matched[task.file.file_path] = matched
        if taken:
            self._changes.taken.append((task, taken))

    def _matched(
        self, batch: pa.RecordBatch, positions: Array, pairs: Pairs, taken: BitMap64
    ) -> Iterator[pa.RecordBatch]:
        clauses = self._clauses
        if "matched" not in clauses.by_kind or not len(pairs.target):
            return
        rows = clauses.sides["matched"].pairs(batch, self._matcher.source, pairs)
        chosen = clauses.chosen("matched", rows)
        if not chosen:
            return
        targets = pairs.target.take(arrow.concat_arrays([numbers for _, numbers in chosen]))
        if not self._bound.allows_repeats:
            self._refuse_repeats(targets)
        taken |= bitmap(positions.take(targets))
        yield from self._updated(chosen, rows, batch, pairs.target)

    def _unmatched(
        self, batch: pa.RecordBatch, positions: Array, met: BitMap64, taken: BitMap64
    ) -> Iterator[pa.RecordBatch]:
        """The rows of the table that no source row matches."""
        alone = arrow.array(list(BitMap64(range(batch.num_rows)) - met), pa.int64())
        clauses = self._clauses
        some = batch.select(list(clauses.sides["not matched by source"].target)).take(alone)
        rows = clauses.sides["not matched by source"].rows(len(alone), target=some)
        chosen = clauses.chosen("not matched by source", rows)
        for _, numbers in chosen:
            taken |= bitmap(positions.take(alone.take(numbers)))
        yield from self._updated(chosen, rows, batch, alone)

    def _updated(
        self, chosen: list[tuple[_BoundClause, Array]], rows: pa.RecordBatch, batch: pa.RecordBatch, targets: Array
    ) -> Iterator[pa.RecordBatch]:
        for each, numbers in chosen:
            if each.clause.action == "update":
                old = batch.take(targets.take(numbers))
                self._changes.updated += len(numbers)
                yield each.rows(rows.take(numbers), old.columns, self._schema)

    def _inserted(self, matched: BitMap64) -> Iterator[pa.RecordBatch]:
        """New rows for source rows without a match."""
        source, clauses = self._matcher.source, self._clauses
        alone = arrow.array(list(BitMap64(range(source.num_rows)) - matched), pa.int64())
        kinds = [each.type for each in arrow_schema(self._schema)]
        sides = clauses.sides["not matched"]
        for start in range(0, len(alone), BATCH_ROWS):
            some = alone.slice(start, BATCH_ROWS)
            rows = sides.rows(len(some), source=source.select(list(sides.source)).take(some))
            for each, numbers in clauses.chosen("not matched", rows):
                nothing = [arrow.nulls(len(numbers), kind) for kind in kinds]
                yield each.rows(rows.take(numbers), nothing, self._schema)

    def _refuse_repeats(self, targets: Array) -> None:
        """All matches of a row are in one batch of pairs."""
        counts = pc.value_counts(targets).field("counts")
        most = pc.max(counts).as_py() or 0
        if most > 1:
            raise repeated(self._view.table, most)


def _union(matched: Mapping[str, BitMap64]) -> BitMap64:
    found = BitMap64()
    for rows in matched.values():
        found |= rows
    return found

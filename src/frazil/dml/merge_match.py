"""Which rows of a merge's source match which rows of the table.

    source rows ─▶ indexed by the columns of the condition's equalities ─▶ looked up by the rows of each target file
    ─▶ pairs of row numbers ─▶ the rest of the condition, on the pairs

The source is in memory; files of the table are read one after another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyiceberg.schema import Schema

from frazil.commit.operations import Read
from frazil.dml.merge_binding import BoundMerge, conjuncts
from frazil.dml.view import View
from frazil.errors import Unsupported
from frazil.expr import (
    BOOL,
    DOUBLE,
    Call,
    Column,
    DataType,
    Expression,
    Filter,
    Node,
    compared,
    held,
    identical,
    joinable,
    near_keys,
    parse_filter,
    sql_type,
)
from frazil.format.schemas import arrow_schema, match_name, to_schema
from frazil.read.arrow import BATCH_ROWS, ReadContext
from frazil.read.deletes import Deletes, Keys
from frazil.read.layout import convert
from frazil.read.plan import FileTask
from frazil.read.positions import rows_with_positions
from frazil.stage.rows import conform, incoming_schema, to_reader

Array = Any
pc: Any = pyarrow.compute
arrow: Any = pa
MOST_COMPARED = 1_000_000_000
"""Without an equality, up to this many pairs of rows are compared one by one."""
_PAIRS_AT_ONCE = 1 << 18


# The source


def source_schema(rows: object, target: Schema) -> Schema:
    """The columns of a source. Values without types of their own get those of the table's columns, where they fit."""
    found = incoming_schema(rows, target)
    if not len(found):
        return target
    known = {each.name: position for position, each in enumerate(target.fields)}
    kinds = arrow_schema(target)
    fields = []
    for each in found:
        same = match_name(each.name, known)
        untyped = pa.types.is_null(each.type) and same is not None
        fields.append(each.with_type(kinds.field(known[str(same)]).type) if untyped else each)
    return to_schema(arrow.schema(fields))


def read_source(rows: object, schema: Schema, view: View) -> pa.RecordBatch:
    """All rows of the source, in memory. Raises Unsupported if they are too many, SchemaMismatch for a bad value."""
    kinds = arrow_schema(schema)
    nothing = arrow.RecordBatch.from_arrays([arrow.nulls(0, each.type) for each in kinds], schema=kinds)
    batches, size = [nothing], 0
    for given in to_reader(rows, schema):
        batch = conform(given, schema)
        size += batch.nbytes
        view.check_source_size(size, "merge")
        batches.append(batch)
    return one_batch(batches)


def one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    columns = [arrow.concat_arrays(list(each)) for each in zip(*(batch.columns for batch in batches), strict=True)]
    return arrow.RecordBatch.from_arrays(columns, schema=batches[0].schema)  # type: ignore[no-any-return]


def numbered(count: int) -> Array:
    """The numbers from 0 on."""
    return pc.cumulative_sum(arrow.repeat(1, count), start=-1)


# Rows of both sides


@dataclass(frozen=True, slots=True, eq=False)
class Sides:
    """The columns of both sides that some texts read."""

    bound: BoundMerge
    target: tuple[str, ...]
    source: tuple[str, ...]

    @staticmethod
    def of(bound: BoundMerge, columns: Iterable[Column]) -> Sides:
        target: dict[str, None] = {}
        source: dict[str, None] = {}
        for column in columns:
            if len(column.path) > 1:
                name = bound.both.find_field(column.path[1]).name
                (source if bound.is_source(column) else target)[name] = None
        return Sides(bound, tuple(target), tuple(source))

    def rows(
        self, count: int, target: pa.RecordBatch | None = None, source: pa.RecordBatch | None = None
    ) -> pa.RecordBatch:
        """Rows with a struct for each side. A side that is None or of which nothing is read is left out."""
        plan = self.bound.plan
        found: dict[str, Array] = {"": arrow.nulls(count)}
        for alias, names, rows in (
            (plan.target_alias, self.target, target),
            (plan.source_alias, self.source, source),
        ):
            if names and rows is not None:
                found[alias] = arrow.StructArray.from_arrays([rows.column(name) for name in names], names=list(names))
        return arrow.RecordBatch.from_arrays(list(found.values()), names=list(found))  # type: ignore[no-any-return]

    def pairs(self, target: pa.RecordBatch, source: pa.RecordBatch, pairs: Pairs) -> pa.RecordBatch:
        one = target.select(list(self.target)).take(pairs.target) if self.target else None
        other = source.select(list(self.source)).take(pairs.source) if self.source else None
        return self.rows(len(pairs.target), one, other)


def columns_of(node: Node) -> Iterator[Column]:
    if isinstance(node, Column):
        yield node
    elif isinstance(node, Call):
        for each in node.args:
            yield from columns_of(each)


# Matching


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Row numbers of the table's rows in a batch, and of the source rows that match them, side by side."""

    target: Array
    source: Array

    def where(self, mask: Array) -> Pairs:
        return Pairs(self.target.filter(mask), self.source.filter(mask))


@dataclass(frozen=True, slots=True, eq=False)
class _Equality:
    """``left = right``, one side from the table's columns and one from the source's."""

    target: Expression
    source: Expression
    kind: DataType


@dataclass(frozen=True, slots=True, eq=False)
class _Index:
    """The source rows by their values in the equalities. A row with a NULL in one of them equals no row."""

    keys: Keys
    lists: Array
    """For each combination of values the source rows with it."""
    longest: int

    @staticmethod
    def of(columns: Sequence[Array]) -> _Index:
        valid = pc.is_valid(columns[0])
        for each in columns[1:]:
            valid = pc.and_(valid, pc.is_valid(each))
        rows = pc.indices_nonzero(valid).cast(pa.int64())
        values = [each.filter(valid) for each in columns]
        keys = Keys.of((), values)
        codes = keys.numbers(values)
        order = pc.array_sort_indices(codes)
        counts = pc.value_counts(codes.take(order)).field("counts")
        offsets = arrow.concat_arrays([arrow.array([0], pa.int64()), pc.cumulative_sum(counts)])
        lists = arrow.LargeListArray.from_arrays(offsets, rows.take(order))
        return _Index(keys, lists, pc.max(counts).as_py() or 0)

    def pairs(self, columns: Sequence[Array]) -> Iterator[Pairs]:
        codes = self.keys.numbers(columns)
        hits = pc.indices_nonzero(pc.is_valid(codes)).cast(pa.int64())
        step = max(1, _PAIRS_AT_ONCE // max(1, self.longest))
        for start in range(0, len(hits), step):
            some = hits.slice(start, step)
            found = self.lists.take(codes.take(some))
            yield Pairs(some.take(pc.list_parent_indices(found)), pc.list_flatten(found))


@dataclass(frozen=True, slots=True, eq=False)
class Matcher:
    """Finds the source rows that match rows of the table."""

    bound: BoundMerge
    source: pa.RecordBatch
    equalities: tuple[_Equality, ...]
    index: _Index | None
    """None: the condition has no equality of the two sides."""
    rest: Filter | None
    """What is left of the condition for the pairs; None: nothing."""
    sides: Sides
    keys: Sides

    @staticmethod
    def of(bound: BoundMerge, source: pa.RecordBatch) -> Matcher:
        assert bound.on is not None
        equalities, rest = [], []
        for test in conjuncts(bound.on.condition):
            found = _equality(bound, test)
            if found is None:
                rest.append(test)
            else:
                equalities.append(found)
        left = Filter(bound.on.text, bound.both, rest[0] if len(rest) == 1 else Call("and", tuple(rest), BOOL))
        by_key = [
            column for each in equalities for side in (each.target, each.source) for column in columns_of(side.node)
        ]
        keys = Sides.of(bound, by_key)
        rows = keys.rows(source.num_rows, source=source)
        index = _Index.of([_values(each.source, each.kind, rows) for each in equalities]) if equalities else None
        sides = Sides.of(bound, left.columns if rest else ())
        return Matcher(bound, source, tuple(equalities), index, left if rest else None, sides, keys)

    @property
    def rows_at_once(self) -> int:
        """Indexing the source rows costs as much as looking up as many: fewer of the table's rows would waste it."""
        return BATCH_ROWS if self.index is None else max(BATCH_ROWS, self.source.num_rows)

    def pairs(self, target: pa.RecordBatch) -> Iterator[Pairs]:
        """The matches of some rows of the table, all matches of one row at once."""
        for pairs in self._candidates(target):
            if self.rest is None:
                yield pairs
            else:
                yield pairs.where(self.rest.mask(self.sides.pairs(target, self.source, pairs)))

    def _candidates(self, target: pa.RecordBatch) -> Iterator[Pairs]:
        if self.index is None:
            yield from _every_pair(target.num_rows, self.source.num_rows)
        elif self.source.num_rows:
            rows = self.keys.rows(target.num_rows, target=target)
            yield from self.index.pairs([_values(each.target, each.kind, rows) for each in self.equalities])

    def read(self, view: View) -> Read:
        """The read of the merge: which rows of the table may match a source row."""
        columns = self._key_columns()
        if not columns:
            return Read(parse_filter(None, view.schema))
        deletes = Deletes(view.storage, view.metadata)
        found = {
            field_id: convert(values, deletes.key_type(field_id), lambda: "A key column")
            for field_id, values in columns.items()
        }
        where = near_keys(view.schema, found)
        if any(sql_type(view.schema.find_type(field_id)) == DOUBLE for field_id in found):
            # 0.0 and -0.0 are one key for SQL, and two for a set of keys.
            return Read(where)
        return Read(where, Keys.of(tuple(found), list(found.values())))

    def _key_columns(self) -> dict[int, Array]:
        """The values of the table's key columns that can match. NULL equals nothing, so rows with one are left out."""
        bound = self.bound
        columns: dict[int, Array] = {}
        for pair in bound.pairs:
            rows = Sides.of(bound, [pair.source]).rows(self.source.num_rows, source=self.source)
            values = compared(Expression("", bound.both, pair.source), pair.test.option, rows)
            kept = held(values, bound.target.find_type(pair.field_id))
            if kept is not None:
                columns.setdefault(pair.field_id, kept)
        valid = arrow.repeat(True, self.source.num_rows)
        for values in columns.values():
            valid = pc.and_(valid, pc.is_valid(values))
        return {field_id: values.filter(valid) for field_id, values in columns.items()}

    def check(self, tasks: Sequence[FileTask], view: View) -> None:
        """Raises Unsupported when too many pairs of rows would be compared one by one."""
        if self.index is not None:
            return
        rows = sum(task.file.record_count for task in tasks)
        if rows * self.source.num_rows > MOST_COMPARED:
            raise Unsupported(
                f"The merge would compare each of {self.source.num_rows} source rows with each of {rows} rows of "
                f"{view.table}, because its condition has no equality between the two",
                evidence=f"In this process {MOST_COMPARED} comparisons are the limit",
                advice="Add one, as in target.id = source.id, or run it on Spark: connect(…, spark=frazil.spark())",
            )

    def batches(self, task: FileTask, context: ReadContext) -> Iterator[tuple[pa.RecordBatch, Array]]:
        """The live rows of a file with their positions, as many at once as are matched at once."""
        rows: list[pa.RecordBatch] = []
        positions: list[Array] = []
        count = 0
        for batch, numbers in rows_with_positions(task, context):
            rows.append(batch)
            positions.append(numbers)
            count += batch.num_rows
            if count >= self.rows_at_once:
                yield one_batch(rows), arrow.concat_arrays(positions)
                rows, positions, count = [], [], 0
        if rows:
            yield one_batch(rows), arrow.concat_arrays(positions)

    def context(self, whole: ReadContext, columns: Iterable[Column]) -> ReadContext:
        """For the table's columns that the condition and these texts read."""
        names = {*self.keys.target, *self.sides.target, *Sides.of(self.bound, columns).target}
        fields = [each for each in whole.schema.fields if each.name in names]
        # A file is read by its columns, so that one is needed.
        return ReadContext(
            whole.storage, whole.metadata, Schema(*(fields or whole.schema.fields[:1])), whole.deletes, whole.batch_rows
        )


def _equality(bound: BoundMerge, test: Node) -> _Equality | None:
    if not (isinstance(test, Call) and test.op == "eq" and test.type == BOOL):
        return None
    left, right = test.args
    sides = [{bound.is_source(column) for column in columns_of(each)} for each in (left, right)]
    if sides == [{True}, {False}]:
        left, right = right, left
    elif sides != [{False}, {True}]:
        return None
    if not (joinable(left) and joinable(right)):
        return None
    return _Equality(Expression("", bound.both, left), Expression("", bound.both, right), test.option)


def _values(expression: Expression, kind: DataType, rows: pa.RecordBatch) -> Array:
    return identical(compared(expression, kind, rows))


def _every_pair(target: int, source: int) -> Iterator[Pairs]:
    if not source:
        return
    step = max(1, _PAIRS_AT_ONCE // source)
    for start in range(0, target, step):
        flat = numbered(min(step, target - start) * source)
        rows = pc.divide(flat, source)
        yield Pairs(pc.add(rows, start), pc.subtract(flat, pc.multiply(rows, source)))

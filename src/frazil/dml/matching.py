"""Upserts and deletes by columns that the caller names, and upserts in which the latest row of a key wins.

Keys are compared as SQL's ``=`` does: a null key is equal to nothing, so it replaces nothing and is deleted by nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)
from pyroaring import BitMap64

from frazil.commit.operations import Kind, Read, RowCounts, Write
from frazil.dml.row_delta import row_delta
from frazil.dml.upsert import UpsertMode, key_ids
from frazil.dml.view import COPY_ON_WRITE, MERGE_ON_READ, Mode, Settings, View
from frazil.dml.write_builder import WriteBuilder
from frazil.errors import InvalidInput
from frazil.expr import Filter, near_keys
from frazil.format.metadata import TableMetadata
from frazil.format.partitions import column_at, source_path
from frazil.format.schemas import suggestion
from frazil.read.deletes import Deletes, Keys
from frazil.read.layout import convert
from frazil.read.plan import FileTask
from frazil.read.positions import bitmap, rows_with_positions
from frazil.stage.deletes import key_schema
from frazil.stage.rows import conform, to_reader

Array = Any
pc: Any = pyarrow.compute
arrow: Any = pa
_ORDERED = (
    IntegerType,
    LongType,
    DecimalType,
    DateType,
    TimeType,
    TimestampType,
    TimestamptzType,
    StringType,
)


@dataclass(frozen=True, slots=True)
class Matching:
    """How incoming rows find rows of the table."""

    field_ids: tuple[int, ...]
    is_declared: bool
    """These are the table's keys."""
    latest_by: int | None = None
    """The column whose greatest value wins among rows of one key."""

    @property
    def is_plain(self) -> bool:
        return self.is_declared and self.latest_by is None


def matching(metadata: TableMetadata, on: Sequence[str] | None, latest_by: str | None = None) -> Matching:
    """Raises InvalidInput for a column that does not exist or cannot be compared."""
    schema = metadata.schema()
    if on is None:
        field_ids = key_ids(metadata)
    else:
        if isinstance(on, str) or not isinstance(on, Sequence) or not on:
            raise InvalidInput(f"on must be a list of column names, not {on!r}", advice='Write on=["id"]')
        field_ids = tuple(sorted({_column(schema, name, "on") for name in on}))
    latest = None if latest_by is None else _column(schema, latest_by, "latest_by")
    if latest is not None and not isinstance(schema.find_type(latest), _ORDERED):
        raise InvalidInput(
            f"latest_by={latest_by!r} is {schema.find_type(latest)}, whose values have no order for this",
            advice="Use an integer, a decimal, a date, a time, a timestamp or a string",
        )
    return Matching(field_ids, set(field_ids) == set(schema.identifier_field_ids), latest)


def _column(schema: Schema, name: object, argument: str) -> int:
    if not isinstance(name, str):
        raise InvalidInput(f"{argument} names columns by strings, not {name!r}")
    try:
        found = schema.find_field(name, case_sensitive=False)
    except ValueError:
        raise InvalidInput(
            f"{argument} names the column {name!r}, which does not exist",
            advice=suggestion(name, [each.name for each in schema.fields]),
        ) from None
    if not found.field_type.is_primitive or source_path(schema, found.field_id) is None:
        raise InvalidInput(f"{argument} names {name!r}, which is {found.field_type} and not a single value of a row")
    return int(found.field_id)


@dataclass(slots=True, eq=False)
class GivenRows:
    """The rows of one call: read once, however often the call is evaluated."""

    rows: object
    held: Any = None
    """The rows as the engine keeps them."""

    def batches(self, schema: Schema) -> list[pa.RecordBatch]:
        if self.held is None:
            self.held = [conform(batch, schema) for batch in to_reader(self.rows, schema)]
        # The schema may have other columns than when they were read.
        return [conform(_without_gone(batch, schema), schema) for batch in self.held]


def _without_gone(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """Without columns that were dropped and hold nothing."""
    known = {each.name for each in schema.fields}
    filled = (name for name in batch.schema.names if name in known or batch[name].null_count < batch.num_rows)
    return batch.select(list(filled))


def upsert_matching(view: View, rows: GivenRows, by: Matching, settings: Settings, mode: UpsertMode) -> Write:
    """Insert or replace rows by these columns, found by a search. The rows are held in memory."""
    # Which rows are applied depends on those of the table, so nothing of an earlier evaluation is kept.
    view = replace(view, kept=None)
    batches = rows.batches(view.schema)
    with WriteBuilder(view, settings) as builder:
        if not any(batch.num_rows for batch in batches):
            return builder.build(Kind.UPSERT, RowCounts())
        given = _frame(view, by, batches, view.schema)
        keyed, alone = _split(given)
        keyed = _latest(keyed) if by.latest_by is not None else _unique(keyed, view.schema, by)
        read, found = _search(builder, by, keyed, "upsert")
        applied = keyed if by.latest_by is None else _not_older(keyed, found)
        positions = arrow.concat_arrays([_flat(applied["i"]), _flat(alone["i"])])
        updated = replaced = 0
        if len(positions):
            staged = arrow.Table.from_batches(batches).take(positions.sort())
            builder.add_rows(staged)
            keys = _keys(by, applied)
            updated, replaced = _delete(builder, found, keys, mode_of_deletes(mode), moves=True)
        # More rows than keys: a key existed more than once; one row of it counts as updated.
        counts = RowCounts(inserted=len(positions) - updated, updated=updated, deleted=replaced - updated)
        keys_of_table = by.field_ids if by.is_declared else ()
        return builder.build(Kind.UPSERT, counts, reads=(read,), keys=keys_of_table)


def delete_keys(view: View, rows: GivenRows, by: Matching, settings: Settings, mode: UpsertMode) -> Write:
    """Delete every row with one of these keys: by equality deletes, or found by a search."""
    if mode == "equality":
        return row_delta(view, settings, keys=rows.rows)
    schema = key_schema(view.schema, by.field_ids)
    batches = rows.batches(_optional(schema))
    with WriteBuilder(view, settings) as builder:
        if not any(batch.num_rows for batch in batches):
            return builder.build(Kind.DELETE, RowCounts())
        keyed, _ = _split(_frame(view, by, batches, schema))
        read, found = _search(builder, by, keyed, "delete_keys")
        _, deleted = _delete(builder, found, _keys(by, keyed), mode_of_deletes(mode), moves=False)
        return builder.build(Kind.DELETE, RowCounts(deleted=deleted), reads=(read,))


def default_mode(by: Matching, chosen: UpsertMode, *, is_given: bool) -> UpsertMode:
    """The mode, where "equality" is not possible "position". Raises InvalidInput if the caller asked for it."""
    if chosen != "equality" or by.is_plain:
        return chosen
    if not is_given:
        return "position"
    if by.latest_by is not None:
        raise InvalidInput(
            "latest_by compares the rows with those of the table, and mode='equality' reads none",
            advice="Use mode='position' or 'copy-on-write'",
        )
    raise InvalidInput(
        "mode='equality' deletes by the table's declared keys, and on names other columns",
        advice="Declare them with set_keys(), or use mode='position' or 'copy-on-write'",
    )


def repeated_key(count: object, shown: str) -> InvalidInput:
    return InvalidInput(
        f"{count} of the rows have the same key {shown}",
        advice="Keep one row for each key, or name a column that decides with latest_by=",
    )


def _optional(schema: Schema) -> Schema:
    """Nulls may be among the keys of a search: they find nothing."""
    return Schema(*(each.model_copy(update={"required": False}) for each in schema.fields))


def mode_of_deletes(mode: UpsertMode) -> Mode:
    return COPY_ON_WRITE if mode == "copy-on-write" else MERGE_ON_READ


# Rows as a table of their keys: k0, k1, …, i (the number of the row) and v (the value of latest_by)


def _frame(view: View, by: Matching, batches: Sequence[pa.RecordBatch], schema: Schema) -> pa.Table:
    deletes = Deletes(view.storage, view.metadata)

    def column(field_id: int) -> Array:
        path, kind = source_path(schema, field_id), deletes.key_type(field_id)
        assert path is not None, "matching() refuses such columns"
        parts = (convert(column_at(batch, path), kind, lambda: "A key column") for batch in batches)
        return arrow.chunked_array([_one_of_equals(each) for each in parts], kind)

    columns = {f"k{at}": column(field_id) for at, field_id in enumerate(by.field_ids)}
    if by.latest_by is not None and by.latest_by in schema.field_ids:
        columns["v"] = column(by.latest_by)
    count = sum(batch.num_rows for batch in batches)
    found: pa.Table = arrow.table({**columns, "i": arrow.array(range(count), pa.int64())})
    return found


def _one_of_equals(values: Array) -> Array:
    """One NaN, and 0.0 for -0.0: they are equal in SQL, and not the same to a set of keys."""
    if not pa.types.is_floating(values.type):
        return values
    return pc.if_else(
        pc.is_nan(values), arrow.scalar(math.nan, values.type), pc.add(values, arrow.scalar(0, values.type))
    )


def _names(frame: pa.Table) -> list[str]:
    return [name for name in frame.column_names if name.startswith("k")]


def _flat(column: Array) -> Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _keys(by: Matching, frame: pa.Table) -> Keys:
    return Keys.of(by.field_ids, [_flat(frame[name]) for name in _names(frame)])


def _split(frame: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows with a whole key, and those with a null in it."""
    whole = pc.is_valid(frame[_names(frame)[0]])
    for name in _names(frame)[1:]:
        whole = pc.and_(whole, pc.is_valid(frame[name]))
    return frame.filter(whole), frame.filter(pc.invert(whole))


def _unique(frame: pa.Table, schema: Schema, by: Matching) -> pa.Table:
    counted: Any = frame.group_by(_names(frame)).aggregate([("i", "count")])
    twice = counted.filter(pc.greater(counted["i_count"], 1)).slice(0, 1)
    if not twice.num_rows:
        return frame
    named = (schema.find_column_name(field_id) for field_id in by.field_ids)
    shown = ", ".join(f"{name}={twice[f'k{at}'][0]}" for at, name in enumerate(named))
    raise repeated_key(twice["i_count"][0], shown)


def _latest(frame: pa.Table) -> pa.Table:
    """For each key the row with the greatest value, and of equal ones the last. A null is less than any value."""
    ranked = frame.append_column("has", pc.cast(pc.is_valid(frame["v"]), pa.int8()))
    order = pc.sort_indices(ranked, [("has", "ascending"), ("v", "ascending"), ("i", "ascending")])
    grouped: Any = frame.take(order).group_by(_names(frame), use_threads=False)
    last = grouped.aggregate([("i", "last")])
    return frame.filter(pc.is_in(frame["i"], value_set=_flat(last["i_last"])))


# Rows of the table

Found = list[tuple[FileTask, pa.Table, Array]]
"""For each file the keys of its rows that were found, and their positions."""


def _search(builder: WriteBuilder, by: Matching, frame: pa.Table, verb: str) -> tuple[Read, Found]:
    view = builder.view
    # Rows of files are compared with a set of keys as they are.
    keys = None if any(pa.types.is_floating(frame[name].type) for name in _names(frame)) else _keys(by, frame)
    where: Filter = near_keys(view.schema, {each: _flat(frame[f"k{at}"]) for at, each in enumerate(by.field_ids)})
    # With latest_by, rows that are not replaced decide as well: they must stay.
    read = Read(where, keys, sees_removals=by.latest_by is not None)
    wanted = by.field_ids if by.latest_by is None else (*by.field_ids, by.latest_by)
    schema = key_schema(view.schema, wanted)
    tasks = view.tasks(where)
    view.check_size(tasks, verb)
    found: Found = []
    for task in tasks:
        pieces = list(rows_with_positions(task, builder.narrowed(schema), keys))
        if pieces:
            numbers = arrow.concat_arrays([number for _, number in pieces])
            found.append((task, _frame(view, by, [batch for batch, _ in pieces], schema), numbers))
    return read, found


def _not_older(frame: pa.Table, found: Found) -> pa.Table:
    """The rows whose value is not less than that of the table's rows with their key."""
    if not found:
        return frame
    names = _names(frame)
    there: Any = arrow.concat_tables([each for _, each, _ in found])
    newest = there.group_by(names).aggregate([("v", "max")])
    joined = frame.join(newest, names, join_type="left outer")
    not_older = pc.fill_null(pc.greater_equal(joined["v"], joined["v_max"]), False)
    return joined.filter(pc.or_(pc.is_null(joined["v_max"]), not_older))


def _delete(builder: WriteBuilder, found: Found, keys: Keys, mode: Mode, *, moves: bool) -> tuple[int, int]:
    """How many of the keys were there, and how many rows they had."""
    gone: list[pa.Table] = []
    count = 0
    for task, frame, numbers in found:
        mask = keys.holds([_flat(frame[name]) for name in _names(frame)])
        rows: BitMap64 = bitmap(numbers.filter(mask))
        if not rows:
            continue
        builder.take_out(task, rows, mode)
        if moves:
            builder.move(task.file.file_path, rows)
        gone.append(frame.filter(mask).select(_names(frame)))
        count += len(rows)
    if not gone:
        return 0, 0
    distinct: Any = arrow.concat_tables(gone).group_by(_names(gone[0])).aggregate([])
    return distinct.num_rows, count

"""Upsert: each row replaces the row with the same key, if there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute
from pyiceberg.schema import Schema

from frazil.commit.operations import Kind, Read, RowCounts, Write
from frazil.dml.view import COPY_ON_WRITE, MERGE_ON_READ, Settings, View
from frazil.dml.write_builder import WriteBuilder
from frazil.errors import InvalidInput, Unsupported
from frazil.expr import near_keys
from frazil.format.metadata import TableMetadata
from frazil.format.partitions import column_at, reaches_everything, source_path
from frazil.read.deletes import Deletes, Keys
from frazil.read.layout import convert
from frazil.read.plan import FileTask
from frazil.read.positions import bitmap, rows_with_positions
from frazil.stage.deletes import key_schema, pick
from frazil.stage.rows import conform, to_reader

UpsertMode = Literal["equality", "position", "copy-on-write"]
Array = Any
pc: Any = pyarrow.compute
arrow: Any = pa


def key_ids(metadata: TableMetadata) -> tuple[int, ...]:
    """The field ids of the table's key. Raises InvalidInput when it has none."""
    found = tuple(sorted(metadata.schema().identifier_field_ids))
    if not found:
        raise InvalidInput(
            "The table has no key columns to find rows by",
            advice="Create it with keys=['id'], or use delete() and append()",
        )
    return found


def key_spec(metadata: TableMetadata) -> int | None:
    """The spec under which equality deletes reach every row with the key (rule P21).

    None: the table must get a spec without partitions first.
    """
    specs = metadata.specs()
    for spec_id, spec in specs.items():
        if reaches_everything(spec):
            return spec_id
    keys = set(metadata.schema().identifier_field_ids)
    only = next(iter(specs.values())) if len(specs) == 1 else None
    # Rows with one key are then always in one partition.
    if only is not None and keys and all(each.source_id in keys for each in only.fields):
        return only.spec_id
    return None


def reaching_spec(view: View) -> int:
    """``key_spec``, or Unsupported if there is none."""
    found = key_spec(view.metadata)
    if found is None:
        raise Unsupported(
            f"The table {view.table} has no spec under which deletes by key reach all its rows",
            advice="Add a spec without partitions first, or use mode='position'",
        )
    return found


def upsert(view: View, rows: object, settings: Settings, mode: UpsertMode) -> Write:
    """Insert or replace rows by the table's keys. ``rows`` with two rows of one key are refused.

    Mode "equality" reads nothing and cannot know which keys existed: all rows count as inserted.
    """
    incoming = _IncomingRows(view, key_ids(view.metadata))
    with WriteBuilder(view, settings) as builder:
        if view.kept is not None:
            return _replaced_again(builder, incoming, view.kept.write, mode)
        staged = builder.add_rows(incoming.rows(rows))
        incoming.refuse_duplicates()
        if not staged.files:
            return builder.build(Kind.UPSERT, RowCounts())
        if mode == "equality":
            return _by_equality(builder, incoming, staged.rows)
        columns = incoming.columns()
        read = Read(near_keys(view.schema, columns), Keys.of(incoming.field_ids, list(columns.values())))
        return _by_position(builder, incoming, read, staged.rows, mode)


def _replaced_again(builder: WriteBuilder, incoming: _IncomingRows, kept: Write, mode: UpsertMode) -> Write:
    """The rows are staged already; what is left is to replace rows of files that arrived or changed since."""
    (read,) = kept.reads
    return _by_position(builder, incoming, replace(read, where=builder.view.bound(read.where)), 0, mode)


def _by_equality(builder: WriteBuilder, incoming: _IncomingRows, count: int) -> Write:
    metadata = builder.view.metadata
    spec_id = reaching_spec(builder.view)
    builder.add_keys(incoming.key_rows, incoming.field_ids, spec_id)
    partitioned = None if reaches_everything(metadata.spec(spec_id)) else spec_id
    counts = RowCounts(inserted=count)
    return builder.build(Kind.UPSERT, counts, keys=incoming.field_ids, key_spec_id=partitioned)


def _by_position(builder: WriteBuilder, incoming: _IncomingRows, read: Read, count: int, mode: UpsertMode) -> Write:
    """Find the existing rows with these keys and delete them by position."""
    view, keys = builder.view, read.keys
    how = COPY_ON_WRITE if mode == "copy-on-write" else MERGE_ON_READ
    context = builder.narrowed(incoming.key_schema)
    there: list[pa.RecordBatch] = []
    replaced = 0
    tasks = view.tasks(read.where)
    view.check_size(tasks, "upsert")
    for task in tasks:
        rows = bitmap(_found(task, context, keys, there))
        builder.delete_rows(task, rows, how, keys)
        if rows:
            builder.move(task.file.file_path, rows)
        replaced += len(rows)
    for task in view.tasks_kept(read.where):
        replaced += len(_found(task, context, keys, there))
    updated = _distinct(incoming.columns_of(there)) if there else 0
    # More rows than keys: a key existed more than once; one row of it counts as updated.
    counts = RowCounts(inserted=count - updated, updated=updated, deleted=replaced - updated)
    return builder.build(Kind.UPSERT, counts, reads=(read,), keys=incoming.field_ids)


def _found(task: FileTask, context: Any, keys: Keys | None, there: list[pa.RecordBatch]) -> Array:
    numbers: list[Array] = []
    for batch, found in rows_with_positions(task, context, keys):
        there.append(batch)
        numbers.append(found)
    return arrow.concat_arrays(numbers) if numbers else arrow.array([], pa.int64())


@dataclass(slots=True)
class _IncomingRows:
    """The incoming rows as they are staged; their keys are kept."""

    view: View
    field_ids: tuple[int, ...]
    key_rows: list[pa.RecordBatch] = field(default_factory=list)

    @property
    def key_schema(self) -> Schema:
        return key_schema(self.view.schema, self.field_ids)

    def rows(self, rows: object) -> Iterator[pa.RecordBatch]:
        schema, keys = self.view.schema, self.key_schema
        for batch in to_reader(rows, schema):
            # Keys are required columns, so that a null in one is refused here.
            fitting = conform(batch, schema)
            if fitting.num_rows:
                self.key_rows.append(pick(fitting, keys))
                yield fitting

    def columns(self) -> dict[int, Array]:
        """Field id → the incoming keys' values of that column, in the type that keys are compared in."""
        return self.columns_of(self.key_rows)

    def columns_of(self, batches: list[pa.RecordBatch]) -> dict[int, Array]:
        deletes, schema = Deletes(self.view.storage, self.view.metadata), self.key_schema
        found: dict[int, Array] = {}
        for field_id in self.field_ids:
            path = source_path(schema, field_id)
            if path is None:
                raise Unsupported(f"The key column {field_id} is inside a list or map")
            kind = deletes.key_type(field_id)
            parts = [convert(column_at(batch, path), kind, lambda: "A key column") for batch in batches]
            found[field_id] = arrow.concat_arrays(parts) if parts else arrow.array([], kind)
        return found

    def refuse_duplicates(self) -> None:
        """Rows of one call share a sequence number: of two with one key, neither would replace the other (rule P21)."""
        columns = self.columns()
        if not self.key_rows or _distinct(columns) == len(next(iter(columns.values()))):
            return
        schema = self.view.schema
        named = arrow.table({str(schema.find_column_name(each)): values for each, values in columns.items()})
        counted = named.group_by(named.column_names).aggregate([([], "count_all")])
        example = counted.filter(pc.greater(counted["count_all"], 1)).slice(0, 1)
        shown = ", ".join(f"{name}={example[name][0]}" for name in named.column_names)
        raise InvalidInput(
            f"{example['count_all'][0]} of the rows have the same key {shown}",
            advice="Keep one row for each key: the rows of one call have no order in which the last could win",
        )


def _distinct(columns: Mapping[int, Array]) -> int:
    named = arrow.table({str(field_id): values for field_id, values in columns.items()})
    return int(named.group_by(named.column_names).aggregate([]).num_rows)

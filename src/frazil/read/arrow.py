"""Reads the files of a plan as Arrow batches, a piece at a time, so memory does not grow with the table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from frazil.format import pruning
from frazil.format.filters import Filter
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import DataFile
from frazil.read.deletes import Deletes, Keys, Positions
from frazil.read.layout import Array, FileColumn, Layout, Projection, fetch, file_layout
from frazil.read.parquet import opened
from frazil.read.plan import FileTask

pc: Any = pyarrow.compute
BATCH_ROWS = 65_536
_BOUNDED = (
    BooleanType, IntegerType, LongType, FloatType, DoubleType, StringType, DateType, TimestampType, TimestamptzType,
)  # fmt: skip
"""The types whose row-group statistics pyarrow gives as values that compare as Iceberg's do."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What reading any file of a scan needs."""

    storage: Storage
    metadata: TableMetadata
    schema: Schema
    """The columns wanted, in the order wanted."""
    deletes: Deletes
    batch_rows: int = BATCH_ROWS

    @staticmethod
    def of(storage: Storage, metadata: TableMetadata, schema: Schema, batch_rows: int = BATCH_ROWS) -> Reading:
        return Reading(storage, metadata, schema, Deletes(storage, metadata), batch_rows)

    @property
    def arrow_schema(self) -> pa.Schema:
        return schema_to_pyarrow(self.schema, include_field_ids=False)


def read_task(task: FileTask, reading: Reading) -> Iterator[pa.RecordBatch]:
    """The rows of one file that are live and match, as the wanted columns."""
    with opened(reading.storage, task.file) as parquet:
        opening = _Opening(task, reading, parquet)
        projection = Projection(opening.layout, reading.schema, opening.missing)
        for batch, kept in opening.pieces():
            rows = batch if kept is None else batch.filter(kept)
            if rows.num_rows:
                yield projection.rows(rows)


def count_task(task: FileTask, reading: Reading) -> int:
    """How many rows of one file are live and match, from metadata where that is exact."""
    if task.residual is None:
        if not task.deletes:
            return task.file.record_count
        if not reading.deletes.keys(task.deletes):
            gone = reading.deletes.positions(task.deletes, task.file.file_path)
            return task.file.record_count - gone.distinct(task.file.record_count)
    with opened(reading.storage, task.file) as parquet:
        pieces = _Opening(task, reading, parquet).pieces()
        return sum(batch.num_rows if kept is None else kept.true_count for batch, kept in pieces)


class _Opening:
    """One open file, and what to do with its batches."""

    def __init__(self, task: FileTask, reading: Reading, parquet: pq.ParquetFile) -> None:
        self._task = task
        self._reading = reading
        self._parquet = parquet
        self.layout = file_layout(parquet, task.file.file_path, reading.metadata.name_mapping)
        self.missing = _partition_values(task.file, reading.metadata)
        self._positions: Positions = reading.deletes.positions(task.deletes, task.file.file_path)
        self._keys: list[Keys] = reading.deletes.keys(task.deletes)

    def pieces(self) -> Iterator[tuple[pa.RecordBatch, Any]]:
        """Batches as the file holds them, each with the rows to keep (None: all)."""
        columns = self._columns()
        for groups, start in self._runs():
            position = start
            for batch in self._parquet.iter_batches(
                batch_size=self._reading.batch_rows, row_groups=groups, columns=columns
            ):
                yield batch, self._keep(batch, position)
                position += batch.num_rows

    def _columns(self) -> list[str]:
        leaves = self.layout.leaves_for(self._reading.schema)
        if self._task.residual is not None:
            for field_id in self._task.residual.field_ids:
                leaves |= self.layout.leaves_of(field_id)
        for keys in self._keys:
            for field_id in keys.field_ids:
                leaves |= self.layout.leaves_of(field_id)
        return [self.layout.leaves[leaf] for leaf in sorted(leaves)]

    def _runs(self) -> Iterator[tuple[list[int], int]]:
        """Neighbouring row groups that may match, with the position of their first row in the file."""
        may = _row_group_test(self._task.residual, self.layout, self._parquet)
        run: list[int] = []
        start = position = 0
        for group in range(self._parquet.metadata.num_row_groups):
            if may(group):
                if not run:
                    start = position
                run.append(group)
            elif run:
                yield run, start
                run = []
            position += self._parquet.metadata.row_group(group).num_rows
        if run:
            yield run, start

    def _keep(self, batch: pa.RecordBatch, position: int) -> Array | None:
        kept = self._positions.keep(position, batch.num_rows) if self._positions else None
        for keys in self._keys:
            columns = [
                self._reading.deletes.key_values(self.layout, batch, field_id, self.missing)
                for field_id in keys.field_ids
            ]
            gone = keys.holds(columns)
            kept = pc.invert(gone) if kept is None else pc.and_not(kept, gone)
        residual = self._task.residual
        if residual is None:
            return kept
        if kept is None:
            return self._selected(residual, batch)
        # Deleted rows must not be looked at: a filter may fail on their values.
        picked = self._selected(residual, batch.filter(kept))
        return pc.replace_with_mask(kept, kept, picked)

    def _selected(self, residual: Filter, batch: pa.RecordBatch) -> Array:
        return residual.mask_columns(
            batch.num_rows, lambda column: fetch(self.layout, batch, column.field_id, self.missing, column.type)
        )


def _partition_values(file: DataFile, metadata: TableMetadata) -> dict[int, Any]:
    """Values of identity-partitioned columns, for files that do not hold the column itself."""
    if not file.partition:
        return {}
    fields = metadata.spec(file.spec_id).fields
    return {
        field.source_id: value
        for field, value in zip(fields, file.partition, strict=False)
        if isinstance(field.transform, IdentityTransform)
    }


# Row groups


def _row_group_test(residual: Filter | None, layout: Layout, parquet: pq.ParquetFile) -> Any:
    if residual is None:
        return lambda _: True
    columns = {}
    for field_id in residual.field_ids:
        path = layout.find(field_id)
        if path is not None and not path[-1].children and _comparable(residual, field_id, path[-1]):
            columns[field_id] = path[-1].first
    if not columns:
        return lambda _: True
    may = pruning.may_match(residual.may)
    facts = pruning.FileFacts(residual.schema, residual.field_ids, {})
    return lambda group: may(facts.of_file(_group_statistics(parquet.metadata.row_group(group), columns, residual)))


def _comparable(residual: Filter, field_id: int, column: FileColumn) -> bool:
    kind = residual.schema.find_type(field_id)
    return isinstance(kind, _BOUNDED) and not pa.types.is_unsigned_integer(column.type)


def _group_statistics(group: Any, columns: dict[int, int], residual: Filter) -> DataFile:
    """A row group's statistics in the form a manifest has a file's."""
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    for field_id, position in columns.items():
        chunk = group.column(position)
        statistics = chunk.statistics
        if statistics is None:
            continue
        values[field_id] = chunk.num_values
        if statistics.has_null_count:
            nulls[field_id] = statistics.null_count
        bounds = _bounds(statistics, residual.schema.find_type(field_id))
        if bounds is not None:
            lower[field_id], upper[field_id] = bounds
    return DataFile(
        file_path="",
        record_count=group.num_rows,
        file_size_in_bytes=0,
        value_counts=values,
        null_value_counts=nulls,
        lower_bounds=lower,
        upper_bounds=upper,
    )


def _bounds(statistics: Any, kind: Any) -> tuple[bytes, bytes] | None:
    if not statistics.has_min_max:
        return None
    try:
        return to_bytes(kind, _in_utc(statistics.min)), to_bytes(kind, _in_utc(statistics.max))
    except (ValueError, OverflowError, TypeError, AttributeError, NotImplementedError):
        return None  # a value beyond Python's calendar, or a type that the file spells unusually: no statistics


def _in_utc(value: Any) -> Any:
    # The file's count is UTC's, with a zone or without, while Python would take a naive time for a local one.
    return value.replace(tzinfo=dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo is None else value

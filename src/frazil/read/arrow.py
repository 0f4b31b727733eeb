"""Reads the files of a plan as Arrow batches, one at a time, so that memory use does not grow with the table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
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

from frazil.expr import FileFacts, Filter, may_match
from frazil.format.arrow_schema import to_arrow_schema
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import DataFile
from frazil.read.deletes import Deletes, Keys, Positions
from frazil.read.layout import Array, FileColumn, FileLayout, Projection, fetch, file_layout
from frazil.read.parquet import opened
from frazil.read.plan import FileTask

pc: Any = pyarrow.compute
BATCH_ROWS = 65_536
_BOUNDED = (
    BooleanType, IntegerType, LongType, FloatType, DoubleType, StringType, DateType, TimestampType, TimestamptzType,
)  # fmt: skip
"""The types whose row-group statistics pyarrow gives as values that compare as Iceberg's do."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadContext:
    """Everything that reading a file of a scan needs besides the file."""

    storage: Storage
    metadata: TableMetadata
    schema: Schema
    """The requested columns, in the requested order."""
    deletes: Deletes
    batch_rows: int = BATCH_ROWS

    @staticmethod
    def of(storage: Storage, metadata: TableMetadata, schema: Schema, batch_rows: int = BATCH_ROWS) -> ReadContext:
        return ReadContext(storage, metadata, schema, Deletes(storage, metadata), batch_rows)

    @property
    def arrow_schema(self) -> pa.Schema:
        return to_arrow_schema(self.schema, include_field_ids=False)


def read_task(task: FileTask, context: ReadContext) -> Iterator[pa.RecordBatch]:
    """The live rows of one file that match, as the requested columns."""
    with opened(context.storage, task.file) as parquet:
        reader = FileReader(task, context, parquet)
        projection = reader.projection()
        for piece in reader.pieces():
            rows = piece.batch if piece.matching is None else piece.batch.filter(piece.matching)
            if rows.num_rows:
                yield projection.rows(rows)


def count_task(task: FileTask, context: ReadContext) -> int:
    """The number of live rows of one file that match, from metadata where that is exact."""
    if task.residual is None:
        if not task.deletes:
            return task.file.record_count
        if not context.deletes.keys(task.deletes):
            gone = context.deletes.positions(task.deletes, task.file.file_path)
            return task.file.record_count - gone.distinct(task.file.record_count)
    with opened(context.storage, task.file) as parquet:
        pieces = FileReader(task, context, parquet).pieces()
        return sum(piece.batch.num_rows if piece.matching is None else piece.matching.true_count for piece in pieces)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Consecutive rows of a file, with the file's own columns."""

    batch: pa.RecordBatch
    first: int
    """The position of the first row in the file."""
    live: Array | None
    """True for each row that no delete removes; None: all."""
    matching: Array | None
    """True for each live row that matches; None: all."""


class FileReader:
    """Reads one open file with its deletes and residual filter. ``wanted_keys``: only rows with such a key match."""

    def __init__(
        self, task: FileTask, context: ReadContext, parquet: pq.ParquetFile, wanted_keys: Keys | None = None
    ) -> None:
        self._task = task
        self._context = context
        self._parquet = parquet
        self.layout = file_layout(parquet, task.file.file_path, context.metadata.name_mapping)
        self.missing = partition_values(task.file, context.metadata)
        self._positions: Positions = context.deletes.positions(task.deletes, task.file.file_path)
        self._keys: list[Keys] = context.deletes.keys(task.deletes)
        self._wanted_keys = wanted_keys

    def projection(self) -> Projection:
        """From the file's columns to the requested ones."""
        return Projection(self.layout, self._context.schema, self.missing)

    def pieces(self, *, every_row: bool = False) -> Iterator[Piece]:
        """The file's rows in order; row groups without a match are skipped unless ``every_row``."""
        columns = self._columns()
        everything = [(list(range(self._parquet.metadata.num_row_groups)), 0)]
        for groups, start in everything if every_row else self._runs():
            position = start
            for batch in self._parquet.iter_batches(
                batch_size=self._context.batch_rows, row_groups=groups, columns=columns
            ):
                live = self._live(batch, position)
                yield Piece(batch, position, live, self._matching(batch, live))
                position += batch.num_rows

    def _columns(self) -> list[str]:
        leaves = self.layout.leaves_for(self._context.schema)
        if self._task.residual is not None:
            for field_id in self._task.residual.field_ids:
                leaves |= self.layout.leaves_of(field_id)
        for keys in (*self._keys, *([self._wanted_keys] if self._wanted_keys is not None else [])):
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

    def _live(self, batch: pa.RecordBatch, position: int) -> Array | None:
        kept = self._positions.keep(position, batch.num_rows) if self._positions else None
        for keys in self._keys:
            gone = self._holding(keys, batch)
            kept = pc.invert(gone) if kept is None else pc.and_not(kept, gone)
        return kept

    def _matching(self, batch: pa.RecordBatch, live: Array | None) -> Array | None:
        if self._task.residual is None and self._wanted_keys is None:
            return live
        if live is None:
            return self._selected(batch)
        # The filter must not see deleted rows: it may fail on their values.
        return pc.replace_with_mask(live, live, self._selected(batch.filter(live)))

    def _selected(self, batch: pa.RecordBatch) -> Array:
        held = None if self._wanted_keys is None else self._holding(self._wanted_keys, batch)
        residual = self._task.residual
        if residual is None:
            return held
        picked = residual.mask_columns(
            batch.num_rows, lambda column: fetch(self.layout, batch, column.field_id, self.missing, column.type)
        )
        return picked if held is None else pc.and_(picked, held)

    def _holding(self, keys: Keys, batch: pa.RecordBatch) -> Array:
        """True for each row whose key is one of these."""
        key_values = self._context.deletes.key_values
        return keys.holds([key_values(self.layout, batch, field_id, self.missing) for field_id in keys.field_ids])


def partition_values(file: DataFile, metadata: TableMetadata) -> dict[int, Any]:
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


def _row_group_test(residual: Filter | None, layout: FileLayout, parquet: pq.ParquetFile) -> Any:
    if residual is None:
        return lambda _: True
    columns = {}
    for field_id in residual.field_ids:
        path = layout.find(field_id)
        if path is not None and not path[-1].children and _comparable(residual, field_id, path[-1]):
            columns[field_id] = path[-1].first
    if not columns:
        return lambda _: True
    may = may_match(residual.may)
    facts = FileFacts(residual.schema, residual.field_ids, {})
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

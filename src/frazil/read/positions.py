"""Rows of one file with their positions, for deleting rows of a file and copying the remaining ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyroaring import BitMap64

from frazil.read.arrow import FileReader, Piece, ReadContext
from frazil.read.deletes import Keys
from frazil.read.layout import Array
from frazil.read.parquet import opened
from frazil.read.plan import FileTask

pc: Any = pyarrow.compute
arrow: Any = pa


def rows_with_positions(
    task: FileTask, context: ReadContext, keys: Keys | None = None
) -> Iterator[tuple[pa.RecordBatch, pa.Int64Array]]:
    """The live rows that match the residual filter (and have one of the keys), with their positions."""
    with opened(context.storage, task.file) as parquet:
        reader = FileReader(task, context, parquet, keys)
        projection = reader.projection()
        for piece in reader.pieces():
            rows, numbers = _kept(piece, piece.matching)
            if rows.num_rows:
                yield projection.rows(rows), numbers


def rows_with_matches(
    task: FileTask, context: ReadContext, keys: Keys | None = None
) -> Iterator[tuple[pa.RecordBatch, pa.Int64Array, pa.BooleanArray]]:
    """Every live row with its position, and True for each that matches."""
    with opened(context.storage, task.file) as parquet:
        reader = FileReader(task, context, parquet, keys)
        projection = reader.projection()
        for piece in reader.pieces(every_row=True):
            rows, numbers = _kept(piece, piece.live)
            if rows.num_rows:
                yield projection.rows(rows), numbers, _among_live(piece)


def matching_positions(task: FileTask, context: ReadContext) -> BitMap64:
    """The positions of the live rows that match. A file whose rows all match is not opened."""
    if task.residual is None and not context.deletes.keys(task.deletes):
        found = BitMap64()
        found.add_range(0, task.file.record_count)
        for part in context.deletes.positions(task.deletes, task.file.file_path).parts:
            found -= BitMap64(part)
        return found
    return _positions(task, context, None)


def key_positions(task: FileTask, context: ReadContext, keys: Keys) -> BitMap64:
    """The positions of the live rows that match and have one of these keys."""
    return _positions(task, context, keys)


def _positions(task: FileTask, context: ReadContext, keys: Keys | None) -> BitMap64:
    found = BitMap64()
    with opened(context.storage, task.file) as parquet:
        for piece in FileReader(task, context, parquet, keys).pieces():
            if piece.matching is None:
                found.add_range(piece.first, piece.first + piece.batch.num_rows)
            else:
                found |= bitmap(_numbers(piece).filter(piece.matching))
    return found


def bitmap(numbers: pa.Int64Array) -> BitMap64:
    """Row numbers, none of them null, as a set."""
    if not len(numbers):
        return BitMap64()
    data = memoryview(numbers.buffers()[1]).cast("B").cast("q")  # type: ignore[arg-type]
    return BitMap64(data[numbers.offset : numbers.offset + len(numbers)])


def _kept(piece: Piece, mask: Array | None) -> tuple[pa.RecordBatch, pa.Int64Array]:
    numbers = _numbers(piece)
    return (piece.batch, numbers) if mask is None else (piece.batch.filter(mask), numbers.filter(mask))


def _numbers(piece: Piece) -> pa.Int64Array:
    counted: pa.Int64Array = pc.cumulative_sum(arrow.repeat(1, piece.batch.num_rows), start=piece.first - 1)
    return counted


def _among_live(piece: Piece) -> pa.BooleanArray:
    matching = piece.matching
    if matching is None:
        return arrow.repeat(True, piece.batch.num_rows)  # type: ignore[no-any-return]
    among: pa.BooleanArray = matching if piece.live is None else matching.filter(piece.live)
    return among

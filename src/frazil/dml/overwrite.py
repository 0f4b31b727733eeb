"""Overwrite: replaces the rows that match a condition, or whole partitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyiceberg.partitioning import PartitionSpec

from frazil.commit.operations import Kind, Read, RowCounts, Write
from frazil.dml.delete import delete_matching
from frazil.dml.view import COPY_ON_WRITE, Settings, View
from frazil.dml.write_builder import WriteBuilder
from frazil.errors import InvalidInput
from frazil.expr import Filter, in_partitions
from frazil.format.partitions import partition_identity
from frazil.model import DataFile
from frazil.read.plan import FileTask
from frazil.read.positions import matching_positions
from frazil.stage.rows import conform, to_reader

pc: Any = pyarrow.compute
_LONGEST_SHOWN = 300


def overwrite(view: View, rows: object, where: Filter, settings: Settings) -> Write:
    """Replace the rows that match ``where`` with these rows, each of which must match as well."""
    where = view.bound(where)
    with WriteBuilder(view, settings) as builder:
        inserted = 0 if view.kept else builder.add_rows(matching_rows(rows, where, view)).rows
        deleted = delete_matching(builder, where, COPY_ON_WRITE)
        counts = RowCounts(inserted=inserted, deleted=deleted)
        return builder.build(Kind.OVERWRITE, counts, reads=(Read(where),), asked=where)


def matching_rows(rows: object, where: Filter, view: View) -> Iterator[pa.RecordBatch]:
    """The rows, each of which must match. Raises InvalidInput with the first that does not."""
    schema = view.schema
    for batch in to_reader(rows, schema):
        fitting = conform(batch, schema)
        kept = where.mask(fitting)
        if kept.true_count < len(kept):
            raise _stray(fitting.filter(pc.invert(kept)).slice(0, 1), where)
        yield fitting


def _stray(row: pa.RecordBatch, where: Filter) -> InvalidInput:
    try:
        text = repr(row.to_pylist()[0])
    except (ValueError, OverflowError):
        text = str(row)  # a date beyond Python's calendar
    shown = text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"
    return InvalidInput(
        f"A row does not match where={where.text!r}: {shown}",
        advice="Remove such rows, or widen where: every new row must match it",
    )


def replace_partitions(view: View, rows: object, settings: Settings) -> Write:
    """Empty the partitions that these rows fall into, and fill them with the rows.

    Partitions are those of the table's current spec. In files of older specs, rows that would fall into one of these
    partitions are deleted as well (rule P27).
    """
    spec = replaced_spec(view)
    with WriteBuilder(view, settings) as builder:
        inserted = 0 if view.kept else builder.add_rows(rows).rows
        if not builder.own_rows:
            return builder.build(Kind.REPLACE_PARTITIONS, RowCounts())
        partitions = {partition_identity(file.partition): file.partition for file in builder.own_rows}
        where = in_partitions(spec, partitions.values(), view.schema)
        deleted = 0
        for task in view.tasks(where):
            task = without_residual_if_replaced(task, spec.spec_id, partitions)
            rows_of_file = matching_positions(task, builder.read_context)
            builder.delete_rows(task, rows_of_file, COPY_ON_WRITE)
            deleted += len(rows_of_file)
        counts = RowCounts(inserted=inserted, deleted=deleted)
        return builder.build(Kind.REPLACE_PARTITIONS, counts, reads=(Read(where),), asked=where)


def replaced_spec(view: View) -> PartitionSpec:
    """The spec whose partitions are replaced. Raises InvalidInput when there are none.

    If the statement is evaluated again, it is still the spec that its rows were staged under.
    """
    kept = () if view.kept is None else view.kept.rows_of_the_caller
    spec = view.metadata.spec(kept[0].spec_id if kept else None)
    if spec.is_unpartitioned():
        raise InvalidInput(
            f"The table {view.table} is not partitioned, so there is no partition to replace",
            advice='Use overwrite(rows, where="true") to replace the whole table, or name the rows with where',
        )
    return spec


def without_residual_if_replaced(task: FileTask, spec_id: int, partitions: dict[Any, Any]) -> FileTask:
    """Without a residual if the whole file is in a replaced partition; truncated bounds of strings may not prove it."""
    file: DataFile = task.file
    whole = file.spec_id == spec_id and partition_identity(file.partition) in partitions
    return replace(task, residual=None) if whole else task

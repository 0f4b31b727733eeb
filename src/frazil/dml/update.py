"""Update: gives rows new values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyroaring import BitMap64

from frazil.commit.operations import Kind, Read, RowCounts, Write
from frazil.dml.assignments import Assignments
from frazil.dml.view import Mode, Settings, View
from frazil.dml.write_builder import WriteBuilder
from frazil.expr import Filter
from frazil.read.plan import FileTask
from frazil.read.positions import bitmap, rows_with_positions


def update(view: View, assignments: Mapping[str, object], where: Filter, settings: Settings, mode: Mode) -> Write:
    """Change columns of the rows that match. Rows whose values stay the same count as updated as well.

    The changed rows are written like new ones, so that they are in the partition of their new values; the old ones are
    deleted from their files.
    """
    where = view.bound(where)
    new_values = Assignments(assignments, view.schema, case_sensitive=where.case_sensitive)
    found: list[tuple[FileTask, BitMap64]] = []
    with WriteBuilder(view, settings) as builder:
        staged = builder.add_rows(_changed(builder, where, new_values, found))
        for task, rows in found:
            builder.delete_rows(task, rows, mode)
            builder.move(task.file.file_path, rows)
        return builder.build(Kind.UPDATE, RowCounts(updated=staged.rows), reads=(Read(where),))


def _changed(
    builder: WriteBuilder, where: Filter, new_values: Assignments, found: list[tuple[FileTask, BitMap64]]
) -> Iterator[pa.RecordBatch]:
    """The matching rows with their new values; their positions are appended to ``found``."""
    tasks = builder.view.tasks(where)
    builder.view.check_size(tasks, "update")
    for task in tasks:
        rows = BitMap64()
        for batch, numbers in rows_with_positions(task, builder.read_context):
            rows |= bitmap(numbers)
            yield new_values.apply(batch)
        if rows:
            found.append((task, rows))

"""Delete: removes the rows that match a condition."""

from __future__ import annotations

from frazil.commit.operations import Kind, Read, RowCounts, Write
from frazil.dml.view import Mode, Settings, View
from frazil.dml.write_builder import WriteBuilder
from frazil.expr import Filter
from frazil.read.positions import matching_positions


def delete(view: View, where: Filter, settings: Settings, mode: Mode) -> Write:
    """Delete the rows that match.

    A file whose live rows all match is removed, without being opened where statistics prove it. In other files the rows
    get position deletes, or the remaining rows are copied to a new file.
    """
    where = view.bound(where)
    with WriteBuilder(view, settings) as builder:
        deleted = delete_matching(builder, where, mode)
        return builder.build(Kind.DELETE, RowCounts(deleted=deleted), reads=(Read(where),), asked=where)


def delete_matching(builder: WriteBuilder, where: Filter, mode: Mode) -> int:
    """Delete every row that the filter selects; returns how many there were."""
    count = 0
    tasks = builder.view.tasks(where)
    builder.view.check_size((task for task in tasks if task.residual is not None), "delete")
    for task in tasks:
        rows = matching_positions(task, builder.read_context)
        builder.delete_rows(task, rows, mode)
        count += len(rows)
    return count

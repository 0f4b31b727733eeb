"""Append: new rows, and nothing else."""

from __future__ import annotations

from frazil.commit.operations import Kind, RowCounts, Write
from frazil.dml.view import Settings, View
from frazil.dml.write_builder import WriteBuilder


def append(view: View, rows: object, settings: Settings) -> Write:
    """Add rows."""
    with WriteBuilder(view, settings) as builder:
        staged = builder.add_rows(rows)
        return builder.build(Kind.APPEND, RowCounts(inserted=staged.rows))

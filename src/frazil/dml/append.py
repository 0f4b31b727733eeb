"""Rows that only come."""

from __future__ import annotations

from frazil.commit.operations import Kind, RowCounts, Write
from frazil.dml.draft import Draft
from frazil.dml.view import Settings, View


def append(view: View, rows: object, settings: Settings) -> Write:
    """Add rows."""
    with Draft(view, settings) as draft:
        staged = draft.add_rows(rows)
        return draft.finished(Kind.APPEND, RowCounts(inserted=staged.rows))

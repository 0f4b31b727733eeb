"""Deletes in another form: equality deletes become position deletes, and many position delete files become one.

No row changes: a row that is marked here is deleted already. Which files are resolved is decided in
``services/delete_files.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyroaring import BitMap64

from frazil.commit.operations import Kind, RowCounts, Write
from frazil.dml.view import Settings, View
from frazil.dml.write_builder import WriteBuilder
from frazil.model import Content, Entry
from frazil.read.plan import FileTask
from frazil.read.positions import matching_positions


@dataclass(frozen=True, slots=True, eq=False)
class Resolving:
    """Data files whose equality deletes are to be resolved, and the delete files that are not needed then."""

    tasks: tuple[FileTask, ...]
    resolved: tuple[Entry, ...]


def resolve(view: View, settings: Settings, work: Resolving) -> Write:
    """Mark the rows that equality deletes remove, in this process."""
    view.check_size(work.tasks, "resolve_deletes")
    with WriteBuilder(view, replace(settings, options={})) as builder:
        for task in work.tasks:
            live, dead = dead_rows(builder, task)
            if not live:
                builder.remove(task)
            elif dead:
                builder.mark(task.file, dead)
        builder.drop_deletes(work.resolved)
        return builder.build(Kind.REWRITE, RowCounts())


def dead_rows(builder: WriteBuilder, task: FileTask) -> tuple[BitMap64, BitMap64]:
    """The live rows of a file, and those that equality deletes alone remove."""
    context, task = builder.key_context, replace(task, residual=None)
    by_position = tuple(ref for ref in task.deletes if ref.file.content == Content.POSITION_DELETES)
    live = matching_positions(task, context)
    return live, matching_positions(replace(task, deletes=by_position), context) - live


@dataclass(frozen=True, slots=True, eq=False)
class Regrouping:
    """Position delete files to replace, and the data files that they apply to."""

    tasks: tuple[FileTask, ...]
    replaced: tuple[Entry, ...]


def regroup(view: View, settings: Settings, work: Regrouping) -> Write:
    """One position delete file for each data file in place of several."""
    replaced = {entry.file.file_path for entry in work.replaced}
    with WriteBuilder(view, replace(settings, options={})) as builder:
        deletes = builder.read_context.deletes
        for task in work.tasks:
            mine = [ref for ref in task.deletes if ref.file.file_path in replaced]
            rows = _union([BitMap64(part) for part in deletes.positions(mine, task.file.file_path).parts])
            if rows:
                builder.mark(task.file, rows)
        builder.drop_deletes(work.replaced)
        builder.drop_unneeded_deletes()
        return builder.build(Kind.REWRITE, RowCounts())


def _union(parts: Sequence[BitMap64]) -> BitMap64:
    rows = BitMap64()
    for part in parts:
        rows |= part
    return rows

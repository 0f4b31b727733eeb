"""Rewrites data files in which deleted rows are still to be found, and leaves the deletes out (for erasure)."""

from __future__ import annotations

from dataclasses import replace

from frazil.commit.operations import Kind, RowCounts, Write
from frazil.dml.rewrite import copied_rows
from frazil.dml.view import Settings, View
from frazil.dml.write_builder import WriteBuilder
from frazil.expr import Filter, parse_filter
from frazil.model import Content
from frazil.read.plan import FileTask
from frazil.read.positions import matching_positions


def clean(view: View, settings: Settings, where: Filter) -> Write:
    """Copy the live rows of files that hold rows of ``where``, deleted or not, or that equality deletes apply to.

    Afterwards no live file holds a deleted row of ``where``, and no equality delete is left.
    """
    bound = view.bound(where)
    may_hold = {task.file.file_path: task for task in view.tasks(bound)}
    with WriteBuilder(view, settings) as builder:
        chosen = [
            task
            for each in view.tasks(parse_filter(None, view.schema))
            if _is_to_be_copied(task := replace(each, residual=None), may_hold, builder, bound)
        ]
        view.check_size(chosen, "erase")
        for task in chosen:
            builder.remove(task)
            builder.copy(copied_rows([task], builder.read_context), task.file)
        builder.drop_unneeded_deletes()
        return builder.build(Kind.REWRITE, RowCounts())


def _is_to_be_copied(task: FileTask, may_hold: dict[str, FileTask], builder: WriteBuilder, where: Filter) -> bool:
    if any(each.file.content is Content.EQUALITY_DELETES for each in task.deletes):
        return True
    if not task.deletes or task.file.file_path not in may_hold:
        # Without deletes every row is live, and live rows are deleted first.
        return False
    return bool(matching_positions(replace(task, deletes=(), residual=where), builder.read_context))

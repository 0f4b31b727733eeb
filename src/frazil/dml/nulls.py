"""Whether columns hold nulls, before they become required."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.schema import Schema

from frazil.commit.operations import Kind, Read, Write
from frazil.dml.view import View
from frazil.errors import InvalidInput
from frazil.expr import parse_filter
from frazil.format.evolution import BoundColumn, column_path
from frazil.model import Isolation
from frazil.read.arrow import count_task
from frazil.read.plan import FileTask


def checked_without_nulls(view: View, columns: Sequence[BoundColumn]) -> Write:
    """What was read to find no null, as a write that changes nothing: nulls that others add are a conflict with it.

    Statistics come first: files without nulls are not opened. Raises InvalidInput with a file that has one.
    """
    reads = []
    for column in columns:
        where = parse_filter(f"{_quoted(view.schema, column)} IS NULL", view.schema, case_sensitive=True)
        # Those that are refused by statistics come first: then no file has to be opened.
        for task in sorted(view.tasks(where), key=lambda task: not _known_nulls(task, column)):
            nulls = _known_nulls(task, column) or count_task(task, view.read_context(Schema()))
            if nulls:
                raise _refusal(view, column, task, nulls)
        reads.append(Read(where))
    return Write(
        Kind.APPEND,
        view.metadata.uuid,
        base=view.base,
        branch=view.branch,
        isolation=Isolation.SERIALIZABLE,
        reads=tuple(reads),
    )


def _known_nulls(task: FileTask, column: BoundColumn) -> int:
    """How many there certainly are; 0: it is not known, or rows may have been deleted."""
    return 0 if task.deletes else task.file.null_value_counts.get(column.field_id, 0)


def _refusal(view: View, column: BoundColumn, task: FileTask, nulls: int) -> InvalidInput:
    rows = "row holds" if nulls == 1 else "rows hold"
    return InvalidInput(
        f"The column {column.name!r} of {view.table} cannot become required: rows of the branch {view.branch!r} have "
        "no value in it",
        evidence=f"{nulls} {rows} null in {task.file.file_path}",
        advice=f"Give them one first, with update(…, where={column.name + ' IS NULL'!r})",
    )


def _quoted(schema: Schema, column: BoundColumn) -> str:
    path = column_path(schema, column.field_id) or ()
    return ".".join("`" + each.name.replace("`", "``") + "`" for each in path)

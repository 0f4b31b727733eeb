"""A statement that meets a conflict is evaluated again on the head where it met it (rule P39).

First outside the commit lock, for as long as a redo takes long; what still arrives is redone by the leader, while other
writers wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from frazil import observe
from frazil.catalog.base import Head
from frazil.commit.checks import Check
from frazil.commit.context import CommitContext
from frazil.commit.progress import Progress
from frazil.commit.unit import CommitUnit
from frazil.model import Conflict

REDOABLE = frozenset(
    {
        Check.BASE_IS_ANCESTOR,
        Check.FILES_EXIST,
        Check.FILES_NOT_REMOVED,
        Check.NO_NEW_DELETES,
        Check.ROW_OWNER,
        Check.NO_ADDED_ROWS,
        Check.NO_REMOVED_ROWS,
        Check.NO_NEW_DELETE_FILES,
    }
)
"""What concerns rows: on the newer version the statement finds other rows. Everything else would recur."""


def redone(
    context: CommitContext, unit: CommitUnit, head: Head, conflicts: Sequence[Conflict], progress: Progress
) -> CommitUnit | None:
    """The unit with its statement evaluated on this head; None: the conflicts stand."""
    if unit.statement is None or any(each.check not in REDOABLE for each in conflicts):
        return None
    if progress.redone >= unit.retry.tries - 1 or progress.is_late:
        return None
    later = unit.statement.on(head.metadata)
    if later is None:
        return None
    (earlier,) = unit.written
    progress.redoes(conflicts, earlier)
    table = earlier.redone(later.write, context.runtime)
    observe.redone(context, table.operations, unit.identity)
    tables = tuple(table if each is earlier else each for each in unit.tables)
    return replace(unit, tables=tables, statement=later)

"""What is kept of a commit that met other writers, once its outcome is known (``catalog/base.py:AttemptsLog``).

A lone commit without competition leaves nothing. No record has data of the table: checks and counts, never conditions,
values or paths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from frazil import observe
from frazil.catalog.base import AttemptsRecord
from frazil.commit.context import CommitContext
from frazil.commit.progress import Progress
from frazil.commit.unit import CommitUnit, TableUnit
from frazil.errors import CatalogUnavailable, CommitUnknown, ConflictError, PartlyCommitted, RetriesExhausted
from frazil.model import Conflict, Winner
from frazil.wording import counted

_USUAL_LOSSES = 1
"""Lost races that are not worth a record: a writer finds out by losing one that there are others."""
_OUTCOMES: tuple[tuple[type[Exception], str], ...] = (
    (ConflictError, "conflict"),
    (RetriesExhausted, "exhausted"),
    (CommitUnknown, "unknown"),
    (PartlyCommitted, "unknown"),
)


def ended(context: CommitContext, unit: CommitUnit, progress: Progress, error: Exception | None = None) -> None:
    """Record a commit that has ended, if it met other writers or faults. Never raises."""
    log = context.catalog.attempts
    # To wait for a catalog that does not answer, only to tell it so, would keep the error from its caller.
    causes = () if error is None else (error, error.__cause__)
    if log is None or any(isinstance(each, CatalogUnavailable) for each in causes):
        return
    record = record_of(unit, progress, error)
    if record is None:
        return
    try:
        log.add(record)
    except Exception as failed:  # noqa: BLE001 - whatever it is: the commit's outcome stands
        observe.log.debug("the attempts of commit %s were not recorded: %s", record.commit_id, type(failed).__name__)


def record_of(unit: CommitUnit, progress: Progress, error: Exception | None = None) -> AttemptsRecord | None:
    """The record of a commit; None: it met nothing that is worth one."""
    if error is None and progress.lost <= _USUAL_LOSSES and not (progress.faults or progress.redone):
        return None
    origin = unit.identity.origin
    conflicts = error.conflicts if isinstance(error, ConflictError) else ()
    winner = next((each.winner for each in conflicts if each.winner is not None), Winner())
    return AttemptsRecord(
        table_uuid=_table_of(unit, conflicts).table_uuid,
        commit_id=unit.identity.commit_id,
        app="" if origin is None else origin.app,
        host="" if origin is None else origin.host,
        verb=unit.name if origin is None else origin.verb,
        outcome=_outcome(error),
        attempts=progress.attempts,
        lost=progress.lost,
        faults=progress.faults,
        redone=progress.redone,
        elapsed_ms=round(1000 * progress.elapsed),
        check=str(conflicts[0].check) if conflicts else None,
        winner_app=winner.app,
        winner_verb=winner.verb,
        winner_commit_id=winner.commit_id,
        detail=_detail(conflicts, progress, error),
    )


def _table_of(unit: CommitUnit, conflicts: Sequence[Conflict]) -> TableUnit:
    """The table that the commit conflicted in, else the first that it wrote to."""
    named = {str(each.ident): each for each in unit.tables}
    found = [named[each.table] for each in conflicts if each.table in named]
    return [*found, *unit.written, *unit.tables][0]


def _outcome(error: Exception | None) -> str:
    if error is None:
        return "committed"
    return next((outcome for kind, outcome in _OUTCOMES if isinstance(error, kind)), "error")


def _detail(conflicts: Iterable[Conflict], progress: Progress, error: Exception | None) -> str:
    # Texts of checks and errors may name columns, files and values; their kinds do not.
    files: Counter[str] = Counter()
    for each in conflicts:
        files[str(each.check)] += len(each.files)
    found = [f"{check} ({counted(number, 'file')})" if number else check for check, number in files.items()]
    if progress.last_fault:
        found.append(f"last fault: {progress.last_fault}")
    if error is not None and _outcome(error) == "error":
        found.append(type(error).__name__)
    return "; ".join(found)

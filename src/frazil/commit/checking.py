"""The first two stages of a write: checked against what landed since its base, then rebased."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from frazil.catalog.base import Catalog, Head
from frazil.commit import summaries
from frazil.commit.checks import Check, FileInspector
from frazil.commit.conflicts import head_conflicts, history_conflicts, required, row_conflicts
from frazil.commit.history import History, history
from frazil.commit.operations import Operation, Write
from frazil.commit.rebase import rebase, unchanged
from frazil.commit.stages import Built, Checked, RebasedStep, Refused, Undecided
from frazil.commit.trace import RowTrace, trace_rows
from frazil.commit.unit import TableUnit, WriteStep
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.storage import Storage
from frazil.model import Change, Conflict, Content, Ident, Predicate, Snapshot
from frazil.runtime import Runtime

_NOTHING_SINCE = History((), base_is_ancestor=True)


def checked(unit: TableUnit, step: WriteStep, onto: Built, catalog: Catalog) -> Checked | Refused | Undecided:
    """Check a write against everything that landed since its base, on top of the steps that are built already."""
    write, metadata, found = step.write, onto.metadata, onto.head.metadata
    if conflicts := head_conflicts(write, metadata, found):
        return Refused(conflicts)
    since = _history(write, onto, catalog, unit.storage)
    if since.changes and (write.bundles or any(each.is_partial for each in onto.concurrent)):
        # The files to compare are listed in manifests that only their own writers open.
        return Undecided()
    trace, conflicts = examined(write, since, step.inspector.at(metadata, found), metadata, found)
    if trace is not None and trace.is_undecided:
        return Undecided()
    return Refused(conflicts) if conflicts else Checked(step, since, trace)


def examined(
    write: Write,
    since: History,
    inspector: FileInspector,
    head: TableMetadata,
    found: TableMetadata | None = None,
) -> tuple[RowTrace | None, tuple[Conflict, ...]]:
    """The rows of a write followed to the head, if anything landed since its base; and the conflicts."""
    if conflicts := history_conflicts(write, since):
        return None, conflicts
    if not since.changes:
        return None, ()
    against_predicates = Check.NOT_DELETED in required(write)
    trace = trace_rows(write, since.changes, inspector, against_predicates=against_predicates)
    return trace, row_conflicts(write, since.changes, trace, inspector, head, found)


def rebased(unit: TableUnit, passed: Checked, onto: Built) -> RebasedStep | Refused:
    """Rebase a checked write. Refused if a step of a transaction would move under the other steps."""
    step, since, trace = passed.step, passed.history, passed.trace
    found = unchanged(step.write) if trace is None else rebase(step.write, trace, step.inspector)
    if not since.base_is_ancestor or (since.changes and step is not unit.effective_writes[0]):
        # Whether files of another history need these deletes was not examined; and an equality delete of an earlier
        # step is newer than everything that landed since, and deletes rows of it.
        found = found.keeping(step.write.unneeded)
    result = RebasedStep(step, since, found)
    conflicts = _step_conflicts(unit, result, onto)
    return Refused(conflicts) if conflicts else result


def checked_and_rebased(
    unit: TableUnit, step: WriteStep, onto: Built, catalog: Catalog
) -> RebasedStep | Refused | Undecided:
    """Both stages."""
    passed = checked(unit, step, onto, catalog)
    return rebased(unit, passed, onto) if isinstance(passed, Checked) else passed


def conflicts_at(
    ident: Ident, operations: Sequence[Operation], head: Head, catalog: Catalog, storage: Storage, runtime: Runtime
) -> tuple[Conflict, ...]:
    """Why these operations cannot land on this head. Nothing is written."""
    unit = TableUnit.of(ident, operations, storage, runtime)
    return refused_at(unit, head, catalog)


def refused_at(unit: TableUnit, head: Head, catalog: Catalog) -> tuple[Conflict, ...]:
    """Why the writes of a unit cannot land on this head. What is read for that is remembered for the next attempt."""
    onto = Built.on(head)
    for step in unit.writes:
        found = checked_and_rebased(unit, step, onto, catalog)
        if isinstance(found, Refused):
            return found.conflicts
    return ()


def looks_back(write: Write, onto: Built) -> bool:
    """Whether a change that landed since can matter. Rows added blindly only mind rows that were deleted (P23)."""
    head = onto.metadata if onto.concurrent else onto.head.metadata
    if write.removed or write.positions or write.reads or write.unneeded or not write.owns_files:
        return True
    if write.on_deleted == "keep":
        return False
    first: Snapshot | None = None
    for first in head.ancestors(head.ref_snapshot_id(write.branch)):
        if first.snapshot_id == write.base.snapshot_id:
            return False
        if first.operation not in ("append", "replace"):
            return True
    # Unless the walk ended right after the base, a delete may have expired since, and its predicate may be recorded.
    return first is not None and first.parent_snapshot_id != write.base.snapshot_id


def _history(write: Write, onto: Built, catalog: Catalog, storage: Storage) -> History:
    head = onto.head.metadata
    if write.branch != MAIN and write.branch not in head.refs:
        # This very commit creates the branch: no other writer can have written to it.
        return _NOTHING_SINCE
    if not looks_back(write, onto):
        return _NOTHING_SINCE
    landed = history(storage, head, write.branch, write.base, _recorded_changes(catalog, head))
    return replace(landed, changes=(*landed.changes, *onto.concurrent))


def _recorded_changes(catalog: Catalog, head: TableMetadata) -> Callable[[int, int], Mapping[int, Change | Predicate]]:
    def find(after: int, up_to: int) -> Mapping[int, Change | Predicate]:
        log = catalog.changes
        return {} if log is None else summaries.from_records(log.find(head.uuid, after, up_to))

    return find


# Steps of a transaction


def _step_conflicts(unit: TableUnit, result: RebasedStep, onto: Built) -> tuple[Conflict, ...]:
    """Steps of one transaction name each other's files, so none of them may be rebased under the others."""
    step, since = result.step, result.history
    if len(unit.effective_writes) == 1 or not since.changes:
        return ()
    by_key = [
        change
        for change in since.changes
        if any(entry.file.content == Content.EQUALITY_DELETES for entry in change.deletes)
    ]
    # Copies made by a later step are newer than these deletes, which would no longer apply to them.
    escapes = bool(by_key and step.write.copies and step is not unit.effective_writes[0])
    if not escapes and (result.is_unchanged or _is_independent(unit, step)):
        return ()
    busy = [change for change in since.changes if change.removed or change.deletes] or list(since.changes)
    culprit = by_key[0] if escapes else busy[-1]
    return (
        Conflict(
            Check.FILES_EXIST,
            f"files that step {onto.steps + 1} of this transaction changes were changed concurrently",
            culprit.snapshot_id,
            culprit.operation,
            advice="Retry the transaction from its first read",
        ),
    )


def _is_independent(unit: TableUnit, step: WriteStep) -> bool:
    """No other step names the files that this one changes or adds."""
    own = _named_files(step.write)
    return all(own.isdisjoint(_named_files(other.write)) for other in unit.writes if other is not step)


def _named_files(write: Write) -> set[str]:
    return {file.file_path for file in (*write.removed, *write.added)} | set(write.positions)

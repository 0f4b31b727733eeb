"""What the caller of a commit gets: a Commit, or an error that says what is known."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from frazil import observe
from frazil.catalog.base import Catalog, ChangeLog, Head
from frazil.catalog.records import COMMIT_ID, find_record
from frazil.commit.checks import REPEATABLE, Check
from frazil.commit.delegation import DelegatedCommit
from frazil.commit.group import GROUP_SIZE, counts_of
from frazil.commit.operations import Identity
from frazil.commit.progress import Progress
from frazil.commit.stages import Built, TicketOutcome
from frazil.commit.unit import CommitUnit, TableUnit
from frazil.commit.winners import with_winners
from frazil.errors import CommitUnknown, ConflictError, InvalidInput
from frazil.format.metadata import MAIN, TableMetadata
from frazil.model import Commit, Conflict, Ident, Snapshot, TransactionCommit

_SHOWN = 10
"""Conflicts spelled out in a message; all of them are in the error's list."""


@dataclass(frozen=True, slots=True)
class Landed:
    """The commit is in its tables."""

    commit: Commit | TransactionCommit
    merges_due: tuple[tuple[Ident, str], ...] = ()
    """The branches whose manifests are to be merged now."""


def find_commit(
    catalog: Catalog, metadata: TableMetadata, identity: Identity, branch: str = MAIN, table: Ident | None = None
) -> Commit | None:
    """The earlier commit with this id, if there is one. Raises InvalidInput if it was another operation."""
    record = catalog.find_commit(metadata, identity.commit_id) or find_record(metadata, identity.commit_id)
    if record is None:
        return None
    if record.digest and record.digest != identity.digest:
        raise InvalidInput(
            f"The commit id {identity.commit_id!r} was already used on {table or 'this table'} for another operation",
            advice="A commit id names one write; repeat it only to repeat that write",
        )
    rolled_back = record.snapshot_id is not None and is_rolled_back(metadata, record.snapshot_id, branch)
    observe.log.warning(
        "commit id %s was already committed%s; nothing is sent again",
        identity.commit_id,
        " and has been rolled back since" if rolled_back else "",
        extra={"event": "commit.already", "commit_id": identity.commit_id, "rolled_back": rolled_back},
    )
    earlier = Commit(
        snapshot_id=record.snapshot_id,
        sequence_number=record.sequence_number,
        commit_id=identity.commit_id,
        attempts=0,
        already_committed=True,
        rolled_back=rolled_back,
    )
    counts: dict[str, Any] = dict(record.summary)
    changed = bool(counts.pop("changed", record.snapshot_id is not None))
    return replace(earlier, changed=changed, **counts)


def is_rolled_back(metadata: TableMetadata, snapshot_id: int, branch: str) -> bool:
    # An expired snapshot cannot be told from a rolled back one; only a kept one outside the history is evidence.
    return metadata.has_snapshot(snapshot_id) and not metadata.is_ancestor(
        snapshot_id, of=metadata.ref_snapshot_id(branch)
    )


def is_ours(snapshot: Snapshot) -> bool:
    """The snapshot was committed by Frazil."""
    return COMMIT_ID in snapshot.summary or GROUP_SIZE in snapshot.summary


def own_commit(
    unit: CommitUnit, table: TableUnit, progress: Progress, built: Built, seen_in: TableMetadata | None
) -> Commit:
    """The commit's own swap landed. ``seen_in``: a later head in which it was found, if its response was lost."""
    size = 1 if built.group is None else 1 + len(built.group.outcomes)
    head = built.head.metadata
    done = _commit(
        unit, table, progress, head, built.snapshot_id, built.sequence_number, head.ref_snapshot_id(table.branch)
    )
    done = replace(done, group_size=size, shared=built.is_shared)
    return _counted(done, table, progress, built.snapshot_id, seen_in)


def found_commit(unit: CommitUnit, table: TableUnit, progress: Progress, head: TableMetadata) -> Commit:
    """A snapshot of an earlier attempt was found in a later head."""
    landed = [found for each in table.snapshot_ids if (found := head.snapshot(each)) is not None]
    newest = landed[0].parent_snapshot_id
    done = _commit(unit, table, progress, head, landed[-1].snapshot_id, landed[-1].sequence_number, newest)
    return _counted(done, table, progress, done.snapshot_id, head)


def commit_by_leader(
    unit: CommitUnit, progress: Progress, delegated: DelegatedCommit, outcome: TicketOutcome
) -> Commit:
    """A leader committed the queued operation."""
    done = Commit(
        snapshot_id=outcome.snapshot_id,
        sequence_number=outcome.sequence_number,
        commit_id=unit.identity.commit_id,
        attempts=progress.attempts,
        rebased_over=outcome.rebased_over,
        group_size=outcome.group_size,
        group_index=outcome.group_index,
        shared=outcome.shared,
        elapsed=progress.elapsed,
    )
    return _with_counts(done, counts_of(delegated))


def unchanged_commit(unit: CommitUnit, table: TableUnit, progress: Progress, head: Head) -> Commit:
    """Nothing was left to do."""
    return Commit(
        snapshot_id=table.moves_ref_to or head.metadata.ref_snapshot_id(table.branch),
        sequence_number=head.metadata.last_sequence_number,
        commit_id=unit.identity.commit_id,
        attempts=progress.attempts,
        elapsed=progress.elapsed,
        changed=False,
        redone=progress.redone,
    )


def several(unit: CommitUnit, progress: Progress, done: Mapping[Ident, Commit]) -> Commit | TransactionCommit:
    """What the caller gets of a commit to several tables, of which it wrote to these."""
    if len(done) == 1:
        return next(iter(done.values()))
    return TransactionCommit(
        unit.identity.commit_id,
        attempts=progress.attempts,
        elapsed=progress.elapsed,
        already_committed=any(each.already_committed for each in done.values()),
        tables={str(ident): commit for ident, commit in sorted(done.items())},
    )


def conflict_error(
    name: str,
    subject: str | Ident,
    found: Sequence[Conflict],
    head: TableMetadata | None = None,
    log: ChangeLog | None = None,
    note: str = "",
) -> ConflictError:
    """The error for a list of conflicts, with their winners as ``head`` and the change log know them.

    On a terminal each conflict has a line of its own. Winners and advice are said once, however many conflicts share
    them. ``note``: what else is to be said as evidence.
    """
    conflicts = with_winners(found, head, log)
    lines = list(_conflict_lines(conflicts[:_SHOWN]))
    if len(conflicts) > _SHOWN:
        lines.append(f"… and {len(conflicts) - _SHOWN} more")
    lines += [note] if note else []
    sentences = (part for each in conflicts for part in each.advice.split(". ") if part)
    advice = " ".join(dict.fromkeys(f"{each.removesuffix('.')}." for each in sentences))
    return ConflictError(
        f"The {name} on {subject} conflicts with concurrent commits and was not committed",
        conflicts=conflicts,
        retryable=all(REPEATABLE[Check(each.check)] for each in conflicts),
        evidence="".join(f"\n  {each}." for each in lines),
        advice=f"\n  {advice}" if advice else None,
    )


def _conflict_lines(conflicts: Iterable[Conflict]) -> Iterator[str]:
    for cause, group in itertools.groupby(conflicts, lambda each: each.caused_by):
        yield from dict.fromkeys(each.evidence for each in group)
        if cause:
            yield f"Committed first: {cause}"


def unknown_error(unit: CommitUnit, evidence: str | None) -> CommitUnknown:
    return CommitUnknown(
        f"It is not known whether this {unit.name} on {unit.subject} was committed",
        commit_id=unit.identity.commit_id,
        evidence=evidence,
    )


def _commit(
    unit: CommitUnit,
    table: TableUnit,
    progress: Progress,
    head: TableMetadata,
    snapshot_id: int | None,
    sequence_number: int,
    newest: int | None,
) -> Commit:
    return Commit(
        snapshot_id=snapshot_id if snapshot_id is not None else table.moves_ref_to or head.ref_snapshot_id(MAIN),
        sequence_number=sequence_number,
        commit_id=unit.identity.commit_id,
        attempts=progress.attempts,
        rebased_over=_rebased_over(table, progress, head, newest),
        elapsed=progress.elapsed,
        redone=progress.redone,
    )


def _rebased_over(table: TableUnit, progress: Progress, head: TableMetadata, newest: int | None) -> int:
    first = progress.first_heads.get(table.ident)
    base = progress.first_base or table.base_id or (first.ref_snapshot_id(table.branch) if first is not None else None)
    count = 0
    for each in head.ancestors(newest):
        if each.snapshot_id == base:
            break
        count += 1
    return count


def _counted(
    done: Commit, table: TableUnit, progress: Progress, snapshot_id: int | None, seen_in: TableMetadata | None
) -> Commit:
    rolled_back = seen_in is not None and snapshot_id is not None and is_rolled_back(seen_in, snapshot_id, table.branch)
    counts = progress.sent[table.ident].counts if table.ident in progress.sent else {}
    return _with_counts(replace(done, rolled_back=rolled_back), counts)


def _with_counts(done: Commit, counts: Mapping[str, int]) -> Commit:
    numbers: dict[str, Any] = {key: number for key, number in counts.items() if key != "changed"}
    return replace(done, **numbers)

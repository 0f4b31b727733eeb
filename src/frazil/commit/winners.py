"""Whose commits caused a conflict. Looked up only where a ConflictError is made: the checks do not need it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from frazil.catalog.base import ChangeLog
from frazil.commit import summaries
from frazil.commit.group import GROUP_SIZE
from frazil.commit.origins import winner_of
from frazil.errors import FrazilError
from frazil.format.metadata import TableMetadata
from frazil.model import Change, Conflict, SharedCommit, Snapshot, Winner

_UNKNOWN = Winner()
_MOST_LOOKED_UP = 10
"""Shared snapshots whose records are read for one error."""


def with_winners(found: Sequence[Conflict], head: TableMetadata | None, log: ChangeLog | None) -> tuple[Conflict, ...]:
    """The conflicts, each with the winner of its snapshot. Never raises: what is not known is left out."""
    changes: dict[int, Change | None] = {}

    def winner(conflict: Conflict, snapshot_id: int) -> Winner:
        snapshot = None if head is None else head.snapshot(snapshot_id)
        if head is None or snapshot is None:
            return _UNKNOWN
        if GROUP_SIZE not in snapshot.summary:
            return winner_of(snapshot)
        if snapshot_id not in changes:
            changes[snapshot_id] = _change(head, snapshot, log) if len(changes) < _MOST_LOOKED_UP else None
        return winner_of(snapshot, _commit_with(conflict.files, changes[snapshot_id]))

    return tuple(
        each if each.snapshot_id is None else replace(each, winner=winner(each, each.snapshot_id)) for each in found
    )


def _change(head: TableMetadata, snapshot: Snapshot, log: ChangeLog | None) -> Change | None:
    """What is recorded of a snapshot that several commits share."""
    if log is None:
        return None
    number = snapshot.sequence_number
    with contextlib.suppress(FrazilError):
        for record in log.find(head.uuid, number - 1, number):
            if record.snapshot_id == snapshot.snapshot_id:
                return summaries.decode(record.body)
    return None


def _commit_with(paths: Sequence[str], change: Change | None) -> SharedCommit | None:
    """The one commit of a shared snapshot that added these files; None: it is not known, or there are several."""
    if change is None or sum(each.files for each in change.commits) != len(change.added):
        return None
    added = iter(change.added)
    owners = {next(added).file.file_path: commit for commit in change.commits for _ in range(commit.files)}
    found = {owners[path].commit_id: owners[path] for path in paths if path in owners}
    return next(iter(found.values())) if len(found) == 1 else None

"""Expiry: snapshots leave the metadata by a commit, and the files that nothing needs any more leave the disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from frazil.catalog.base import FileKind
from frazil.errors import FrazilError
from frazil.format.metadata import TableMetadata
from frazil.format.retention import expired
from frazil.model import Commit, Expiry
from frazil.services.context import DeletionPhase, ServiceContext
from frazil.services.deletion import Deleted, DeletionRun

_log = logging.getLogger("frazil")


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """What an expiry would remove from the metadata, as the table is now."""

    snapshot_ids: tuple[int, ...]
    refs: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"snapshot_ids": list(self.snapshot_ids), "refs": list(self.refs)}


def plan(metadata: TableMetadata, now_ms: int, older_than_ms: int | None, retain_last: int | None) -> ExpiryPlan:
    """The decision that the commit makes on the newest head."""
    found = expired(metadata, now_ms, older_than_ms=older_than_ms, retain_last=retain_last)
    return ExpiryPlan(found.snapshot_ids, found.refs)


def run(context: ServiceContext, commit: Callable[[], Commit], *, delete_files: bool = True) -> Commit:
    """Commit the expiry, then delete. An error of the second part is logged, as the first has landed."""
    before = context.head().metadata
    done = commit()
    context.on_phase(DeletionPhase.COMMITTED)
    if not delete_files:
        return replace(done, expired=_removed(before, context.head().metadata))
    try:
        dropped = unrecorded(context, before)
        deleted, why = DeletionRun(context).run(dropped), ""
    except FrazilError as error:
        _log.warning("%s: files of expired snapshots remain: %s", context.ident, error)
        deleted, why = Deleted(), str(error)
    if deleted.failed and not why:
        why = f"{len(deleted.failed)} of the files could not be deleted, such as {deleted.failed[0]}"
    after = context.head().metadata
    return replace(done, expired=_report(_removed(before, after), deleted.counts, deleted, why))


def unrecorded(context: ServiceContext, before: TableMetadata) -> Sequence[str]:
    """The manifest lists of expired snapshots, for a catalog that does not record them with the swap."""
    if context.catalog.deletions is not None:
        return ()
    kept = {each.snapshot_id for each in context.head().metadata.snapshots()}
    lists = (each.manifest_list for each in before.snapshots() if each.snapshot_id not in kept)
    return [each for each in lists if each is not None]


def _removed(before: TableMetadata, after: TableMetadata) -> Expiry:
    kept = {each.snapshot_id for each in after.snapshots()}
    gone = sum(1 for each in before.snapshots() if each.snapshot_id not in kept)
    return Expiry(snapshots=gone, refs=len(before.refs.keys() - after.refs.keys()))


def _report(removed: Expiry, counts: Mapping[FileKind, int], deleted: Deleted, why: str) -> Expiry:
    return replace(
        removed,
        data_files=counts.get(FileKind.DATA, 0),
        position_delete_files=counts.get(FileKind.POSITION_DELETES, 0),
        equality_delete_files=counts.get(FileKind.EQUALITY_DELETES, 0),
        manifests=counts.get(FileKind.MANIFEST, 0),
        manifest_lists=counts.get(FileKind.MANIFEST_LIST, 0),
        statistics_files=counts.get(FileKind.STATISTICS, 0),
        metadata_files=counts.get(FileKind.METADATA, 0) + counts.get(FileKind.LINEAGE, 0),
        kept=deleted.kept,
        deferred=deleted.deferred,
        unfinished=why,
    )

"""Expires snapshots with a commit, on tables whose properties enable it (rule P18). Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from frazil.errors import CorruptMetadata, InvalidInput
from frazil.format.metadata import TableMetadata
from frazil.format.properties import RETENTION, RETENTION_MIN_AGE
from frazil.format.retention import FIVE_DAYS_MS, MAX_SNAPSHOT_AGE, Expired, expired

_MIN_AGE_MS = 60 * 60 * 1000
"""A long operation, of Frazil or of Iceberg Java, needs the snapshot that it read for about as long."""
_FEWEST = 50
"""Snapshots expire in batches: the version after an expiry cannot be read incrementally."""


def expires_with_commits(metadata: TableMetadata) -> bool:
    """Whether commits to this table expire its old snapshots."""
    return str(metadata.properties.get(RETENTION, "false")).lower() == "true"


def expired_with_commit(metadata: TableMetadata, now_ms: int, pinned: Callable[[], frozenset[int]]) -> Expired:
    """The snapshots that a commit expires now. Refs, and snapshots that a ref keeps, are left to expire_snapshots().

    ``pinned``: the snapshots that open transactions need. Called only if there is something to expire.
    """
    nothing = Expired()
    if not expires_with_commits(metadata):
        return nothing
    limit = now_ms - max(
        _number(metadata, MAX_SNAPSHOT_AGE, FIVE_DAYS_MS), _number(metadata, RETENTION_MIN_AGE, _MIN_AGE_MS)
    )
    kept = metadata.raw.get("snapshots") or ()
    batch = max(_FEWEST, len(kept) // 4)
    # Snapshots are listed in commit order: without a full batch of old ones there is nothing to compute.
    if len(kept) <= batch or kept[batch - 1]["timestamp-ms"] >= limit:
        return nothing
    try:
        found = expired(metadata, now_ms, older_than_ms=limit)
    except (InvalidInput, CorruptMetadata):
        # An invalid property, or damaged metadata. Neither may fail a commit.
        return nothing
    if found.refs:
        return nothing
    needed = pinned()
    return replace(found, snapshot_ids=tuple(each for each in found.snapshot_ids if each not in needed))


def _number(metadata: TableMetadata, key: str, default: int) -> int:
    text = str(metadata.properties.get(key, default))
    # An invalid value was meant to keep something.
    return int(text) if text.isdigit() else FIVE_DAYS_MS

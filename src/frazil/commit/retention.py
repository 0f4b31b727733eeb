"""Snapshots that go with a commit, on tables whose properties ask for it (rule P18). Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from frazil.errors import CorruptMetadata, InvalidInput
from frazil.format.metadata import TableMetadata
from frazil.format.properties import RETENTION, RETENTION_MIN_AGE
from frazil.format.retention import FIVE_DAYS_MS, MAX_SNAPSHOT_AGE, Expired, expired

_MIN_AGE_MS = 60 * 60 * 1000
"""A merge of ours or of Java's may take as long, and needs the snapshot that it read."""
_FEWEST = 50
"""They go in batches: whoever reads the next version reads it from its beginning."""


def asks_for_it(metadata: TableMetadata) -> bool:
    """Whether snapshots of this table go with commits."""
    return str(metadata.properties.get(RETENTION, "false")).lower() == "true"


def gone_with_a_commit(metadata: TableMetadata, now_ms: int, pinned: Callable[[], frozenset[int]]) -> Expired:
    """What goes now. Refs never do, nor anything that one of them needs: that is for expire_snapshots().

    ``pinned``: asked only when there is something to let go: the snapshots that open transactions need.
    """
    nothing = Expired()
    if not asks_for_it(metadata):
        return nothing
    limit = now_ms - max(
        _number(metadata, MAX_SNAPSHOT_AGE, FIVE_DAYS_MS), _number(metadata, RETENTION_MIN_AGE, _MIN_AGE_MS)
    )
    kept = metadata.raw.get("snapshots") or ()
    batch = max(_FEWEST, len(kept) // 4)
    # The file has them in the order of their commits: without a batch of old ones there is nothing to work out.
    if len(kept) <= batch or kept[batch - 1]["timestamp-ms"] >= limit:
        return nothing
    try:
        found = expired(metadata, now_ms, older_than_ms=limit)
    except (InvalidInput, CorruptMetadata):
        # A property that forbids it, or a table that is not whole. Neither may stop a commit.
        return nothing
    if found.refs:
        return nothing
    needed = pinned()
    return replace(found, snapshot_ids=tuple(each for each in found.snapshot_ids if each not in needed))


def _number(metadata: TableMetadata, key: str, default: int) -> int:
    text = str(metadata.properties.get(key, default))
    # Who wrote something else there wanted something kept.
    return int(text) if text.isdigit() else FIVE_DAYS_MS

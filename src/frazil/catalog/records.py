"""Commit ids kept inside a table's own metadata, for catalogs that cannot keep them beside the pointer.

A commit with a snapshot is named in that snapshot's summary. A commit without one (schema, properties, refs, or a write
that matched nothing: rule P12) gets a table property of its own, ``frazil.commit.<id>``: one property each, because
properties are last-writer-wins over ``commit_table``, and of two writers that share a property one would lose its id.
The newest ``KEPT`` of these properties are kept; that, and the retention of snapshots, is the horizon of idempotency.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from frazil.catalog.base import CommitRecord
from frazil.format.metadata import TableMetadata

COMMIT_ID = "frazil.commit-id"
COMMIT_DIGEST = "frazil.commit-digest"
PROPERTY = "frazil.commit."
KEPT = 100

_CLOCKS_DIFFER_MS = 60_000
# Glue takes parameter names of up to 255 characters.
_LONGEST_ID = 200
_COUNTS = {
    "rows_inserted": "added-records",
    "rows_deleted": "deleted-records",
    "files_added": "added-data-files",
    "files_removed": "deleted-data-files",
    "bytes_written": "added-files-size",
}


def record_from_summary(table_uuid: str, snapshot: Mapping[str, Any]) -> CommitRecord | None:
    """The record in a snapshot (as metadata.json has it); None: it was committed without an id."""
    summary = snapshot.get("summary") or {}
    if COMMIT_ID not in summary:
        return None
    return CommitRecord(
        table_uuid=table_uuid,
        commit_id=summary[COMMIT_ID],
        digest=summary.get(COMMIT_DIGEST, ""),
        snapshot_id=snapshot["snapshot-id"],
        sequence_number=snapshot.get("sequence-number") or 0,
        summary={name: int(summary[key]) for name, key in _COUNTS.items() if key in summary},
    )


def find_record(metadata: TableMetadata, commit_id: str) -> CommitRecord | None:
    """The record with this id, in a property or in a snapshot, also one that is not an ancestor of a ref."""
    if (text := metadata.properties.get(_property(commit_id))) is not None:
        return _from_property(metadata.uuid, text)
    for snapshot in reversed(metadata.raw.get("snapshots") or ()):
        if (snapshot.get("summary") or {}).get(COMMIT_ID) == commit_id:
            return record_from_summary(metadata.uuid, snapshot)
    return None


def ids_in(metadata: TableMetadata) -> frozenset[str]:
    """The ids of all commits that snapshots of the table name."""
    found = ((snapshot.get("summary") or {}).get(COMMIT_ID) for snapshot in metadata.raw.get("snapshots") or ())
    return frozenset(each for each in found if each is not None)


def is_in_properties(metadata: TableMetadata, commit_id: str) -> bool:
    """Whether it is the id of a commit without a snapshot that the table's properties name."""
    return _property(commit_id) in metadata.properties


def property_updates(metadata: TableMetadata, record: CommitRecord, now_ms: int) -> tuple[dict[str, Any], ...]:
    """The updates that keep a record without a snapshot, and remove the oldest ones beyond ``KEPT``."""
    value = {
        "id": record.commit_id,
        "digest": record.digest,
        "snapshot-id": record.snapshot_id,
        "sequence-number": record.sequence_number,
        "summary": dict(record.summary),
        "at": now_ms,
    }
    updates: list[dict[str, Any]] = [
        {"action": "set-properties", "updates": {_property(record.commit_id): orjson.dumps(value).decode()}}
    ]
    if gone := _oldest(metadata, _property(record.commit_id)):
        updates.append({"action": "remove-properties", "removals": gone})
    return tuple(updates)


def records_are_full(metadata: TableMetadata) -> bool:
    """True: a record that is missing may have been removed."""
    return sum(1 for _ in _kept(metadata)) >= KEPT


def keeps_records_since(metadata: TableMetadata, location: str) -> bool:
    """Whether a record made after the version at this location is still kept: newer ones would have to push it out."""
    if not records_are_full(metadata):
        return True
    log = [entry["metadata-file"] for entry in metadata.raw.get("metadata-log") or ()]
    # Each of these versions, and the newest one, may have brought one record.
    return location in log and len(log) - log.index(location) <= KEPT


def keeps_since(metadata: TableMetadata, since_ms: int) -> bool:
    """Whether nothing that was recorded at this time or later has been removed: a record that is missing never was."""
    number = metadata.last_sequence_number
    kept = {each.sequence_number: each.timestamp_ms for each in metadata.snapshots()}
    while number in kept and kept[number] >= since_ms - _CLOCKS_DIFFER_MS:
        number -= 1
    return (number == 0 or number in kept) and not records_are_full(metadata)


def _property(commit_id: str) -> str:
    if len(commit_id) > _LONGEST_ID:
        commit_id = "sha256-" + hashlib.sha256(commit_id.encode()).hexdigest()
    return PROPERTY + commit_id


def _kept(metadata: TableMetadata) -> Iterator[tuple[int, str]]:
    for key, text in metadata.properties.items():
        if key.startswith(PROPERTY):
            yield _parsed(text).get("at", 0), key


def _oldest(metadata: TableMetadata, new: str) -> list[str]:
    kept = sorted(each for each in _kept(metadata) if each[1] != new)
    return [key for _, key in kept[: max(0, len(kept) + 1 - KEPT)]]


def _from_property(table_uuid: str, text: str) -> CommitRecord | None:
    value = _parsed(text)
    if "id" not in value:
        return None
    return CommitRecord(
        table_uuid=table_uuid,
        commit_id=value["id"],
        digest=value.get("digest", ""),
        snapshot_id=value.get("snapshot-id"),
        sequence_number=value.get("sequence-number", 0),
        summary=value.get("summary") or {},
    )


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        # A property of another application under Frazil's prefix: not a record.
        return {}
    return value if isinstance(value, dict) else {}

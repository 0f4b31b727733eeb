"""Metadata of made-up tables, for tests that need no disk."""

from __future__ import annotations

from typing import Any

from frazil.commit.operations import Kind, RowCounts, Write
from frazil.format.metadata import TableMetadata
from frazil.model import DataFile

FIELDS = [
    {"id": 1, "name": "id", "type": "long", "required": True},
    {"id": 2, "name": "name", "type": "string", "required": False},
]


def metadata(**changes: Any) -> TableMetadata:
    """An empty v2 table with the columns id and name; keys with underscores become keys with dashes."""
    raw: dict[str, Any] = {
        "format-version": 2,
        "table-uuid": "11111111-1111-1111-1111-111111111111",
        "location": "memory://w/t",
        "last-sequence-number": 0,
        "last-updated-ms": 1_000,
        "last-column-id": 2,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": FIELDS}],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": {},
    }
    return TableMetadata({**raw, **{key.replace("_", "-"): value for key, value in changes.items()}})


def snapshot(snapshot_id: int, parent: int | None = None, **summary: str) -> dict[str, Any]:
    """A snapshot as metadata.json holds it."""
    raw: dict[str, Any] = {
        "snapshot-id": snapshot_id,
        "sequence-number": snapshot_id,
        "timestamp-ms": 1_000 + snapshot_id,
        "manifest-list": f"memory://w/t/metadata/snap-{snapshot_id}.avro",
        "summary": {"operation": "append", **summary},
        "schema-id": 0,
    }
    return raw if parent is None else {**raw, "parent-snapshot-id": parent}


def with_snapshots(*snapshots: dict[str, Any], main: int | None = None, **changes: Any) -> TableMetadata:
    """A table whose main points to the last snapshot, or to ``main``."""
    current = snapshots[-1]["snapshot-id"] if main is None else main
    return metadata(
        snapshots=list(snapshots),
        current_snapshot_id=current,
        refs={"main": {"snapshot-id": current, "type": "branch"}},
        last_sequence_number=max(each["sequence-number"] for each in snapshots),
        **changes,
    )


def appending(*files: DataFile, **changes: Any) -> Write:
    """An append of these files to the made-up table."""
    values: dict[str, Any] = {
        "kind": Kind.APPEND,
        "table_uuid": metadata().uuid,
        "added": files,
        "written_ids": {1: "id", 2: "name"},
        "rows": RowCounts(inserted=sum(file.record_count for file in files)),
    }
    return Write(**{**values, **changes})

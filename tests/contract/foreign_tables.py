"""Proposals against tables without manifests: a catalog decides from the metadata alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog as PyIcebergCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate

from frazil.catalog.base import CommitRecord, Committed, Head, Outcome, Prepared, Proposal
from frazil.catalog.foreign import ForeignCatalog
from frazil.catalog.records import COMMIT_DIGEST, COMMIT_ID
from frazil.catalog.requirements import requirements_for
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import Ident
from frazil.runtime import SYSTEM

EVENTS = Ident(("shop",), "events")
Json = dict[str, Any]


def empty_metadata(location: str, *, columns: Iterable[str] = ("id", "day", "note")) -> TableMetadata:
    fields = [{"id": n, "name": name, "required": n == 1, "type": "long"} for n, name in enumerate(columns, start=1)]
    return TableMetadata(
        {
            "format-version": 2,
            "table-uuid": str(SYSTEM.new_uuid()),
            "location": location,
            "last-updated-ms": SYSTEM.now_ms(),
            "last-column-id": len(fields),
            "last-sequence-number": 0,
            "schemas": [{"type": "struct", "schema-id": 0, "fields": fields, "identifier-field-ids": [1]}],
            "current-schema-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "default-spec-id": 0,
            "last-partition-id": 999,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "properties": {"owner": "tests"},
        }
    )


def with_other_ids(metadata: TableMetadata) -> TableMetadata:
    """The same columns under ids that no catalog would hand out by itself."""
    schema = metadata.raw["schemas"][0]
    fields = [{**field, "id": field["id"] * 10} for field in schema["fields"]]
    renumbered = {**schema, "fields": fields, "identifier-field-ids": [10]}
    return TableMetadata({**metadata.raw, "schemas": [renumbered], "last-column-id": 30})


def sql_catalog(folder: Path, kind: type[SqlCatalog] = SqlCatalog) -> SqlCatalog:
    folder.mkdir(exist_ok=True)
    return kind("stand-in", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())


def foreign(catalog: PyIcebergCatalog) -> ForeignCatalog:
    return ForeignCatalog(catalog, Storage(), SYSTEM)


def new_table(catalog: ForeignCatalog, location: str) -> Head:
    catalog.create_namespace(EVENTS.namespace, {})
    return catalog.create(EVENTS, empty_metadata(f"{location}/events-{SYSTEM.new_hex()[:8]}"))


# Updates


def summary_of(record: CommitRecord) -> dict[str, str]:
    """What names the commit in a snapshot's summary."""
    return {COMMIT_ID: record.commit_id, COMMIT_DIGEST: record.digest}


def snapshot_updates(head: Head, branch: str = "main", *, record: CommitRecord | None = None) -> tuple[Json, ...]:
    """Add one snapshot and move a branch to it."""
    metadata = head.metadata
    snapshot_id = SYSTEM.new_snapshot_id() if record is None else record.snapshot_id
    snapshot: Json = {
        "snapshot-id": snapshot_id,
        "sequence-number": metadata.last_sequence_number + 1,
        "timestamp-ms": max(SYSTEM.now_ms(), metadata.last_updated_ms),
        "manifest-list": f"{metadata.location}/metadata/snap-{snapshot_id}.avro",
        "summary": {"operation": "append", "added-records": "3", **(summary_of(record) if record else {})},
        "schema-id": metadata.current_schema_id,
    }
    if (parent := metadata.ref_snapshot_id(branch)) is not None:
        snapshot["parent-snapshot-id"] = parent
    return ({"action": "add-snapshot", "snapshot": snapshot}, move(branch, int(snapshot_id or 0)))


def move(ref: str, snapshot_id: int, kind: str = "branch") -> Json:
    return {"action": "set-snapshot-ref", "ref-name": ref, "type": kind, "snapshot-id": snapshot_id}


def set_property(key: str, value: str) -> Json:
    return {"action": "set-properties", "updates": {key: value}}


# Commits


def propose(head: Head, updates: Iterable[Json], record: CommitRecord | None = None) -> Proposal:
    updates = tuple(updates)
    return Proposal(updates, requirements_for(head.metadata, updates, spec_scoped=True), record)


def send(catalog: ForeignCatalog, head: Head, updates: Iterable[Json], record: CommitRecord | None = None) -> Outcome:
    return catalog.swap(catalog.prepare(EVENTS, head, propose(head, updates, record)))


def send_exactly(catalog: ForeignCatalog, head: Head, proposal: Proposal) -> Outcome:
    """Without what ``prepare`` adds."""
    return catalog.swap(Prepared(EVENTS, head, proposal))


def landed(catalog: ForeignCatalog, updates: Iterable[Json], record: CommitRecord | None = None) -> Head:
    """Another writer's commit, without a conflict; the head after it."""
    outcome = send(catalog, catalog.load(EVENTS), updates, record)
    assert isinstance(outcome, Committed), outcome
    return catalog.load(EVENTS)


def append(catalog: ForeignCatalog, branch: str = "main") -> Head:
    return landed(catalog, snapshot_updates(catalog.load(EVENTS), branch))


def record_of(head: Head, commit_id: str, *, snapshot_id: int | None = None) -> CommitRecord:
    sequence_number = head.metadata.last_sequence_number + (snapshot_id is not None)
    return CommitRecord(head.metadata.uuid, commit_id, "digest", snapshot_id, sequence_number, {"rows_inserted": 3})


class Moody(SqlCatalog):
    """PyIceberg's SqlCatalog whose next commit goes as told: it raises ``error`` before or after it was applied."""

    error: Exception | None = None
    applies: bool = True

    def next_commit(self, error: Exception, *, applies: bool) -> None:
        self.error, self.applies = error, applies

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        error, self.error = self.error, None
        if error is None:
            return super().commit_table(table, requirements, updates)
        if self.applies:
            super().commit_table(table, requirements, updates)
        raise error

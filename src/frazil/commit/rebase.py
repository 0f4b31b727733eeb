"""Building what an attempt proposes, from an operation and the head it found. Pure: the files are written elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from pyiceberg.schema import Schema

from frazil.commit.operations import Append, Intent, MetadataChange, NewRef, PropertyChange, SchemaUnion
from frazil.errors import InvalidInput
from frazil.format.manifests import DATA_MANIFEST
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.properties import NAME_MAPPING, grown_mapping
from frazil.format.schemas import evolve
from frazil.model import Manifest, Snapshot

Json = dict[str, Any]
Updates = tuple[Json, ...]

_MERGE_ENABLED = ("commit.manifest-merge.enabled", "true")
_MERGE_MIN_COUNT = ("commit.manifest.min-count-to-merge", "100")
_MERGE_TARGET_SIZE = ("commit.manifest.target-size-bytes", str(8 * 1024 * 1024))


@dataclass(frozen=True, slots=True)
class ManifestLayout:
    """How the next manifest list is laid out: my new manifests first, then each bin, merged where it has several."""

    bins: tuple[tuple[Manifest, ...], ...]


def lay_out(
    existing: Sequence[Manifest], mine: Sequence[Manifest], properties: Mapping[str, str], attempt: int
) -> ManifestLayout:
    """Decide which manifests are merged, by Iceberg's own properties and its packing (MergeAppend).

    A repeated attempt waits for twice the count before it merges: while many writers race, the one that merges is the
    slowest and loses, and then all of them would merge the same manifests again and again.
    """
    alone = tuple((manifest,) for manifest in (*mine, *existing))
    if _text(properties, _MERGE_ENABLED).lower() != "true":
        return ManifestLayout(alone)
    minimum = _number(properties, _MERGE_MIN_COUNT) * (1 if attempt == 1 else 2)
    target = _number(properties, _MERGE_TARGET_SIZE)
    if len(existing) + len(mine) < minimum:
        return ManifestLayout(alone)
    by_spec: dict[int, list[Manifest]] = defaultdict(list)
    kept: list[tuple[Manifest, ...]] = []
    for manifest in (*mine, *existing):
        if manifest.content == DATA_MANIFEST:
            by_spec[manifest.partition_spec_id].append(manifest)
        else:
            kept.append((manifest,))
    bins: list[tuple[Manifest, ...]] = []
    newest = mine[0] if mine else None
    for spec_id in sorted(by_spec, reverse=True):
        for group in _pack_from_end(by_spec[spec_id], target):
            # The bin that holds the new manifest is still filling up; older ones are merged as soon as they are full.
            if newest in group and len(group) < minimum:
                bins.extend((manifest,) for manifest in group)
            else:
                bins.append(tuple(group))
    return ManifestLayout((*bins, *kept))


def _pack_from_end(manifests: Sequence[Manifest], target: int) -> list[list[Manifest]]:
    """Fill bins from the oldest manifest on, so that only the first bin, with the newest, is left part full."""
    bins: list[list[Manifest]] = []
    size = 0
    for manifest in reversed(manifests):
        if bins and size + manifest.manifest_length <= target:
            bins[-1].insert(0, manifest)
            size += manifest.manifest_length
        else:
            bins.append([manifest])
            size = manifest.manifest_length
    return list(reversed(bins))


def snapshot_json(
    operation: Append,
    head: TableMetadata,
    parent: Snapshot | None,
    *,
    snapshot_id: int,
    sequence_number: int,
    timestamp_ms: int,
    manifest_list: str,
    identity: Mapping[str, str],
) -> Json:
    """The new snapshot as metadata.json holds it."""
    summary = {
        "operation": "append",
        **operation.snapshot_properties,
        **identity,
        **append_summary(operation, parent),
    }
    snapshot: Json = {
        "snapshot-id": snapshot_id,
        "sequence-number": sequence_number,
        "timestamp-ms": timestamp_ms,
        "manifest-list": manifest_list,
        "summary": summary,
        "schema-id": head.current_schema_id,
    }
    if parent is not None:
        snapshot["parent-snapshot-id"] = parent.snapshot_id
    return snapshot


def append_summary(operation: Append, parent: Snapshot | None) -> dict[str, str]:
    """Counts in the specification's words ("Optional Snapshot Summary Fields"). A total nobody knows stays unknown."""
    added = {"data-files": len(operation.files), "records": operation.rows, "files-size": operation.bytes}
    summary = {f"added-{key}": str(value) for key, value in added.items()}
    partitions = {(file.spec_id, file.partition) for file in operation.files if file.partition}
    if partitions:
        summary["changed-partition-count"] = str(len(partitions))
    zero = {"delete-files": 0, "position-deletes": 0, "equality-deletes": 0}
    before = parent.summary if parent is not None else {f"total-{key}": "0" for key in (*added, *zero)}
    for key, value in (added | zero).items():
        total = before.get(f"total-{key}", "")
        if total.isdigit():
            summary[f"total-{key}"] = str(int(total) + value)
    return summary


def add_snapshot(head: TableMetadata, branch: str, snapshot: Json) -> tuple[Updates, Updates]:
    """Updates and requirements that put a snapshot on top of a branch (rule P29)."""
    kept = {key: value for key, value in head.refs.get(branch, {}).items() if key not in ("snapshot-id", "type")}
    ref = {"action": "set-snapshot-ref", "ref-name": branch, "type": "branch", "snapshot-id": snapshot["snapshot-id"]}
    updates = ({"action": "add-snapshot", "snapshot": snapshot}, {**ref, **kept})
    requirements = (
        _same_table(head),
        {"type": "assert-ref-snapshot-id", "ref": branch, "snapshot-id": head.ref_snapshot_id(branch)},
        {"type": "assert-current-schema-id", "current-schema-id": head.current_schema_id},
    )
    return updates, requirements


def metadata_change(operation: MetadataChange, head: TableMetadata) -> tuple[Updates, Updates] | None:
    """Updates and requirements of a change without rows; None when the head already is as asked."""
    intent: Intent = operation.intent
    match intent:
        case SchemaUnion():
            return _schema_union(intent, head)
        case PropertyChange():
            return _property_change(intent, head)
        case NewRef():
            return _new_ref(intent, head)
        case _:
            assert_never(intent)


def _schema_union(intent: SchemaUnion, head: TableMetadata) -> tuple[Updates, Updates] | None:
    evolved = evolve(head.schema(), head.last_column_id, intent.incoming)
    if evolved is None:
        return None
    fields, last_column_id = evolved
    schema_id = max(head.schemas()) + 1
    schema = Schema(*fields.fields, schema_id=schema_id, identifier_field_ids=fields.identifier_field_ids)
    body = schema.model_dump(by_alias=True, mode="json")
    updates: Updates = (
        {"action": "add-schema", "schema": body, "last-column-id": last_column_id},
        {"action": "set-current-schema", "schema-id": -1},
    )
    if head.name_mapping is not None:
        mapping = grown_mapping(head.name_mapping, head.schema(), schema)
        updates += ({"action": "set-properties", "updates": {NAME_MAPPING: mapping}},)
    requirements = (
        _same_table(head),
        {"type": "assert-current-schema-id", "current-schema-id": head.current_schema_id},
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": head.last_column_id},
    )
    return updates, requirements


def _property_change(intent: PropertyChange, head: TableMetadata) -> tuple[Updates, Updates] | None:
    changed = {key: value for key, value in intent.updates.items() if head.properties.get(key) != value}
    gone = [key for key in intent.removals if key in head.properties]
    updates: list[Json] = []
    if changed:
        updates.append({"action": "set-properties", "updates": changed})
    if gone:
        updates.append({"action": "remove-properties", "removals": gone})
    return (tuple(updates), (_same_table(head),)) if updates else None


def _new_ref(intent: NewRef, head: TableMetadata) -> tuple[Updates, Updates] | None:
    snapshot_id = head.ref_snapshot_id(MAIN) if intent.snapshot_id is None else intent.snapshot_id
    if snapshot_id is None or not head.has_snapshot(snapshot_id):
        raise InvalidInput(
            f"The {intent.kind} {intent.ref!r} needs a snapshot to point to, and {snapshot_id} is none of this table",
            advice="Commit something first, or name a snapshot that history() lists",
        )
    existing = head.refs.get(intent.ref)
    if existing is not None:
        if existing["snapshot-id"] == snapshot_id and existing["type"] == intent.kind:
            return None
        raise InvalidInput(f"The table already has a {existing['type']} {intent.ref!r}", advice="Choose another name")
    update = {"action": "set-snapshot-ref", "ref-name": intent.ref, "type": intent.kind, "snapshot-id": snapshot_id}
    absent = {"type": "assert-ref-snapshot-id", "ref": intent.ref, "snapshot-id": None}
    return (update,), (_same_table(head), absent)


def _same_table(head: TableMetadata) -> Json:
    return {"type": "assert-table-uuid", "uuid": head.uuid}


def _text(properties: Mapping[str, str], setting: tuple[str, str]) -> str:
    return str(properties.get(*setting))


def _number(properties: Mapping[str, str], setting: tuple[str, str]) -> int:
    text = _text(properties, setting)
    if not text.isdigit() or int(text) < 1:
        raise InvalidInput(f"The table property {setting[0]} must be a positive whole number, not {text!r}")
    return int(text)

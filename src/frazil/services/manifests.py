"""Manifests rewritten: clustered by partition, in files of the target size. No data file and no row is touched.

A manifest that another writer adds meanwhile stays beside the new ones, so appends commute with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pyiceberg.conversions import from_bytes

from frazil.commit.operations import Base, Kind, ManifestMerge, Write
from frazil.commit.snapshot_layout import manifest_target
from frazil.dml.view import Settings, View
from frazil.errors import InvalidInput
from frazil.format.manifests import read_manifest, read_manifest_list, with_counts, write_manifests
from frazil.format.metadata import TableMetadata
from frazil.format.schemas import suggestion
from frazil.model import Entry, Manifest, Status

CREATED, REPLACED, PROCESSED = "manifests-created", "manifests-replaced", "entries-processed"
"""Iceberg's keys in the summary of a snapshot that rewrote manifests."""


@dataclass(frozen=True, slots=True)
class ManifestGroup:
    """Manifests of one spec, of data files or of delete files, that are rewritten together."""

    spec_id: int
    content: int
    manifests: tuple[Manifest, ...]

    @property
    def size_in_bytes(self) -> int:
        return sum(each.manifest_length for each in self.manifests)


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    """What a rewrite of manifests does."""

    table: str
    snapshot_id: int | None
    target_bytes: int
    groups: tuple[ManifestGroup, ...] = ()

    @property
    def replaced(self) -> int:
        return sum(len(group.manifests) for group in self.groups)

    def to_dict(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "snapshot_id": self.snapshot_id,
            "target_bytes": self.target_bytes,
            "groups": [
                {
                    "spec_id": group.spec_id,
                    "content": "deletes" if group.content else "data",
                    "bytes": group.size_in_bytes,
                    "manifests": [each.manifest_path for each in group.manifests],
                }
                for group in self.groups
            ],
        }


def plan(view: View, spec_id: int | None = None, sort_by: Sequence[str] = ()) -> ManifestPlan:
    """The manifests to rewrite: where they are more than their size asks for, or partitions are spread over them.

    ``spec_id``: those of one partition spec. ``sort_by``: names of partition fields to cluster by, in this order.
    """
    metadata, snapshot = view.metadata, view.snapshot
    target = manifest_target(metadata.properties)
    if spec_id is not None and spec_id not in metadata.specs():
        raise InvalidInput(f"The table has no partition spec {spec_id}", evidence=f"It has {sorted(metadata.specs())}")
    if sort_by:
        field_order(metadata, metadata.default_spec_id if spec_id is None else spec_id, sort_by)
    if snapshot is None or snapshot.manifest_list is None:
        return ManifestPlan(view.table, None, target)
    found: dict[tuple[int, int], list[Manifest]] = defaultdict(list)
    for each in read_manifest_list(view.storage, snapshot.manifest_list):
        spec = each.partition_spec_id
        if (each.added_files_count or each.existing_files_count) and spec_id in (None, spec):
            whole = with_counts(view.storage, each, metadata.spec(spec), metadata.spec_schema(spec))
            found[spec, each.content].append(whole)
    groups = (ManifestGroup(spec, content, tuple(manifests)) for (spec, content), manifests in found.items())
    return ManifestPlan(
        view.table, snapshot.snapshot_id, target, tuple(group for group in groups if _is_worth(group, target, metadata))
    )


def _is_worth(group: ManifestGroup, target: int, metadata: TableMetadata) -> bool:
    wanted = -(-group.size_in_bytes // target)
    if len(group.manifests) < 2:
        return wanted > 1
    return len(group.manifests) > wanted or _overlap(group, metadata)


def _overlap(group: ManifestGroup, metadata: TableMetadata) -> bool:
    """Whether partitions are spread over manifests, by the first field's range in each."""
    fields = metadata.spec(group.spec_id).partition_type(metadata.spec_schema(group.spec_id)).fields
    if not fields:
        return False
    kind: Any = fields[0].field_type
    bounds = [each.partitions[0] for each in group.manifests if each.partitions]
    ranges = sorted(
        (from_bytes(kind, each.lower_bound), from_bytes(kind, each.upper_bound))
        for each in bounds
        if each.lower_bound is not None and each.upper_bound is not None
    )
    # Two manifests may share the partition at which one ends and the next begins.
    return any(after[0] < before[1] for before, after in pairwise(ranges))


def rewrite(view: View, settings: Settings, spec_id: int | None = None, sort_by: Sequence[str] = ()) -> Write:
    """The write that replaces the manifests."""
    found = plan(view, spec_id, sort_by)
    since = view.runtime.now_ms()
    merges: list[ManifestMerge] = []
    entries = 0
    try:
        for group in found.groups:
            held = _entries(view, group, sort_by)
            entries += len(held)
            merges.append(_merged(view, group, held, found.target_bytes))
    except BaseException:
        view.storage.delete([each.manifest_path for merge in merges for each in merge.manifests])
        raise
    counts = {
        CREATED: str(sum(len(merge.manifests) for merge in merges)),
        REPLACED: str(found.replaced),
        PROCESSED: str(entries),
    }
    return Write(
        Kind.REWRITE,
        view.metadata.uuid,
        base=Base.of(view.snapshot),
        branch=view.branch,
        merges=tuple(merges),
        staged_since_ms=since,
        snapshot_properties={**settings.snapshot_properties, **(counts if merges else {})},
    )


def _merged(view: View, group: ManifestGroup, entries: Sequence[Entry], target: int) -> ManifestMerge:
    metadata = view.metadata
    made = write_manifests(
        view.storage,
        lambda: f"{metadata.metadata_folder}/{view.runtime.new_uuid()}-m0.avro",
        entries,
        target=target,
        spec=metadata.spec(group.spec_id),
        schema=metadata.spec_schema(group.spec_id),
        content=group.content,
    )
    return ManifestMerge(tuple(each.manifest_path for each in group.manifests), tuple(new.manifest for new, _ in made))


def _entries(view: View, group: ManifestGroup, sort_by: Sequence[str]) -> list[Entry]:
    """The live entries, which keep the snapshot and the sequence numbers that they were added with (rule P14)."""
    found = [
        replace(entry, status=Status.EXISTING)
        for manifest in group.manifests
        for entry in read_manifest(view.storage, manifest)
    ]
    order = field_order(view.metadata, group.spec_id, sort_by)
    return sorted(found, key=lambda entry: [_sortable(entry.file.partition[at]) for at in order])


def field_order(metadata: TableMetadata, spec_id: int, sort_by: Sequence[str]) -> list[int]:
    """The positions of partition fields, those that are named first. Raises InvalidInput for an unknown name."""
    names = [field.name for field in metadata.spec(spec_id).fields]
    for name in sort_by:
        if name not in names and spec_id == metadata.default_spec_id:
            raise InvalidInput(f"The partition spec has no field {name!r}", advice=suggestion(name, names))
    first = [names.index(name) for name in sort_by if name in names]
    return [*first, *(at for at in range(len(names)) if at not in first)]


def _sortable(value: Any) -> tuple[bool, Any]:
    """Null first. Uuids and bytes compare among themselves."""
    return (value is not None, 0 if value is None else value)


def counted(summary: Mapping[str, str]) -> tuple[int, int]:
    """How many manifests a snapshot replaced and created."""
    return int(summary.get(REPLACED, "0")), int(summary.get(CREATED, "0"))

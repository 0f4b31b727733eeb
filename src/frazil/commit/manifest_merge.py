"""Merges manifests without delaying other writers' commits.

A group commit adds manifests and merges none. When Iceberg's thresholds are reached, its leader merges afterwards,
while other writers commit, and queues the result as an operation of its own: one manifest that replaces several. Any
leader can put it into a manifest list that still contains all of the replaced ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from frazil.commit.operations import Base, Bundle, Kind, ManifestMerge, Write
from frazil.commit.snapshot_layout import lay_out
from frazil.format.manifests import read_manifest, read_manifest_list, with_counts, write_manifest
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import Manifest, Status
from frazil.runtime import Runtime


def merged(storage: Storage, runtime: Runtime, head: TableMetadata, branch: str) -> Write | None:
    """An operation that merges the manifests of a branch; None: there is nothing to merge."""
    snapshot = head.head_snapshot(branch)
    if snapshot is None or snapshot.manifest_list is None:
        return None
    since = runtime.now_ms()
    live = [
        with_counts(storage, each, head.spec(each.partition_spec_id), head.spec_schema(each.partition_spec_id))
        for each in read_manifest_list(storage, snapshot.manifest_list)
        if each.added_files_count or each.existing_files_count
    ]
    merges: list[ManifestMerge] = []
    try:
        groups = (group for group in lay_out(live, (), head.properties, attempt=1).bins if len(group) > 1)
        merges.extend(_merge(storage, runtime, head, group) for group in groups)
    except BaseException:
        storage.delete([each.manifest_path for merge in merges for each in merge.manifests])
        raise
    if not merges:
        return None
    return Write(
        Kind.REWRITE,
        head.uuid,
        base=Base.of(snapshot),
        branch=branch,
        merges=tuple(merges),
        staged_since_ms=since,
    )


def without_removed(storage: Storage, runtime: Runtime, head: TableMetadata, branch: str) -> Write | None:
    """An operation that writes every manifest again that still describes removed files; None: there is none.

    For erasure: such an entry holds the bounds of the file's columns, which are values of its rows.
    """
    snapshot = head.head_snapshot(branch)
    if snapshot is None or snapshot.manifest_list is None:
        return None
    since = runtime.now_ms()
    listed = read_manifest_list(storage, snapshot.manifest_list)
    described = [each for each in listed if each.deleted_files_count]
    if not described:
        return None
    live = [each for each in listed if each.added_files_count or each.existing_files_count]
    # Where no live file is beside the removed ones, the next snapshot leaves the manifest out by itself.
    chosen = [each for each in described if each in live] or live[:1]
    write = Write(Kind.REWRITE, head.uuid, base=Base.of(snapshot), branch=branch, staged_since_ms=since)
    if chosen:
        return replace(write, merges=tuple(_merge(storage, runtime, head, [each]) for each in chosen))
    # It has rows of no schema, so that any schema fits.
    names = {field_id: str(head.schema().find_column_name(field_id)) for field_id in head.schema().field_ids}
    bundle = Bundle(_empty_manifest(storage, runtime, head), 0)
    return replace(write, bundles=(bundle,), schema_id=head.current_schema_id, written_ids=names)


def _empty_manifest(storage: Storage, runtime: Runtime, head: TableMetadata) -> Manifest:
    path = f"{head.metadata_folder}/{runtime.new_uuid()}-m0.avro"
    return write_manifest(storage, path, [], spec=head.spec(), schema=head.schema()).manifest


def _merge(storage: Storage, runtime: Runtime, head: TableMetadata, parts: Sequence[Manifest]) -> ManifestMerge:
    spec_id, content = parts[0].partition_spec_id, parts[0].content
    entries = [
        replace(entry, status=Status.EXISTING) for manifest in parts for entry in read_manifest(storage, manifest)
    ]
    path = f"{head.metadata_folder}/{runtime.new_uuid()}-m0.avro"
    spec, schema = head.spec(spec_id), head.spec_schema(spec_id)
    new = write_manifest(storage, path, entries, spec=spec, schema=schema, content=content)
    return ManifestMerge(tuple(manifest.manifest_path for manifest in parts), (new.manifest,))

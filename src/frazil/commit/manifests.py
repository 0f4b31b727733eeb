"""The manifests of one operation, over all of its attempts: written once, reused, removed when nobody needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from frazil.commit.operations import Append
from frazil.commit.rebase import lay_out
from frazil.format.manifests import (
    NewManifest,
    read_manifest,
    read_manifest_list,
    with_counts,
    write_manifest,
    write_manifest_list,
)
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import Entry, Manifest, Snapshot, Status
from frazil.runtime import Runtime


class OperationManifests:
    """Files that an append's attempts share. Not thread-safe: one operation has one of these."""

    def __init__(self, operation: Append, storage: Storage, runtime: Runtime) -> None:
        self._operation = operation
        self._storage = storage
        self._runtime = runtime
        self._own: tuple[NewManifest, ...] | None = None
        self._merged: dict[tuple[str, ...], NewManifest] = {}
        self._in_use: set[tuple[str, ...]] = set()

    def write_list(
        self, head: TableMetadata, parent: Snapshot | None, *, snapshot_id: int, sequence_number: int, attempt: int
    ) -> str:
        """Write the manifest list of one attempt and return its path."""
        own = [new.named_by(snapshot_id, sequence_number) for new in self._own_manifests(head)]
        existing = read_manifest_list(self._storage, parent.manifest_list) if parent and parent.manifest_list else ()
        # A manifest without live files adds nothing for a reader, and its history is in the older lists.
        live = [self._complete(each, head) for each in existing if each.added_files_count or each.existing_files_count]
        layout = lay_out(live, own, head.properties, attempt)
        self._in_use = set()
        manifests = [self._merge(group, head, snapshot_id, sequence_number) for group in layout.bins]
        path = f"{head.metadata_folder}/snap-{snapshot_id}-{attempt}-{self._runtime.new_uuid()}.avro"
        write_manifest_list(
            self._storage,
            path,
            manifests,
            snapshot_id=snapshot_id,
            parent_snapshot_id=parent.snapshot_id if parent else None,
            sequence_number=sequence_number,
        )
        return path

    def _complete(self, manifest: Manifest, head: TableMetadata) -> Manifest:
        spec_id = manifest.partition_spec_id
        return with_counts(self._storage, manifest, head.spec(spec_id), head.spec_schema(spec_id))

    def remove_unused(self) -> None:
        """After a success: merges that only losing attempts wanted, and own manifests that went into a merge."""
        merged_away = {path for paths in self._in_use for path in paths}
        unused = [new for paths, new in self._merged.items() if paths not in self._in_use]
        own = [new for new in self._own or () if new.manifest.manifest_path in merged_away]
        self._storage.delete([new.manifest.manifest_path for new in (*unused, *own)])

    def remove_all(self) -> None:
        """After a definite failure: nobody can reference any of these."""
        self._storage.delete([new.manifest.manifest_path for new in (*(self._own or ()), *self._merged.values())])

    def _own_manifests(self, head: TableMetadata) -> tuple[NewManifest, ...]:
        if self._own is None:
            self._own = (self._write(head, self._operation.spec_id, self._own_entries()),)
        return self._own

    def _own_entries(self) -> list[Entry]:
        return [Entry(Status.ADDED, file) for file in self._operation.files]

    def _merge(
        self, group: Sequence[Manifest], head: TableMetadata, snapshot_id: int, sequence_number: int
    ) -> Manifest:
        if len(group) == 1:
            return group[0]
        paths = tuple(manifest.manifest_path for manifest in group)
        if paths not in self._merged:
            own = {new.manifest.manifest_path for new in self._own or ()}
            entries: list[Entry] = []
            for manifest in group:
                if manifest.manifest_path in own:
                    entries.extend(self._own_entries())
                else:
                    entries.extend(replace(e, status=Status.EXISTING) for e in read_manifest(self._storage, manifest))
            self._merged[paths] = self._write(head, group[0].partition_spec_id, entries)
        self._in_use.add(paths)
        return self._merged[paths].named_by(snapshot_id, sequence_number)

    def _write(self, head: TableMetadata, spec_id: int, entries: Sequence[Entry]) -> NewManifest:
        path = f"{head.metadata_folder}/{self._runtime.new_uuid()}-m0.avro"
        return write_manifest(self._storage, path, entries, spec=head.spec(spec_id), schema=head.spec_schema(spec_id))

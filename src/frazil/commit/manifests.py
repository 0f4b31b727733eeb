"""The manifests of one operation: written once, reused by later attempts, removed when no snapshot needs them.

The files of an attempt are fsynced side by side, and waited for before the swap (``Storage.sync_writes``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from frazil.commit.checks import Check
from frazil.commit.operations import Bundle, Kind, Write
from frazil.commit.rebase import Rebased
from frazil.commit.snapshot_layout import Effect, SnapshotPosition, lay_out, manifest_target
from frazil.errors import StorageError
from frazil.format.manifests import (
    DATA_MANIFEST,
    DELETE_MANIFEST,
    NewManifest,
    read_manifest,
    read_manifest_list,
    read_manifest_with,
    with_counts,
    write_manifest,
    write_manifest_list,
    write_manifests,
)
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage, is_local
from frazil.model import Conflict, Content, DataFile, Entry, Manifest, Snapshot, Status
from frazil.runtime import Runtime
from frazil.stage.deletes import stage_positions
from frazil.stage.lineage import write_lineage

_REMOTE_THREADS = 16


class FilesMissing(Exception):
    """Files that the operation removes are no longer in the table."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        super().__init__(", ".join(paths))

    @property
    def conflict(self) -> Conflict:
        return Conflict(
            Check.FILES_EXIST,
            f"{len(self.paths)} of the files it replaces are no longer in the table",
            files=self.paths,
            advice="Re-read the table and retry the operation",
        )


class OperationManifests:
    """Files that a write's attempts share. Not thread-safe: one operation has one of these."""

    def __init__(self, write: Write, storage: Storage, runtime: Runtime) -> None:
        self._write = write
        self._storage = storage
        self._runtime = runtime
        self._new: dict[object, NewManifest] = {}
        self._own_manifests: dict[object, tuple[NewManifest, ...]] = {}
        self._entries: dict[str, Sequence[Entry]] = {}
        """New manifest → its entries, for a merge that includes it."""
        self._position_deletes: dict[tuple[str, bytes], DataFile] = {}
        self._sidecars: list[str] = []
        self._staged_sidecar: str | None = None
        """The lineage of the write as it was staged, for every attempt that is not rebased."""
        self._bundles: tuple[Bundle, ...] | None = None
        self._held: dict[str, frozenset[str]] = {}
        """Manifest → its live files; manifests never change."""
        self._used: set[str] = set()
        self.is_merge_due = False
        """The last attempt's list has enough manifests for a merge, which is done after the commit."""

    def write_list(
        self, head: TableMetadata, parent: Snapshot | None, rebased: Rebased, position: SnapshotPosition
    ) -> tuple[str, Effect]:
        """Write the manifest list of one attempt, and everything it needs."""
        deletes = (*rebased.deletes, *self._carried_deletes(rebased, head))
        existing = read_manifest_list(self._storage, parent.manifest_list) if parent and parent.manifest_list else ()
        # A manifest without live files is of no use to a reader, and its history is in the older lists.
        live = self._complete([each for each in existing if each.added_files_count or each.existing_files_count], head)
        kept, filtered, taken = self._take_out(live, rebased, head)
        own = [*self._own(head, rebased.added, deletes, position), *filtered]
        named = [new.named_by(position.snapshot_id, position.sequence_number) for new in own]
        layout = lay_out(
            self._without_parts(kept), named, head.properties, position.attempt, later=position.merges_later
        )
        self.is_merge_due = layout.is_due
        manifests = [self._merge(group, head, position) for group in layout.bins]
        self._put_merged(manifests, kept, position)
        # Manifests of other writers are never merged here: these writers would not learn that theirs are unused.
        bundled = (NewManifest(bundle.manifest) for bundle in self._write.bundles)
        manifests[:0] = [new.named_by(position.snapshot_id, position.sequence_number) for new in bundled]
        sidecar = self._sidecar(rebased, taken, head)
        self._used = {manifest.manifest_path for manifest in manifests}
        self._used |= {file.file_path for file in (*rebased.added, *deletes)} | ({sidecar} if sidecar else set())
        path = f"{head.metadata_folder}/snap-{position.snapshot_id}-{position.attempt}-{self._runtime.new_uuid()}.avro"
        write_manifest_list(
            self._storage,
            path,
            manifests,
            snapshot_id=position.snapshot_id,
            parent_snapshot_id=parent.snapshot_id if parent else None,
            sequence_number=position.sequence_number,
            sync=False,
        )
        data = tuple(file for file in taken if file.content == Content.DATA)
        gone = tuple(file for file in taken if file.content != Content.DATA)
        return path, Effect(self._write.kind, rebased.added, deletes, data, gone, sidecar, self._write.bundles)

    def bundle(self, head: TableMetadata) -> tuple[Bundle, ...]:
        """The operation's files in manifests that another writer can list; they mean the same on every head (P14)."""
        if self._bundles is None:
            made = self._own(head, self._write.added, self._write.deletes, SnapshotPosition(0, 0, 0, 0))
            self._bundles = tuple(
                Bundle(
                    new.manifest,
                    sum(entry.file.file_size_in_bytes for entry in self._entries[new.manifest.manifest_path]),
                )
                for new in made
            )
            # A queued commit names only durable files (rule P3).
            self._storage.sync_writes()
        return self._bundles

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        """What ``bundle`` has made, if it was called."""
        return self._bundles or ()

    @property
    def paths(self) -> list[str]:
        """Every file that a later attempt may use: staged files, and files that earlier attempts wrote."""
        return [*self.written, *self._write.staged_paths]

    def remove_unused(self) -> None:
        """After a success: remove what only lost attempts needed, and what was merged or is unneeded."""
        self._storage.delete([path for path in self.paths if path not in self._used])

    def keep_rows(self) -> None:
        """The staged files are in use, in a manifest list of another step."""
        self._used = {*self._write.staged_paths, *(each.manifest.manifest_path for each in self.bundles)}

    @property
    def unused(self) -> list[str]:
        """Those of ``written`` that the last attempt's list does not contain."""
        return [path for path in self.written if path not in self._used]

    def remove_all(self) -> None:
        """After a definite failure: no snapshot can reference any of these."""
        self._storage.delete(self.written)

    @property
    def written(self) -> list[str]:
        """What the attempts so far have written, in addition to what was staged."""
        return [
            *(new.manifest.manifest_path for new in self._new.values()),
            *(new.manifest.manifest_path for made in self._own_manifests.values() for new in made),
            *(file.file_path for file in self._position_deletes.values()),
            *self._sidecars,
        ]

    # The operation's own files

    def _carried_deletes(self, rebased: Rebased, head: TableMetadata) -> list[DataFile]:
        keys = {path: (path, rows.serialize()) for path, rows in rebased.positions.items()}
        missing = {path: rebased.positions[path] for path, key in keys.items() if key not in self._position_deletes}
        if missing:
            staged = stage_positions(
                missing, rebased.files, metadata=head, storage=self._storage, runtime=self._runtime
            )
            for file in staged:
                assert file.referenced_data_file is not None
                self._position_deletes[keys[file.referenced_data_file]] = file
        return [self._position_deletes[key] for key in keys.values()]

    def _own(
        self, head: TableMetadata, added: Sequence[DataFile], deletes: Sequence[DataFile], position: SnapshotPosition
    ) -> list[NewManifest]:
        groups: dict[tuple[int, int], list[Entry]] = {}
        for file in (*added, *deletes):
            content = DATA_MANIFEST if file.content == Content.DATA else DELETE_MANIFEST
            is_copy = file.file_path in self._write.copies
            number = position.copies_number if is_copy else self._write.numbers.get(file.file_path)
            groups.setdefault((content, file.spec_id), []).append(Entry(Status.ADDED, file, sequence_number=number))
        made: list[NewManifest] = []
        for (content, spec_id), entries in groups.items():
            # Only copies have a sequence number of their own; everything else is the same on every head.
            key = (content, spec_id, tuple((id(entry.file), entry.sequence_number) for entry in entries))
            made.extend(self._rolled(key, head, spec_id, content, entries))
        return made

    def _rolled(
        self, key: object, head: TableMetadata, spec_id: int, content: int, entries: Sequence[Entry]
    ) -> Sequence[NewManifest]:
        """The entries in manifests of the target size."""
        if key not in self._own_manifests:
            found = write_manifests(
                self._storage,
                lambda: f"{head.metadata_folder}/{self._runtime.new_uuid()}-m0.avro",
                entries,
                target=manifest_target(head.properties),
                spec=head.spec(spec_id),
                schema=head.spec_schema(spec_id),
                content=content,
                sync=False,
            )
            self._own_manifests[key] = tuple(new for new, _ in found)
            self._entries |= {new.manifest.manifest_path: part for new, part in found}
        return self._own_manifests[key]

    def _sidecar(self, rebased: Rebased, taken: Sequence[DataFile], head: TableMetadata) -> str | None:
        """The lineage of the rows of removed files (P26), for operations that still track these rows."""
        if not any(file.content == Content.DATA for file in taken) or not (rebased.added or self._rewrites):
            return None
        if not self._write.has_lineage:
            return None
        if rebased.lineage is None and self._staged_sidecar is not None:
            return self._staged_sidecar
        path = write_lineage(self._storage, self._runtime, head, rebased.lineage or self._write.lineage, sync=False)
        self._sidecars.append(path)
        if rebased.lineage is None:
            self._staged_sidecar = path
        return path

    @property
    def _rewrites(self) -> bool:
        return self._write.kind is Kind.REWRITE

    # Manifests of the table

    def _complete(self, manifests: Sequence[Manifest], head: TableMetadata) -> list[Manifest]:
        """The same manifests with all counts, which a list of format version 1 may omit."""
        specs = {each.partition_spec_id for each in manifests}
        known = {spec_id: (head.spec(spec_id), head.spec_schema(spec_id)) for spec_id in specs}
        return [with_counts(self._storage, each, *known[each.partition_spec_id]) for each in manifests]

    def _without_parts(self, kept: Sequence[Manifest]) -> Sequence[Manifest]:
        parts = self._write.parts
        if missing := parts - {manifest.manifest_path for manifest in kept}:
            raise FilesMissing(sorted(missing))
        return [manifest for manifest in kept if manifest.manifest_path not in parts]

    def _put_merged(self, manifests: list[Manifest], kept: Sequence[Manifest], position: SnapshotPosition) -> None:
        """Insert each merged manifest before those older than its parts, so that the newest stay first."""
        paths = [manifest.manifest_path for manifest in kept]
        for merge in self._write.merges:
            older = set(paths[max(map(paths.index, merge.parts)) + 1 :])
            at = next((i for i, each in enumerate(manifests) if each.manifest_path in older), len(manifests))
            new = (NewManifest(each) for each in merge.manifests)
            manifests[at:at] = [each.named_by(position.snapshot_id, position.sequence_number) for each in new]

    def _take_out(
        self, live: Sequence[Manifest], rebased: Rebased, head: TableMetadata
    ) -> tuple[list[Manifest], list[NewManifest], list[DataFile]]:
        """Manifests that stay as they are, rewritten ones that mark files as deleted, and these files."""
        required = {file.file_path for file in rebased.removed}
        wanted = required | {file.file_path for file in rebased.removed_deletes}
        if not wanted:
            return list(live), [], []
        specs = {file.spec_id for file in (*rebased.removed, *rebased.removed_deletes)}
        left = set(wanted)
        kept: list[Manifest] = []
        filtered: list[NewManifest] = []
        taken: list[DataFile] = []
        for manifest in live:
            may_hold = left and manifest.partition_spec_id in specs
            mine, entries = self._hits(manifest, wanted) if may_hold else (frozenset[str](), None)
            if not mine:
                kept.append(manifest)
                continue
            left -= mine
            new = self._once(
                (_identity(manifest), mine),
                head,
                manifest.partition_spec_id,
                manifest.content,
                partial(self._marked, manifest, mine, entries),
            )
            filtered.append(new)
            marked = self._entries[new.manifest.manifest_path]
            taken.extend(entry.file for entry in marked if entry.status == Status.DELETED)
        if missing := left & required:
            raise FilesMissing(sorted(missing))
        return kept, filtered, taken

    def _hits(self, manifest: Manifest, wanted: set[str]) -> tuple[frozenset[str], Sequence[Entry] | None]:
        """The wanted files in a manifest, and its entries if it had to be read for that."""
        path = manifest.manifest_path
        if path in self._held:
            return self._held[path] & wanted, None
        entries = read_manifest_with(self._storage, manifest, wanted)
        self._held[path] = frozenset(entry.file.file_path for entry in entries)
        return self._held[path] & wanted, entries

    def _marked(self, manifest: Manifest, mine: frozenset[str], entries: Sequence[Entry] | None) -> list[Entry]:
        return [
            # The snapshot that adds this manifest deletes the file, so the id is inherited (P14).
            replace(entry, status=Status.DELETED, snapshot_id=None)
            if entry.file.file_path in mine
            else replace(entry, status=Status.EXISTING)
            for entry in (read_manifest(self._storage, manifest) if entries is None else entries)
        ]

    def _merge(self, group: Sequence[Manifest], head: TableMetadata, position: SnapshotPosition) -> Manifest:
        if len(group) == 1:
            return group[0]
        key = tuple(_identity(manifest) for manifest in group)
        first = group[0]

        def entries() -> list[Entry]:
            found: list[Entry] = []
            for manifest in group:
                own = self._entries.get(manifest.manifest_path)
                if own is not None:
                    found.extend(own)
                else:
                    old = read_manifest(self._storage, manifest)
                    found.extend(replace(entry, status=Status.EXISTING) for entry in old)
            return found

        new = self._once(key, head, first.partition_spec_id, first.content, entries)
        return new.named_by(position.snapshot_id, position.sequence_number)

    def _once(
        self, key: object, head: TableMetadata, spec_id: int, content: int, entries: Callable[[], Iterable[Entry]]
    ) -> NewManifest:
        if key not in self._new:
            path = f"{head.metadata_folder}/{self._runtime.new_uuid()}-m0.avro"
            held = list(entries())
            self._new[key] = write_manifest(
                self._storage,
                path,
                held,
                spec=head.spec(spec_id),
                schema=head.spec_schema(spec_id),
                content=content,
                sync=False,
            )
            self._entries[path] = held
        return self._new[key]


def missing_files(storage: Storage, paths: Sequence[str]) -> list[str]:
    """Those of the files that do not exist. A file that cannot be checked is an error, not a missing file."""

    def is_missing(path: str) -> bool:
        try:
            storage.open_input(path).close()
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return True
            raise
        return False

    if len(paths) <= 1 or is_local(paths[0]):
        return [path for path in paths if is_missing(path)]
    with ThreadPoolExecutor(min(_REMOTE_THREADS, len(paths)), thread_name_prefix="frazil-files") as pool:
        return [path for path, missing in zip(paths, pool.map(is_missing, paths), strict=True) if missing]


def _identity(manifest: Manifest) -> tuple[str, int]:
    """What a manifest means. A manifest of an earlier step of this commit gets another sequence number with each
    attempt, which its entries inherit.
    """
    return manifest.manifest_path, manifest.sequence_number

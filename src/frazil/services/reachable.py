"""Which files a table needs: those of any kept snapshot, of pinned ones, of queued commits, and of tables beside it.

Paths are compared by 64-bit hashes of one form (``same_path``), in sorted arrays: 8 bytes per file. A collision keeps
a file, and never deletes one. Beyond a number of files the work is split by hash into passes over the same manifests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from frazil.catalog.base import CommitQueue, FileKind, Head, NotedFile
from frazil.commit import delegation
from frazil.commit.dropped import statistics_of
from frazil.commit.operations import Write
from frazil.commit.snapshot_layout import LINEAGE
from frazil.errors import CorruptMetadata, NoSuchTable, StorageError, Unsupported
from frazil.format.manifests import iter_manifest, read_manifest_list
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage, is_below, same_path
from frazil.model import Content, Ident, Manifest
from frazil.services.context import ServiceContext

MOST_HASHES = 16_000_000
"""In memory at once: 128 MB."""
_CHUNK = 1 << 16
Hashes = npt.NDArray[np.uint64]


def hash_of(path: str) -> int:
    return int.from_bytes(hashlib.blake2b(same_path(path).encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class Part:
    """The files whose hash leaves this remainder: all of them where there is one pass."""

    number: int = 0
    of: int = 1

    def has(self, hashed: int) -> bool:
        return hashed % self.of == self.number


@dataclass(frozen=True, eq=False)
class Needed:
    """What must not be deleted."""

    storage: Storage
    named: frozenset[int]
    """Hashes of files that are named outside of manifests, manifest lists and manifests included."""
    manifests: Mapping[str, Manifest]
    """Whose live files are needed."""
    most_hashes: int = MOST_HASHES

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        # Counts of earlier format versions may be unknown, which is -1.
        files = sum(
            max(0, each.added_files_count) + max(0, each.existing_files_count) for each in self.manifests.values()
        )
        count = 1 + files // self.most_hashes
        return tuple(Part(number, count) for number in range(count))

    def files(self, part: Part) -> FileSet:
        """The data and delete files of one part. Reads the manifests."""
        return FileSet(self.named, _sorted_hashes(self._live_files(part)))

    def _live_files(self, part: Part) -> Iterator[int]:
        for manifest in self.manifests.values():
            for entry in iter_manifest(self.storage, manifest, stats=frozenset()):
                if part.has(hashed := hash_of(entry.file.file_path)):
                    yield hashed

    def names(self, path: str) -> bool:
        """Whether the path of a manifest, a list or another file of metadata is needed."""
        return hash_of(path) in self.named


@dataclass(frozen=True, slots=True, eq=False)
class FileSet:
    named: frozenset[int]
    hashes: Hashes

    def has(self, hashed: int) -> bool:
        if hashed in self.named:
            return True
        at = int(np.searchsorted(self.hashes, np.uint64(hashed)))
        return at < len(self.hashes) and int(self.hashes[at]) == hashed


def _sorted_hashes(values: Iterator[int]) -> Hashes:
    return np.unique(np.fromiter(values, dtype=np.uint64))


@dataclass(frozen=True, slots=True, eq=False)
class Beside:
    """The other tables of the catalog, as far as they may have files in common with one."""

    heads: tuple[Head, ...] = ()
    """Tables in the same place, or around it."""
    folders: tuple[str, ...] = ()
    """Where tables are that have a place of their own, in the form of ``same_path``."""


def beside(context: ServiceContext, metadata: TableMetadata) -> Beside:
    """What other names and tables of the catalog need. One request, and the metadata of tables in the same place."""
    pointers = context.catalog.instant()
    if pointers is None:
        return Beside()
    own = tuple(same_path(each) for each in own_folders(metadata))
    heads: list[Head] = []
    folders: list[str] = []
    for ident, location in pointers.items():
        if ident == context.ident:
            continue
        folder = same_path(table_folder(location))
        is_inside = any(is_below(folder, each) and folder != each for each in own)
        if not is_inside and any(is_below(each, folder) or is_below(same_path(location), each) for each in own):
            heads.extend(_head(context, ident))
        else:
            folders.append(folder)
    return Beside(tuple(heads), tuple(folders))


def _head(context: ServiceContext, ident: Ident) -> Iterator[Head]:
    try:
        yield context.catalog.load(ident)
    except NoSuchTable:
        # Dropped just now.
        return


def table_folder(metadata_location: str) -> str:
    """The folder of the table whose metadata file this is: the parent of its folder ``metadata``."""
    folder = metadata_location.rsplit("/", 1)[0]
    return folder.removesuffix("/metadata")


def own_folders(metadata: TableMetadata) -> list[str]:
    """Where a table's files go. The folder that write.data.path names may have files of other tables as well."""
    places = (metadata.properties.get("write.data.path"), metadata.properties.get("write.object-storage.path"))
    return [metadata.location, metadata.metadata_folder, *(each for each in places if each)]


def needed(
    context: ServiceContext,
    heads: Sequence[Head],
    *,
    extra_lists: Iterable[str] = (),
    most_hashes: int = MOST_HASHES,
) -> Needed:
    """What these versions of tables need, with queued commits. Raises CorruptMetadata, StorageError if it is unclear.

    ``extra_lists``: manifest lists that are needed although no version names them.
    """
    named: set[int] = set()
    manifests: dict[str, Manifest] = {}
    for head in heads:
        named.update(map(hash_of, directly_named(head)))
    lists = (each.manifest_list for head in heads for each in head.metadata.snapshots())
    for path in {each for each in (*lists, *extra_lists) if each is not None}:
        named.add(hash_of(path))
        for manifest in read_manifest_list(context.storage, path):
            if manifest.manifest_path not in manifests:
                named.add(hash_of(manifest.manifest_path))
                manifests[manifest.manifest_path] = manifest
    for uuid in {head.metadata.uuid for head in heads}:
        for path, queued in _of_queue(context.catalog.queue, uuid):
            named.add(hash_of(path))
            if queued is not None:
                manifests.setdefault(path, queued)
    return Needed(context.storage, frozenset(named), manifests, most_hashes)


def directly_named(head: Head) -> Iterator[str]:
    """The files that a table's metadata names itself, except manifest lists."""
    metadata = head.metadata
    yield head.location
    yield from (each["metadata-file"] for each in metadata.raw.get("metadata-log") or ())
    kept = [each.snapshot_id for each in metadata.snapshots()]
    yield from (each.path for each in statistics_of(metadata, kept))
    yield from (each.summary[LINEAGE] for each in metadata.snapshots() if LINEAGE in each.summary)
    for snapshot in metadata.raw.get("snapshots") or ():
        # Format version 1 allowed to list manifests in the metadata file. Such a table is not cleaned up.
        if snapshot.get("manifest-list") is None:
            raise Unsupported(
                f"The snapshot {snapshot['snapshot-id']} lists its manifests in the metadata file, as format version 1 "
                "allowed, so no file is deleted",
                advice="Expire it, or rewrite the table's manifests with another engine",
            )


def _of_queue(queue: CommitQueue | None, table_uuid: str) -> Iterator[tuple[str, Manifest | None]]:
    """The files of commits that may still be made: manifests with themselves, whose files are needed as well."""
    if queue is None:
        return
    for ticket in queue.undecided(table_uuid):
        try:
            delegated, _ = delegation.decode(ticket)
        except delegation.UnreadableTicket as error:
            raise Unsupported(
                "The queue of the table holds a commit of another version of Frazil, whose files are unknown",
                advice="Repeat the call when it is decided, or use the newest version",
            ) from error
        if delegated.write is not None:
            yield from _of_write(delegated.write)


def _of_write(write: Write) -> Iterator[tuple[str, Manifest | None]]:
    for file in (*write.added, *write.deletes):
        yield file.file_path, None
    for bundle in write.bundles:
        yield bundle.manifest.manifest_path, bundle.manifest
    for merge in write.merges:
        for each in merge.manifests:
            yield each.manifest_path, each


# Files that only dropped snapshots have


_KINDS = {
    Content.DATA: FileKind.DATA,
    Content.POSITION_DELETES: FileKind.POSITION_DELETES,
    Content.EQUALITY_DELETES: FileKind.EQUALITY_DELETES,
}


@dataclass(eq=False)
class Dropped:
    """What the manifest lists of expired snapshots name and nothing else needs."""

    context: ServiceContext
    lists: Sequence[str]
    needed: Needed
    _manifests: dict[str, Manifest] = field(default_factory=dict)

    def files(self) -> Iterator[NotedFile]:
        """Each file once or more often. What cannot be read any more was deleted by an earlier run."""
        found = [path for path in self.lists if not self.needed.names(path)]
        for path in found:
            for manifest in _read_list(self.context.storage, path):
                if not self.needed.names(manifest.manifest_path):
                    self._manifests.setdefault(manifest.manifest_path, manifest)
        if self._manifests:
            for part in self.needed.parts:
                yield from self._of_part(part)
        yield from (NotedFile(path, FileKind.MANIFEST) for path in self._manifests)
        yield from (NotedFile(path, FileKind.MANIFEST_LIST) for path in found)

    def _of_part(self, part: Part) -> Iterator[NotedFile]:
        kept = self.needed.files(part)
        for manifest in self._manifests.values():
            for path, kind in _read_manifest(self.context.storage, manifest):
                hashed = hash_of(path)
                if part.has(hashed) and not kept.has(hashed):
                    yield NotedFile(path, kind)


def _read_list(storage: Storage, path: str) -> Sequence[Manifest]:
    try:
        return read_manifest_list(storage, path)
    except CorruptMetadata as error:
        _raise_unless_missing(error)
        return ()


def _read_manifest(storage: Storage, manifest: Manifest) -> Iterator[tuple[str, FileKind]]:
    # Entries of removed files as well: the snapshot that had them may have been expired without deleting.
    try:
        for entry in iter_manifest(storage, manifest, live_only=False, stats=frozenset()):
            yield entry.file.file_path, _KINDS[entry.file.content]
    except CorruptMetadata as error:
        _raise_unless_missing(error)


def _raise_unless_missing(error: CorruptMetadata) -> None:
    cause = error.__cause__
    if not (isinstance(cause, StorageError) and isinstance(cause.__cause__, FileNotFoundError)):
        raise error


def chunked(files: Iterable[NotedFile], size: int = _CHUNK) -> Iterator[list[NotedFile]]:
    """Lists of at most so many different files."""
    chunk: dict[str, NotedFile] = {}
    for each in files:
        chunk[each.path] = each
        if len(chunk) >= size:
            yield list(chunk.values())
            chunk = {}
    if chunk:
        yield list(chunk.values())


Belongs = Callable[[str], bool]


def belongs_to(metadata: TableMetadata, others: Beside, *, knows_tables: bool) -> Belongs:
    """Whether a path is the table's own to delete (rule P13): not below another table's folder.

    ``knows_tables``: outside of its own folders, a file that another catalog's table may have is kept otherwise.
    """
    own = tuple(same_path(each) for each in own_folders(metadata))

    def belongs(path: str) -> bool:
        form = same_path(path)
        inner = max((len(each) for each in own if is_below(form, each)), default=0)
        outer = max((len(each) for each in others.folders if is_below(form, each)), default=0)
        return inner > outer or (inner == outer == 0 and knows_tables)

    return belongs

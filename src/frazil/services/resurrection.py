"""Delete files that another engine's rewrite dropped although they still apply are put back (rule P43).

    foreign "replace" snapshots since the last look ──▶ delete files they dropped ──▶ do live rows match? ──▶ put back

Iceberg Java drops delete files that are older than every data file but its own output, which may be older still: rows
that were deleted while it ran are in the table again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from pyiceberg.schema import Schema
from pyroaring import BitMap64

from frazil import observe
from frazil.commit.operations import Base, Kind, Write
from frazil.commit.origins import is_ours
from frazil.errors import FrazilError
from frazil.expr import parse_filter
from frazil.format.manifests import DATA_MANIFEST, read_manifest, read_manifest_list
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import Content, Entry, Manifest, Snapshot
from frazil.read.arrow import ReadContext
from frazil.read.plan import DeleteIndex, DeleteRef, FileTask, plan
from frazil.read.positions import matching_positions

RESTORED = "frazil.restored-delete-files"
"""A snapshot's summary: how many delete files it put back."""
_FURTHEST = 1_000
"""So many snapshots are looked at, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Returned:
    """A delete file that a foreign rewrite dropped, and the rows that came back."""

    snapshot: Snapshot
    """The foreign rewrite."""
    entry: Entry
    rows: Mapping[str, int] = field(default_factory=dict)
    """Data file → how many of its live rows the delete applies to."""


def returned(storage: Storage, metadata: TableMetadata, branch: str, since: int | None = None) -> tuple[Returned, ...]:
    """What came back in a branch. ``since``: the snapshot at which the last look was, which is not looked at again."""
    dropped: dict[str, Returned] = {}
    for snapshot in _foreign_rewrites(metadata, branch, since):
        for entry in _dropped(storage, metadata, snapshot):
            dropped.setdefault(entry.file.file_path, Returned(snapshot, entry))
    if not dropped:
        return ()
    return tuple(_still_applying(storage, metadata, branch, dropped))


def write_back(metadata: TableMetadata, branch: str, found: Iterable[Returned]) -> Write:
    """The write that puts delete files back, with the sequence numbers that they had."""
    found = tuple(found)
    entries = [each.entry for each in found]
    return Write(
        Kind.REWRITE,
        metadata.uuid,
        base=Base.of(metadata.head_snapshot(branch)),
        branch=branch,
        deletes=tuple(entry.file for entry in entries),
        numbers={entry.file.file_path: entry.sequence_number or 0 for entry in entries},
        named_by=frozenset(each.snapshot.parent_snapshot_id or 0 for each in found),
        owns_files=False,
        own_snapshot=True,
        snapshot_properties={RESTORED: str(len(entries))},
    )


def _foreign_rewrites(metadata: TableMetadata, branch: str, since: int | None) -> Iterator[Snapshot]:
    for snapshot in islice(metadata.ancestors(metadata.ref_snapshot_id(branch)), _FURTHEST):
        if snapshot.snapshot_id == since:
            return
        if snapshot.operation == "replace" and not is_ours(snapshot.summary):
            yield snapshot


def _dropped(storage: Storage, metadata: TableMetadata, snapshot: Snapshot) -> Iterator[Entry]:
    """The delete files of the snapshot before that are not in this one. None are known if that has expired."""
    before = None if snapshot.parent_snapshot_id is None else metadata.snapshot(snapshot.parent_snapshot_id)
    if before is None:
        return
    try:
        old, new = _delete_manifests(storage, before), _delete_manifests(storage, snapshot)
        left = {entry.file.file_path for entry in _live(storage, new, but=old)}
        gone = list(_live(storage, old, but=new))
    except FrazilError as error:
        observe.log.warning("the deletes before snapshot %s cannot be read: %s", snapshot.snapshot_id, error.problem)
        return
    yield from (entry for entry in gone if entry.file.file_path not in left)


def _delete_manifests(storage: Storage, snapshot: Snapshot) -> dict[str, Manifest]:
    listed = () if snapshot.manifest_list is None else read_manifest_list(storage, snapshot.manifest_list)
    return {each.manifest_path: each for each in listed if each.content != DATA_MANIFEST}


def _live(storage: Storage, manifests: Mapping[str, Manifest], but: Mapping[str, Manifest]) -> Iterator[Entry]:
    for path, manifest in manifests.items():
        if path not in but:
            yield from read_manifest(storage, manifest)


def _still_applying(
    storage: Storage, metadata: TableMetadata, branch: str, dropped: Mapping[str, Returned]
) -> Iterator[Returned]:
    head = plan(metadata, metadata.head_snapshot(branch), parse_filter(None, metadata.schema()), storage)
    there = {entry.file.file_path for entry in head.deletes}
    left = {path: each for path, each in dropped.items() if path not in there}
    index = DeleteIndex([each.entry for each in left.values()], metadata)
    context = ReadContext.of(storage, metadata, Schema())
    rows: dict[str, dict[str, int]] = {}
    for task in head.tasks:
        for ref in index.applying_to(task.file, task.sequence_number):
            count = _matching(task, ref, context)
            if count:
                rows.setdefault(ref.file.file_path, {})[task.file.file_path] = count
    yield from (replace(left[path], rows=found) for path, found in rows.items())


def _matching(task: FileTask, ref: DeleteRef, context: ReadContext) -> int:
    """How many live rows of a file a delete applies to. None, if its file is gone."""
    plain = replace(task, residual=None)
    try:
        live = matching_positions(plain, context)
        if ref.file.content == Content.POSITION_DELETES:
            return len(live & context.deletes.rows_by_file(ref.file).get(task.file.file_path, BitMap64()))
        return len(live) - len(matching_positions(replace(plain, deletes=(*plain.deletes, ref)), context))
    except FrazilError as error:
        observe.log.warning("the dropped delete file %s cannot be put back: %s", ref.file.file_path, error.problem)
        return 0

"""Cherry-pick: the change of one snapshot applied again on top of another branch, with the same files."""

from __future__ import annotations

from pyroaring import BitMap64

from frazil.commit.history import change_of
from frazil.commit.operations import Base, Kind, RowCounts, Write
from frazil.commit.snapshot_layout import SOURCE
from frazil.dml.view import Settings, View
from frazil.errors import InvalidInput
from frazil.expr import parse_filter
from frazil.model import Change, Content, DataFile, Lineage, Snapshot
from frazil.read.deletes import Deletes
from frazil.read.plan import named_file, plan
from frazil.stage.lineage import read_lineage


def cherry_pick(view: View, snapshot_id: int, settings: Settings) -> Write:
    """The change of a snapshot as a new write. No file is written: the write refers to the snapshot's files."""
    metadata = view.metadata
    snapshot = metadata.snapshot(snapshot_id)
    if snapshot is None:
        raise InvalidInput(f"The table {view.table} has no snapshot {snapshot_id}", advice="history() lists them")
    for each in metadata.ancestors(metadata.ref_snapshot_id(view.branch)):
        if each.snapshot_id == snapshot_id or each.summary.get(SOURCE) == str(snapshot_id):
            raise InvalidInput(f"The snapshot {snapshot_id} is already in the history of {view.branch!r}")
    change = change_of(view.storage, metadata, snapshot)
    if change.operation == "replace":
        raise InvalidInput(
            f"The snapshot {snapshot_id} only rewrites files, so there is nothing to pick",
            advice="Compact the branch itself",
        )
    return _write(view, settings, snapshot, change)


def _write(view: View, settings: Settings, snapshot: Snapshot, change: Change) -> Write:
    metadata = view.metadata
    lineage = read_lineage(view.storage, change.lineage_path) if change.lineage_path is not None else Lineage()
    added = tuple(entry.file for entry in change.added)
    marks = tuple(entry.file for entry in change.deletes)
    own = {file.file_path for file in added}
    # Deletes in files that the snapshot itself added are applied as they are.
    positions = {path: rows for path, rows in _positions(view, marks).items() if path not in own}
    base = _common_ancestor(view, snapshot)
    touched = _check_files(view, base, snapshot, change, positions)
    moved = {} if change.is_delete else {**dict(lineage.changed), **positions}
    if change.removed and change.lineage_path is None and not change.is_delete:
        # Its writer left no lineage: any row of a replaced file may still exist in another file.
        moved |= {file.file_path: _all_rows(file) for file in change.removed}
    schema = metadata.schema(snapshot.schema_id if snapshot.schema_id in metadata.schemas() else None)
    return Write(
        _kind(change),
        metadata.uuid,
        base=Base.of(base),
        branch=view.branch,
        isolation=settings.isolation,
        added=added,
        copies=lineage.outputs,
        removed=change.removed,
        deletes=marks,
        positions=positions,
        touched=touched,
        moved=moved,
        keys=_keys(marks),
        schema_id=schema.schema_id,
        written_ids={each: str(schema.find_column_name(each)) for each in schema.field_ids},
        owns_files=False,
        rows=RowCounts(inserted=sum(file.record_count for file in added)),
        snapshot_properties={**settings.snapshot_properties, SOURCE: str(snapshot.snapshot_id)},
    )


def _common_ancestor(view: View, snapshot: Snapshot) -> Snapshot | None:
    """The newest snapshot that both histories have; the pick is checked against everything after it."""
    metadata = view.metadata
    here = {each.snapshot_id for each in metadata.ancestors(metadata.ref_snapshot_id(view.branch))}
    return next((each for each in metadata.ancestors(snapshot.parent_snapshot_id) if each.snapshot_id in here), None)


def _check_files(
    view: View, base: Snapshot | None, snapshot: Snapshot, change: Change, positions: dict[str, BitMap64]
) -> dict[str, DataFile]:
    """The files that rows are taken out of by position. This branch must have every file that the snapshot changed."""
    named = positions.keys() | {file.file_path for file in change.removed}
    if not named:
        return {}
    young: set[str] = set()
    by_key = False
    metadata = view.metadata
    everything = parse_filter(None, metadata.schema())
    files = {task.file.file_path: task.file for task in plan(metadata, base, everything, view.storage).tasks}
    for each in metadata.ancestors(metadata.ref_snapshot_id(view.branch)):
        if base is not None and each.snapshot_id == base.snapshot_id:
            break
        done = change_of(view.storage, metadata, each)
        young |= {entry.file.file_path for entry in done.added}
        by_key = by_key or any(entry.file.content == Content.EQUALITY_DELETES for entry in done.deletes)
        files |= {entry.file.file_path: entry.file for entry in done.added}
    missing = sorted(named - files.keys())
    if missing:
        raise InvalidInput(
            f"The snapshot {snapshot.snapshot_id} changes rows of {missing[0]}, which {view.branch!r} does not have",
            advice="Pick the snapshot that added it first",
        )
    if by_key and any(file.file_path in young for file in change.removed):
        raise InvalidInput(
            f"The snapshot {snapshot.snapshot_id} copies files that came to {view.branch!r} after rows were deleted "
            "by key, and its copies would count as older",
            advice="Repeat the write on this branch",
        )
    if change.removed:
        _check_copies(view, base, snapshot)
    return {path: files[path] for path in positions}


def _check_copies(view: View, base: Snapshot | None, snapshot: Snapshot) -> None:
    """A copy lacks the rows that earlier snapshots of its branch deleted; picked alone it would delete them here."""
    for each in view.metadata.ancestors(snapshot.parent_snapshot_id):
        if base is not None and each.snapshot_id == base.snapshot_id:
            return
        if change_of(view.storage, view.metadata, each).deletes:
            raise InvalidInput(
                f"The snapshot {snapshot.snapshot_id} depends on deletes of the earlier snapshot {each.snapshot_id}",
                advice="Publish the whole branch with fast_forward(), or repeat the write on this branch",
            )


def _kind(change: Change) -> Kind:
    if change.operation == "append":
        return Kind.APPEND
    return Kind.DELETE if change.is_delete else Kind.UPDATE


def _all_rows(file: DataFile) -> BitMap64:
    rows = BitMap64()
    rows.add_range(0, file.record_count)
    return rows


def _positions(view: View, marks: tuple[DataFile, ...]) -> dict[str, BitMap64]:
    found: dict[str, BitMap64] = {}
    for file in marks:
        if file.content == Content.POSITION_DELETES:
            if named_file(file) is None:
                raise InvalidInput(f"The delete file {file.file_path} covers several data files and cannot be picked")
            for path, rows in Deletes(view.storage, view.metadata).rows_by_file(file).items():
                found[path] = found.get(path, BitMap64()) | rows
    return found


def _keys(marks: tuple[DataFile, ...]) -> tuple[int, ...]:
    ids = {field_id for file in marks for field_id in file.equality_ids}
    return tuple(sorted(ids))

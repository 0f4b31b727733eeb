"""Delete files: equality deletes are resolved into positions, position deletes are put together, and what applies to
nothing is removed.

    equality deletes of a snapshot ──which data files may they reach?──▶ marks of rows, by position ─▶ without them
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from frazil.commit.operations import Write
from frazil.dml.resolve import Regrouping, Resolving, regroup
from frazil.dml.view import Settings, View
from frazil.expr import Filter, parse_filter
from frazil.format.partitions import partition_identity, reaches_everything
from frazil.model import Content, Entry
from frazil.read.plan import FileTask, ScanPlan, named_file, plan


@dataclass(frozen=True, slots=True)
class DeletePlan:
    """What becomes of a table's delete files."""

    table: str
    snapshot_id: int | None
    data_files: tuple[str, ...] = ()
    """Their deleted rows are marked anew."""
    replaced: tuple[str, ...] = ()
    """The delete files that are not needed then."""
    dangling: tuple[str, ...] = ()
    """Delete files that apply to nothing."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "snapshot_id": self.snapshot_id,
            "data_files": list(self.data_files),
            "replaced_delete_files": list(self.replaced),
            "dangling_delete_files": list(self.dangling),
        }


def resolving(view: View, where: Filter | None = None) -> Resolving:
    """The data files that equality deletes may reach, by partition and bounds; and the deletes that reach no other."""
    found = _planned(view)
    chosen = _chosen(view, where)
    keyed = [task for task in found.tasks if any(_is_by_key(ref.file) for ref in task.deletes)]
    inside = tuple(task for task in keyed if chosen is None or task.file.file_path in chosen)
    outside = _applied(task for task in keyed if chosen is not None and task.file.file_path not in chosen)
    resolved = (entry for entry in found.deletes if _is_by_key(entry.file) and entry.file.file_path not in outside)
    return Resolving(inside, tuple(resolved))


def regrouping(view: View, where: Filter | None = None, least: int = 2, *, every: bool = False) -> Regrouping:
    """Position delete files of data files that have at least ``least`` of them, or share one with other data files.

    ``every``: all of them.
    """
    found = _planned(view)
    chosen = _chosen(view, where)
    deletes = view.read_context().deletes
    marked: dict[str, list[str]] = {}
    tasks: dict[str, FileTask] = {}
    for task in found.tasks:
        path = task.file.file_path
        mine = [ref for ref in task.deletes if not _is_by_key(ref.file)]
        named = [ref.file.file_path for ref in mine if len(deletes.positions([ref], path).parts)]
        if named:
            marked[path], tasks[path] = named, task
    shared = {entry.file.file_path for entry in found.deletes if named_file(entry.file) is None}
    wanted = {
        delete
        for path, named in marked.items()
        if every or len(named) >= least or shared.intersection(named)
        for delete in named
    }
    if chosen is not None:
        wanted -= {delete for path, named in marked.items() if path not in chosen for delete in named}
    kept = tuple(tasks[path] for path, named in marked.items() if wanted.intersection(named))
    return Regrouping(kept, tuple(entry for entry in found.deletes if entry.file.file_path in wanted))


def plan_resolve(view: View, where: Filter | None = None) -> DeletePlan:
    work = resolving(view, where)
    return _plan(view, work.tasks, work.resolved)


def plan_regroup(view: View, where: Filter | None = None, least: int = 2, *, every: bool = False) -> DeletePlan:
    work = regrouping(view, where, least, every=every)
    return _plan(view, work.tasks, work.replaced)


def regrouped(
    view: View, settings: Settings, where: Filter | None = None, least: int = 2, *, every: bool = False
) -> Write:
    """The write that puts position deletes together."""
    return regroup(view, settings, regrouping(view, where, least, every=every))


def dangling(found: ScanPlan, view: View) -> tuple[Entry, ...]:
    """Delete files that apply to no live data file, by sequence numbers alone.

    In its spec and partition, or in the whole table if its spec has no partitions, an equality delete is dangling if no
    data file is older than it; a position delete if none is as old as it, or older.
    """
    oldest: dict[object, int] = {}
    for task in found.tasks:
        partition = (task.file.spec_id, partition_identity(task.file.partition))
        for each in (partition, None, task.file.file_path):
            oldest[each] = min(task.sequence_number, oldest.get(each, task.sequence_number))
    specs = view.metadata.specs()
    gone = []
    for entry in found.deletes:
        file = entry.file
        key: object = (file.spec_id, partition_identity(file.partition))
        if _is_by_key(file):
            key, limit = (None if reaches_everything(specs[file.spec_id]) else key), entry.sequence_number or 0
        else:
            key, limit = named_file(file) or key, (entry.sequence_number or 0) + 1
        if oldest.get(key, limit) >= limit:
            gone.append(entry)
    return tuple(gone)


def _plan(view: View, tasks: Sequence[FileTask], replaced: Sequence[Entry]) -> DeletePlan:
    names = {entry.file.file_path for entry in replaced}
    return DeletePlan(
        view.table,
        view.base.snapshot_id,
        tuple(task.file.file_path for task in tasks),
        tuple(entry.file.file_path for entry in replaced),
        tuple(entry.file.file_path for entry in dangling(_planned(view), view) if entry.file.file_path not in names),
    )


def _planned(view: View) -> ScanPlan:
    everything = parse_filter(None, view.schema)
    found = plan(view.metadata, view.snapshot, everything, view.storage, all_statistics=True)
    return replace(found, tasks=tuple(replace(task, residual=None) for task in found.tasks))


def _chosen(view: View, where: Filter | None) -> Collection[str] | None:
    """The data files that may hold rows of a condition; None: all of them."""
    return None if where is None else {task.file.file_path for task in view.tasks(view.bound(where))}


def _applied(tasks: Any) -> set[str]:
    return {ref.file.file_path for task in tasks for ref in task.deletes}


def _is_by_key(file: Any) -> bool:
    return bool(file.content == Content.EQUALITY_DELETES)

"""A statement on a newer version of the table: what it staged for files that did not change is kept.

    the files that it was evaluated on ─┬─ as they were ──────────────▶ its write for them is kept
    the files of the newer version     ─┴─ new, rewritten or deleted from ─▶ evaluated (again)

A statement decides row by row, so its write on the newer version is the union of both parts, and equals the write of
the whole statement evaluated there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from pyroaring import BitMap64

from frazil.commit.operations import Kind, RowCounts, Write
from frazil.dml.view import Kept, View
from frazil.errors import FrazilError
from frazil.expr import Filter, parse_filter
from frazil.model import Content, DataFile
from frazil.read.arrow import count_task
from frazil.read.plan import FileTask, named_file

_ROW_BY_ROW = (Kind.DELETE, Kind.UPDATE, Kind.OVERWRITE, Kind.REPLACE_PARTITIONS, Kind.UPSERT, Kind.MERGE)
_WITH_ROWS = (Kind.OVERWRITE, Kind.REPLACE_PARTITIONS, Kind.UPSERT)
"""The rows come from the caller, and are staged once."""
_NEW_VALUES = (Kind.UPDATE, Kind.MERGE)


def continued(before: View, write: Write, after: View, *, takes_back: bool = False) -> View:
    """The newer version, with the part of the write that holds on it. ``before``: what the write was evaluated on.

    ``takes_back``: the verb knows which of its new rows depend on which file. It takes those of stale files out of the
    write itself, and counts all rows again.
    """
    if write.kind not in _ROW_BY_ROW or not write.reads:
        return after
    if write.kind is Kind.MERGE and before.metadata.current_schema_id != after.metadata.current_schema_id:
        # "Every column" may mean others now.
        return after
    where = write.reads[0].where
    new = _tasks(after, after.bound(where))
    try:
        old = _tasks(replace(before, kept=None), where)
    except FrazilError:
        # The earlier version has expired.
        if write.kind not in _WITH_ROWS:
            return after
        return replace(after, kept=Kept(_rows_alone(write), frozenset(new), frozenset()))
    dirty = _dirty(write, old, new)
    if write.kind in _NEW_VALUES and not takes_back and any(path in write.moved for path in dirty):
        # The new values of all files were staged together: those of one file cannot be taken out.
        return after
    left = frozenset(path for path in new if path in dirty or path not in old)
    if takes_back:
        rows = RowCounts()
    else:
        # Counting reads files: in the same order in every process.
        rows = _fewer(write, {path: _deleted_rows(write, path, old, before) for path in sorted(dirty)})
    return replace(after, kept=Kept(replace(_without(write, dirty), rows=rows), left, frozenset(dirty)))


def without_lost_groups(write: Write, after: View) -> Write:
    """A rewrite of the files that are still in the table. The groups of files that others have rewritten are left out.

    The base stays: the copies are as old as the snapshot that was read (rule P20).
    """
    live = _tasks(after, parse_filter(None, after.schema))
    if not write.has_lineage:
        # Which files of a group went into which copies is not recorded either.
        copied = replace(write, added=(), copies={}, removed=())
        return replace(copied, removed_deletes=(), unneeded={})
    dirty = _with_mixed(write, {file.file_path for file in write.removed if file.file_path not in live})
    kept = _without(write, dirty)
    # Whether the delete files that applied to nothing are needed by the files that now stay was not examined.
    needed = tuple(file for file in kept.removed_deletes if file.file_path not in write.unneeded)
    return replace(kept, removed_deletes=needed, unneeded={})


def _tasks(view: View, where: Filter) -> Mapping[str, FileTask]:
    return {task.file.file_path: task for task in view.tasks(where)}


def _dirty(write: Write, old: Mapping[str, FileTask], new: Mapping[str, FileTask]) -> set[str]:
    """The files whose part of the write no longer holds."""
    dirty = {path for path, task in old.items() if path not in new or _deletes(task) != _deletes(new[path])}
    named = {file.file_path for file in write.removed} | set(write.positions)
    return _with_mixed(write, dirty | {path for path in named if path not in old})


def _with_mixed(write: Write, dirty: set[str]) -> set[str]:
    """A copy of rows of several files holds only if all of these files are as they were."""
    dirty = set(dirty)
    while mixed := {
        run.source
        for runs in write.copies.values()
        if any(run.source in dirty for run in runs)
        for run in runs
        if run.source not in dirty
    }:
        dirty |= mixed
    return dirty


def _deletes(task: FileTask) -> frozenset[str]:
    return frozenset(ref.file.file_path for ref in task.deletes)


def _without(write: Write, dirty: Set[str]) -> Write:
    """The write without what it does to these files."""
    copies = {path: runs for path, runs in write.copies.items() if all(run.source not in dirty for run in runs)}
    dropped = write.copies.keys() - copies.keys()
    return replace(
        write,
        added=tuple(file for file in write.added if file.file_path not in dropped),
        copies=copies,
        removed=tuple(file for file in write.removed if file.file_path not in dirty),
        removed_deletes=_unnamed(write.removed_deletes, dirty),
        deletes=_unnamed(write.deletes, dirty),
        positions=_Without(write.positions, dirty),
        touched={path: file for path, file in write.touched.items() if path not in dirty},
        moved=_Without(write.moved, dirty),
    )


def _rows_alone(write: Write) -> Write:
    """The rows that the caller gave, and nothing that was deleted for them."""
    rows = write.rows
    inserted = rows.inserted + (rows.updated if write.kind is Kind.UPSERT else 0)
    return replace(
        write,
        added=tuple(file for file in write.added if file.file_path not in write.copies),
        copies={},
        removed=(),
        removed_deletes=(),
        deletes=(),
        positions={},
        touched={},
        moved={},
        rows=RowCounts(inserted=inserted),
    )


def _fewer(write: Write, gone: Mapping[str, int]) -> RowCounts:
    """The counts of a write without what it does to some files. ``gone``: how many live rows it deletes of each."""
    rows = write.rows
    if write.kind is Kind.UPSERT:
        # Which of the keys were there is counted over all files together (``upsert.py``): one may be in several.
        return RowCounts(rows.inserted + rows.updated)
    return replace(rows, deleted=rows.deleted - sum(gone.values()))


def _deleted_rows(write: Write, path: str, old: Mapping[str, FileTask], before: View) -> int:
    """How many live rows of a file the write deletes."""
    if path in write.positions:
        return len(write.positions[path])
    if path not in {file.file_path for file in write.removed} or path not in old:
        return 0
    copied = sum(run.length for runs in write.copies.values() for run in runs if run.source == path)
    live = count_task(replace(old[path], residual=None), before.read_context())
    return live - copied


def _unnamed(files: Sequence[DataFile], dirty: Set[str]) -> tuple[DataFile, ...]:
    """Without position deletes on one of these files alone."""
    return tuple(file for file in files if file.content != Content.POSITION_DELETES or named_file(file) not in dirty)


class _Without(Mapping[str, BitMap64]):
    """Rows by file, without those of some files. The others are read when they are needed, as before."""

    def __init__(self, rows: Mapping[str, BitMap64], dirty: Set[str]) -> None:
        self._rows = rows
        self._dirty = dirty

    def __getitem__(self, path: str) -> BitMap64:
        if path in self._dirty:
            raise KeyError(path)
        return self._rows[path]

    def __iter__(self) -> Iterator[str]:
        return (path for path in self._rows if path not in self._dirty)

    def __len__(self) -> int:
        return sum(1 for _ in self)

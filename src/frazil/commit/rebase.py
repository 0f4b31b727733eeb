"""An operation rebased: as it has to be written to land on the head that an attempt found (rule P26). Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from frazil.commit.checks import FileInspector
from frazil.commit.operations import Write
from frazil.commit.trace import Piece, Rows, RowTrace
from frazil.model import Content, DataFile, Entry, Lineage, Run, Status
from frazil.read.plan import named_file


@dataclass(frozen=True, slots=True, eq=False)
class Rebased:
    """The files that an operation adds and removes at the head."""

    removed: tuple[DataFile, ...]
    """Data files that are removed."""
    positions: Mapping[str, Rows]
    """File that stays → rows to take out of it by new position deletes. The file may be the operation's own."""
    files: Mapping[str, DataFile]
    """The files that ``positions`` names."""
    added: tuple[DataFile, ...]
    """The operation's data files of which some row is still wanted."""
    deletes: tuple[DataFile, ...]
    """The operation's staged delete files that hold as they are."""
    removed_deletes: tuple[DataFile, ...] = ()
    """Delete files that are removed, as they apply to no file that stays."""
    lineage: Lineage | None = None
    """Where the copied rows came from, if that differs from the staged lineage."""
    dropped: int = 0
    """How many appended rows are left out, because a concurrent delete asked to remove them (P23)."""
    gone_already: int = 0
    """How many of the rows to delete were deleted before."""
    has_manifests: bool = False
    """Manifests of the operation are included as they are."""

    @property
    def is_empty(self) -> bool:
        files = self.removed or self.added or self.deletes or self.removed_deletes
        return not (files or self.positions or self.has_manifests)

    def keeping(self, deletes: Container[str]) -> Rebased:
        """The same, without removing these delete files."""
        return replace(
            self, removed_deletes=tuple(each for each in self.removed_deletes if each.file_path not in deletes)
        )

    def is_unchanged(self, write: Write) -> bool:
        """The operation lands exactly as it was staged."""
        same = (self.removed, self.added, self.deletes) == (write.removed, write.added, write.deletes)
        return same and not self.positions and self.lineage is None


def unchanged(write: Write) -> Rebased:
    """The operation as it was staged."""
    manifests = bool(write.bundles or write.merges)
    return Rebased(write.removed, {}, {}, write.added, write.deletes, write.removed_deletes, has_manifests=manifests)


def rebase(write: Write, trace: RowTrace, inspector: FileInspector) -> Rebased:
    """The operation at the head, from where its rows are now."""
    settled, stale = _settle(trace)
    removed = [each.file for each in settled if each.is_whole]
    marks = [*write.removed_deletes, *(mark for each in settled if each.is_whole for mark in each.marks)]
    positions: dict[str, Rows] = {}
    files: dict[str, DataFile] = {}
    for each in settled:
        path = each.file.file_path
        if not each.is_whole and each.gone and each.gone != write.positions.get(path):
            positions[path], files[path] = each.gone, each.file
    added: list[DataFile] = []
    for file in write.added:
        hidden = stale.get(file.file_path, Rows())
        if len(hidden) < file.record_count or not hidden:
            added.append(file)
            if hidden:
                positions[file.file_path], files[file.file_path] = hidden, file
    whole = {file.file_path for file in removed}
    present = {*trace.files, *(file.file_path for file in added)}
    rebased = Rebased(
        tuple(removed),
        positions,
        files,
        tuple(added),
        tuple(file for file in write.deletes if _still_holds(file, present - whole - positions.keys())),
        removed_deletes=tuple(marks),
        lineage=_lineage(write, settled) if trace.has_moved else None,
        dropped=sum(len(rows) for path, rows in stale.items() if path not in write.copies),
        gone_already=trace.gone_already,
    )
    if not write.unneeded:
        return rebased
    # What remains must be work to do: removing only what is gone already would make an empty snapshot.
    return rebased.keeping(trace.dropped_deletes | _needed_again(write, trace, whole, inspector))


@dataclass(frozen=True, slots=True, eq=False)
class _Settled:
    """A traced file, after deciding whether it is removed or stays."""

    file: DataFile
    gone: Rows
    moved: Rows
    copied: tuple[Piece, ...]
    marks: tuple[DataFile, ...]
    is_whole: bool


def _settle(trace: RowTrace) -> tuple[list[_Settled], dict[str, Rows]]:
    """Decide for each file whether it goes whole, and which rows of the operation's files must stay hidden.

    Rows that were copied out of a file that stays, because other rows in it are not the operation's, are in the table
    already: they stay there, and their copies are hidden. So a position delete always means that a row was deleted or
    changed.
    """
    stale = {path: rows.copy() for path, rows in trace.stale.items()}
    settled: list[_Settled] = []
    for each in trace.files.values():
        if each.gone and len(each.gone) >= each.file.record_count:
            settled.append(_Settled(each.file, each.gone, each.moved, each.copied, each.marks, is_whole=True))
            continue
        for piece in each.copied:
            hidden = Rows()
            hidden.add_range(piece.at, piece.at + piece.length)
            stale.setdefault(piece.output, Rows()).update(hidden)
        gone = each.gone - each.copied_rows if each.copied else each.gone
        settled.append(_Settled(each.file, gone, each.moved, (), each.marks, is_whole=False))
    return settled, stale


def _still_holds(deletes: DataFile, unaffected: Container[str]) -> bool:
    return deletes.content != Content.POSITION_DELETES or named_file(deletes) in unaffected


def _needed_again(write: Write, trace: RowTrace, whole: Container[str], inspector: FileInspector) -> set[str]:
    """Delete files that applied to nothing at the base, and apply to files added since.

    A copy is as old as the snapshot that its writer read (P20), which may be older than an equality delete that landed
    in between: without the delete, a row that it removed would come back.
    """
    brought = [entry for path, entry in trace.brought.items() if path not in whole]
    unneeded = (file for file in write.removed_deletes if file.file_path in write.unneeded)
    return {
        file.file_path
        for file in unneeded
        if any(_reaches(file, write.unneeded[file.file_path], each, inspector) for each in brought)
    }


def _reaches(deletes: DataFile, number: int, data: Entry, inspector: FileInspector) -> bool:
    # A position delete applies to files of its own sequence number and older, an equality delete only to older ones.
    limit = number + (deletes.content == Content.POSITION_DELETES)
    if data.sequence_number is not None and data.sequence_number >= limit:
        return False
    return inspector.applies(Entry(Status.EXISTING, deletes, sequence_number=number), data.file)


def _lineage(write: Write, settled: list[_Settled]) -> Lineage:
    outputs: dict[str, tuple[Run, ...]] = {}
    for output in write.copies:
        pieces = sorted(
            (piece.at, each.file.file_path, (piece.first, piece.length))
            for each in settled
            for piece in each.copied
            if piece.output == output
        )
        runs: list[Run] = []
        end = 0
        for at, path, (first, length) in pieces:
            if at > end:
                # The source of these rows is gone, so no other operation can still track them.
                runs.append(Run("", 0, at - end))
            runs.append(Run(path, first, length))
            end = at + length
        if runs:
            outputs[output] = tuple(runs)
    changed = {each.file.file_path: each.moved for each in settled if each.moved}
    return Lineage(outputs, changed)

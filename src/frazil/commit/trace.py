"""Where an operation's rows are at the head: followed through every change since the operation's base (rule P26).

An operation takes rows out of files by (file, position). Concurrent commits may have deleted some of these rows,
changed them, or copied them into other files. Each change moves the tracked rows along; where two writers do different
things to one row, that is recorded as a collision. Pure: files are opened only through the ``FileInspector``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap64

from frazil.commit.checks import Check, FileInspector
from frazil.commit.operations import Kind, Write
from frazil.model import POSITION_FIELD, Change, Conflict, Content, DataFile, Entry, Lineage, Run
from frazil.read.plan import named_file

Rows = BitMap64


@dataclass(frozen=True, slots=True)
class Piece:
    """``length`` rows of a file, from ``first`` on, that are the rows of ``output`` from ``at`` on."""

    first: int
    length: int
    output: str
    at: int


@dataclass(frozen=True, slots=True, eq=False)
class TracedFile:
    """A live file that the operation takes rows out of, or read, with these rows by position."""

    file: DataFile
    gone: Rows
    """All rows that the operation takes out."""
    moved: Rows
    """Those of ``gone`` that the operation writes again with other values."""
    copied: tuple[Piece, ...]
    """Those of ``gone`` that the operation copies unchanged into files of its own."""
    marks: tuple[DataFile, ...]
    """Position delete files on this file alone, added since the base; useless once the file goes."""

    @property
    def copied_rows(self) -> Rows:
        return _rows_of(self.copied)


@dataclass(frozen=True, slots=True, eq=False)
class RowTrace:
    """What became of an operation's rows between its base and the head."""

    files: Mapping[str, TracedFile]
    stale: Mapping[str, Rows]
    """File of the operation → rows in it that must not become visible, as another writer took them out."""
    collisions: tuple[Conflict, ...]
    """Everything that two writers did to the same rows. Which of it is a conflict, the checks decide."""
    replaced_twice: tuple[Change, ...] = ()
    """Overwrites that replaced rows which this operation also replaces."""
    gone_already: int = 0
    """How many rows that the operation deletes were deleted before it."""
    has_moved: bool = False
    """Some of the rows are in other files by now."""
    brought: Mapping[str, Entry] = field(default_factory=dict)
    """Data files added since the base and still live. Tracked only for operations that drop unneeded deletes."""
    dropped_deletes: frozenset[str] = frozenset()
    """Delete files removed since the base."""
    is_undecided: bool = False
    """The inspector may not open files, and statistics alone do not tell."""


def trace_rows(
    write: Write, changes: Sequence[Change], inspector: FileInspector, *, against_predicates: bool
) -> RowTrace:
    """Follow the operation's rows through the changes, oldest first.

    ``against_predicates``: look for appended rows that a concurrent delete asked to remove (rule P23).
    """
    tracer = _Tracer(write, inspector, against_predicates=against_predicates)
    for change in changes:
        tracer.follow(change)
    return tracer.result()


@dataclass(slots=True)
class _Tracked:
    """A file while its rows are followed; only the tracer changes it."""

    file: DataFile
    gone: Rows = field(default_factory=Rows)
    moved: Rows = field(default_factory=Rows)
    copied: list[Piece] = field(default_factory=list)
    seen: Rows = field(default_factory=Rows)
    """Rows that the operation read and depends on."""
    taken: Rows = field(default_factory=Rows)
    """Rows of ``gone`` that were deleted already. A change that leaves them out later takes nothing away."""
    marks: list[DataFile] = field(default_factory=list)

    @property
    def copied_rows(self) -> Rows:
        return _rows_of(self.copied)

    @property
    def deleted(self) -> Rows:
        return self.gone - self.moved - self.copied_rows


class _Tracer:
    def __init__(self, write: Write, inspector: FileInspector, *, against_predicates: bool) -> None:
        self._write = write
        self._inspector = inspector
        self._against_predicates = against_predicates
        self._replaces = write.kind in (Kind.OVERWRITE, Kind.REPLACE_PARTITIONS)
        # An upsert writes the same rows whether or not there was a row to replace.
        self._needs_rows = write.kind is not Kind.UPSERT
        self._replaced_twice: list[Change] = []
        self._gone_already = 0
        self._stale: dict[str, Rows] = {}
        self._tracked: dict[str, _Tracked] = {}
        self._seen_known: set[str] = set()
        self._collisions: list[Conflict] = []
        self._brought: dict[str, Entry] = {}
        self._dropped: set[str] = set()
        self._has_moved = False
        self._is_undecided = False
        self._has_lineage = write.has_lineage
        self._whole = {file.file_path for file in write.removed}
        """Files that the operation removes with all of their rows, deleted ones included."""
        self._respecced = tuple(_respecced(write))
        for file in write.removed:
            tracked = self._track(file)
            tracked.gone.add_range(0, file.record_count)
        for path, rows in write.positions.items():
            self._track(write.touched[path]).gone |= rows
        for path, rows in write.moved.items():
            self._tracked[path].moved |= rows
        for output, runs in write.copies.items():
            at = 0
            for run in runs:
                self._tracked[run.source].copied.append(Piece(run.first, run.length, output, at))
                at += run.length

    def _track(self, file: DataFile) -> _Tracked:
        return self._tracked.setdefault(file.file_path, _Tracked(file))

    # One change

    def follow(self, change: Change) -> None:
        if self._against_predicates and self._write.on_deleted != "keep":
            self._check_predicate(change)
        for entry in change.deletes:
            if entry.file.content == Content.POSITION_DELETES:
                self._position_deletes(entry.file, change)
            else:
                self._equality_deletes(entry, change)
        for file in change.removed:
            self._removal(file, change)
        if self._write.unneeded:
            self._note_files(change)

    def _note_files(self, change: Change) -> None:
        for file in change.removed:
            self._brought.pop(file.file_path, None)
        self._dropped.update(file.file_path for file in change.removed_deletes)
        self._brought.update((entry.file.file_path, entry) for entry in change.added)

    def _position_deletes(self, deletes: DataFile, change: Change) -> None:
        named = named_file(deletes)
        paths = self._of_interest() if named is None else [named] if self._is_of_interest(named) else []
        near = {path: tracked for path in paths if (tracked := self._marked(path, deletes)) is not None}
        if not near:
            return
        found = self._inspector.positions(deletes)
        for path, tracked in near.items():
            if path not in found:
                continue
            if named is not None:
                tracked.marks.append(deletes)
            rows = found[path]
            self._must_be_known(tracked, change)
            self._must_be_free(tracked, rows, change)
            self._forget_copies(tracked, rows)
            if tracked.seen & rows:
                self._collision(
                    Check.NO_NEW_DELETE_FILES,
                    change,
                    f"{_count(tracked.seen & rows)} that this transaction read {_was(tracked.seen & rows)} deleted "
                    f"from {_name(path)}",
                    (path,),
                )

    def _marked(self, path: str, deletes: DataFile) -> _Tracked | None:
        """The tracked rows of a file, if the position bounds of a delete file do not exclude all of them."""
        tracked = self._interest(path)
        if tracked is None:
            return None
        lower, upper = (bounds.get(POSITION_FIELD) for bounds in (deletes.lower_bounds, deletes.upper_bounds))
        if lower is None or upper is None:
            return tracked
        first, last = (int.from_bytes(each, "little", signed=True) for each in (lower, upper))
        rows = tracked.gone | tracked.seen
        return tracked if first <= last and rows.range_cardinality(first, last + 1) else None

    def _must_be_known(self, tracked: _Tracked, change: Change) -> None:
        """Rows that another writer takes out of a rewritten file are in a copy; which ones must be recorded."""
        path = tracked.file.file_path
        if not self._has_lineage and path in self._whole:
            self._collision(
                Check.FILES_EXIST,
                change,
                f"rows of {_name(path)} were deleted, and the rewrite did not record where it copied them to",
                (path,),
                "No data is lost. Run the rewrite again; it then plans from the current files",
            )

    def _must_be_free(self, tracked: _Tracked, rows: Rows, change: Change) -> None:
        """A row has one owner: deleting a row twice is harmless, changing a row that is gone is not."""
        twice = Rows() if change.is_delete and not self._needs_rows else tracked.moved & rows
        both = self._alive(tracked.file.file_path, (tracked.deleted & rows) - tracked.taken)
        tracked.taken |= both
        if not change.is_delete:
            # The winner may have written the row again with other values, which this delete would not reach.
            twice |= both
        self._gone_already += len(both)
        if twice:
            self._collision(
                Check.ROW_OWNER,
                change,
                f"{_count(twice)} of {_name(tracked.file.file_path)} that this {self._write.name} changes "
                f"{_was(twice)} changed or deleted by another writer (position {twice[0]}{_more(twice)})",
                (tracked.file.file_path,),
            )

    def _forget_copies(self, tracked: _Tracked, rows: Rows) -> None:
        """Rows that another writer took out must not come back in this operation's copy of them."""
        for piece in tracked.copied:
            hit = rows & _range(piece.first, piece.length)
            if hit:
                self._stale.setdefault(piece.output, Rows()).update(hit.shift(piece.at - piece.first))

    def _equality_deletes(self, entry: Entry, change: Change) -> None:
        if self._respecced and entry.file.partition:
            self._collision(
                Check.FILES_EXIST,
                change,
                "rows were deleted by key in one partition, and the rewrite moves rows to partitions of another spec",
                tuple(file.file_path for file in self._respecced),
            )
        self._restored(entry, change)
        # Copies keep the sequence number of the base, so a later equality delete applies to them by itself (P19).
        for tracked in self._near(entry):
            path = tracked.file.file_path
            if tracked.moved and (hit := self._inspector.hit_by_keys(entry, tracked.file, tracked.moved)):
                self._collision(
                    Check.NO_NEW_DELETES,
                    change,
                    f"{_count(hit)} of {_name(path)} that this {self._write.name} changes {_was(hit)} replaced or "
                    "deleted by key",
                    (path,),
                )
            if tracked.seen and (hit := self._inspector.hit_by_keys(entry, tracked.file, tracked.seen)):
                self._collision(
                    Check.NO_NEW_DELETE_FILES,
                    change,
                    f"{_count(hit)} that this transaction read {_was(hit)} replaced or deleted by key in {_name(path)}",
                    (path,),
                )

    def _restored(self, entry: Entry, change: Change) -> None:
        """A delete that was put back is older than the base, so it does not apply to new copies of rows (P43)."""
        if entry.sequence_number is None or entry.sequence_number > self._write.base.sequence_number:
            return
        for path in self._of_interest():
            tracked = self._interest(path)
            if tracked is not None and self._inspector.applies(entry, tracked.file):
                self._collision(
                    Check.FILES_EXIST,
                    change,
                    f"a delete was put back that another engine had dropped, and rows of {_name(path)} go with it",
                    (path,),
                )

    def _near(self, deletes: Entry) -> Iterator[_Tracked]:
        """The files with changed or depended-on rows that an equality delete may apply to."""
        read = self._inspector.seen_files()
        for path in self._of_interest():
            tracked = self._tracked.get(path)
            if tracked is not None and not (tracked.moved or tracked.seen or self._is_unread(path)):
                continue
            # Which rows of a file were read is looked up only if the delete may apply to the file.
            if self._inspector.applies(deletes, read[path] if tracked is None else tracked.file):
                found = self._interest(path)
                if found is not None:
                    yield found

    def _removal(self, file: DataFile, change: Change) -> None:
        tracked = self._interest(file.file_path)
        if tracked is None:
            return
        if self._write.kind is Kind.REWRITE and file.file_path in self._whole and change.operation == "replace":
            self._collision(
                Check.FILES_NOT_REMOVED,
                change,
                f"a concurrent rewrite replaced {_name(file.file_path)}, which this rewrite replaces",
                (file.file_path,),
                "No data is lost. Run the rewrite again; it then plans from the current files",
            )
            return
        self._must_be_known(tracked, change)
        lineage = self._lineage_of(change)
        if lineage is None:
            what = f"{_name(file.file_path)} was replaced, and its writer recorded no lineage of the rows"
            if tracked.gone:
                self._collision(Check.FILES_EXIST, change, what, (file.file_path,))
            if tracked.seen:
                self._collision(Check.NO_REMOVED_ROWS, change, what, (file.file_path,))
            return
        del self._tracked[file.file_path]
        self._has_moved = True
        self._move(tracked, lineage, change)

    def _lineage_of(self, change: Change) -> Lineage | None:
        if change.lineage_path is not None:
            return self._inspector.lineage(change.lineage_path)
        # A delete copies nothing: no row of a removed file is in another file.
        return Lineage() if change.is_delete else None

    def _move(self, tracked: _Tracked, lineage: Lineage, change: Change) -> None:
        path = tracked.file.file_path
        pieces = list(_pieces_of(path, lineage.outputs))
        copied = Rows()
        for piece in pieces:
            copied.add_range(piece.first, piece.first + piece.length)
        changed = lineage.changed.get(path, Rows())
        lost = (tracked.moved & changed) | (tracked.deleted & changed)
        if self._needs_rows:
            lost |= tracked.moved - copied
        if path in self._whole:
            # A copy planned before a row was deleted still holds the row, with a position delete on it.
            doomed = tracked.deleted & copied
            tracked.taken |= doomed - self._alive(path, doomed)
        gone = self._alive(path, tracked.deleted - copied - changed - tracked.taken)
        self._gone_already += len(gone)
        replaced = gone if self._replaces else Rows() if self._needs_rows else tracked.moved - copied - changed
        if replaced and not change.is_delete:
            self._replaced_twice.append(change)
        if lost:
            self._collision(
                Check.ROW_OWNER,
                change,
                f"{_count(lost)} of {_name(path)} that this {self._write.name} changes {_was(lost)} changed or deleted "
                f"by another writer (position {lost[0]}{_more(lost)})",
                (path,),
            )
        if tracked.seen - copied:
            self._collision(
                Check.NO_REMOVED_ROWS,
                change,
                f"{_count(tracked.seen - copied)} that this transaction read {_was(tracked.seen - copied)} taken out "
                f"of {_name(path)}",
                (path,),
            )
        self._forget_copies(tracked, tracked.copied_rows - copied)
        added = {entry.file.file_path: entry.file for entry in change.added}
        for piece in pieces:
            if piece.output in added:
                self._track_piece(tracked, piece, added[piece.output])

    def _alive(self, path: str, rows: Rows) -> Rows:
        """Those of the rows that were live at the base; no other row can have been replaced since."""
        live = self._inspector.live_rows(path) if rows else None
        return rows if live is None else rows & live

    def _track_piece(self, tracked: _Tracked, piece: Piece, output: DataFile) -> None:
        """Move the part of a file's rows that went into one run of another file."""
        target = self._track(output)
        self._seen_known.add(output.file_path)
        inside = _range(piece.first, piece.length)
        for rows, to in (
            (tracked.gone, target.gone),
            (tracked.moved, target.moved),
            (tracked.seen, target.seen),
            (tracked.taken, target.taken),
        ):
            to.update((rows & inside).shift(piece.at - piece.first))
        for mine in tracked.copied:
            first = max(mine.first, piece.first)
            end = min(mine.first + mine.length, piece.first + piece.length)
            if first < end:
                target.copied.append(
                    Piece(first - piece.first + piece.at, end - first, mine.output, first - mine.first + mine.at)
                )

    # Appended rows that a concurrent delete asked to remove (P23)

    def _check_predicate(self, change: Change) -> None:
        for file in self._write.added:
            rows = self._inspector.asked_to_go(change, file)
            if rows is None:
                self._is_undecided = True
            if not rows:
                continue
            if self._write.on_deleted == "drop":
                self._stale.setdefault(file.file_path, Rows()).update(rows)
                continue
            self._collision(
                Check.NOT_DELETED,
                change,
                f"{_count(rows)} of this {self._write.name} {_match(rows)} a concurrent delete",
                (file.file_path,),
                "Append again to keep the rows, or pass on_deleted='keep' or 'drop'",
            )

    # The files that matter

    def _of_interest(self) -> list[str]:
        """In a fixed order, which is the order in which files are opened and collisions reported."""
        unread = (path for path in self._inspector.seen_files() if path not in self._seen_known)
        return list(dict.fromkeys((*self._tracked, *unread)))

    def _is_of_interest(self, path: str) -> bool:
        return path in self._tracked or self._is_unread(path)

    def _is_unread(self, path: str) -> bool:
        """The operation read rows of this file, and which ones is not known yet."""
        return path not in self._seen_known and path in self._inspector.seen_files()

    def _interest(self, path: str) -> _Tracked | None:
        """The rows of one file that matter. Rows that were only read are looked up when first needed."""
        if path not in self._seen_known:
            self._seen_known.add(path)
            seen = self._inspector.seen_rows(path)
            if seen is not None:
                file, rows = seen
                self._track(file).seen |= rows
        return self._tracked.get(path)

    def _collision(self, check: Check, change: Change, detail: str, files: tuple[str, ...], advice: str = "") -> None:
        self._collisions.append(
            Conflict(
                check,
                detail,
                change.snapshot_id,
                change.operation,
                files,
                advice or f"Re-read the table and retry the {self._write.name}",
            )
        )

    # Result

    def result(self) -> RowTrace:
        files = {
            path: TracedFile(each.file, each.gone, each.moved, tuple(each.copied), tuple(each.marks))
            for path, each in self._tracked.items()
        }
        return RowTrace(
            files,
            self._stale,
            tuple(self._collisions),
            tuple(self._replaced_twice),
            self._gone_already,
            self._has_moved,
            self._brought,
            frozenset(self._dropped),
            self._is_undecided,
        )


def _respecced(write: Write) -> Iterator[DataFile]:
    """Files whose rows a rewrite copies to another spec, where a delete in one partition would not reach them (P21)."""
    if write.kind is Kind.REWRITE:
        specs = {file.spec_id for file in write.added if file.file_path in write.copies}
        yield from (file for file in write.removed if specs - {file.spec_id})


def _rows_of(pieces: Iterable[Piece]) -> Rows:
    rows = Rows()
    for piece in pieces:
        rows.add_range(piece.first, piece.first + piece.length)
    return rows


def _pieces_of(source: str, outputs: Mapping[str, tuple[Run, ...]]) -> Iterable[Piece]:
    for output, runs in outputs.items():
        at = 0
        for run in runs:
            if run.source == source:
                yield Piece(run.first, run.length, output, at)
            at += run.length


def _range(first: int, length: int) -> Rows:
    rows = Rows()
    rows.add_range(first, first + length)
    return rows


def _count(rows: Rows) -> str:
    return "1 row" if len(rows) == 1 else f"{len(rows)} rows"


def _was(rows: Rows) -> str:
    return "was" if len(rows) == 1 else "were"


def _match(rows: Rows) -> str:
    return "matches" if len(rows) == 1 else "match"


def _more(rows: Rows) -> str:
    return " …" if len(rows) > 1 else ""


def _name(path: str) -> str:
    """The file's name without its folder; the full path is in the evidence."""
    return path.rpartition("/")[2]

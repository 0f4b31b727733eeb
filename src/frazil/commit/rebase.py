"""Where my rows are by now: following them through everything that landed since my base (rule P26).

An operation takes rows out of files by (file, position). Meanwhile others may have deleted some of these rows, changed
them, or copied them into other files. Each winner's change moves the sets along, or shows that two writers want
different things of one row. Pure: what has to be read is read through ``FileInspector``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyroaring import BitMap64

from frazil.commit.checks import Check, FileInspector
from frazil.commit.operations import Kind, Write
from frazil.model import POSITION_FIELD, Change, Conflict, Content, DataFile, Entry, Lineage, Run, Status
from frazil.read.plan import named_file

Rows = BitMap64


@dataclass(frozen=True, slots=True, eq=False)
class Rebased:
    """An operation as it stands at the head."""

    removed: tuple[DataFile, ...]
    """Data files that go whole."""
    positions: Mapping[str, Rows]
    """Files that stay, of others and of my own → rows to take out of them by new position deletes."""
    files: Mapping[str, DataFile]
    """The files that ``positions`` names."""
    added: tuple[DataFile, ...]
    """My data files of which some row is still wanted."""
    deletes: tuple[DataFile, ...]
    """My staged delete files that hold as they are."""
    removed_deletes: tuple[DataFile, ...] = ()
    """Delete files that go, for they apply to no file that stays."""
    lineage: Lineage | None = None
    """Where my copies came from, when that is not what the operation was staged with."""
    conflicts: tuple[Conflict, ...] = ()
    replaced_twice: tuple[Change, ...] = ()
    """Overwrites of others that took out rows which I put others in place of, too."""
    dropped: int = 0
    """How many of the rows that I append are left out, because others deleted them before they came (P23)."""
    gone_already: int = 0
    """How many of the rows that I delete others had deleted before."""
    has_manifests: bool = False
    """Manifests of mine come, too, as they are."""

    @property
    def is_empty(self) -> bool:
        files = self.removed or self.added or self.deletes or self.removed_deletes
        return not (files or self.positions or self.has_manifests)

    def keeping(self, deletes: Container[str]) -> Rebased:
        """The same, but these delete files stay."""
        return replace(
            self, removed_deletes=tuple(each for each in self.removed_deletes if each.file_path not in deletes)
        )

    def is_unchanged(self, write: Write) -> bool:
        """It stands exactly as it was staged."""
        same = (self.removed, self.added, self.deletes) == (write.removed, write.added, write.deletes)
        return same and not self.positions and self.lineage is None


def unchanged(write: Write) -> Rebased:
    """Nothing happened meanwhile."""
    manifests = bool(write.bundles or write.merges)
    return Rebased(write.removed, {}, {}, write.added, write.deletes, write.removed_deletes, has_manifests=manifests)


def rebase(write: Write, changes: Sequence[Change], look: FileInspector, checks: Iterable[Check]) -> Rebased:
    """Follow the operation's rows through the winners' changes, oldest first."""
    tracker = _Tracker(write, look, frozenset(checks))
    for change in changes:
        tracker.follow(change)
    return tracker.result()


@dataclass(slots=True)
class _Piece:
    """``length`` rows of a file, from ``first`` on, that are the rows of ``output`` from ``at`` on."""

    first: int
    length: int
    output: str
    at: int


@dataclass(slots=True)
class _Tracked:
    """One live file that my operation takes rows out of, or that it looked at."""

    file: DataFile
    gone: Rows = field(default_factory=Rows)
    """All rows I take out of it."""
    moved: Rows = field(default_factory=Rows)
    """Those that live on with other values."""
    copied: list[_Piece] = field(default_factory=list)
    """Those that live on as they were, in my copies."""
    seen: Rows = field(default_factory=Rows)
    """Rows that my operation read and depends on."""
    taken: Rows = field(default_factory=Rows)
    """Those that I take out and that were gone before: whoever leaves them out after that takes nothing from me."""
    marks: list[DataFile] = field(default_factory=list)
    """Delete files about this one alone that others added since; they have no use without it."""

    @property
    def copied_rows(self) -> Rows:
        rows = Rows()
        for piece in self.copied:
            rows.add_range(piece.first, piece.first + piece.length)
        return rows

    @property
    def deleted(self) -> Rows:
        return self.gone - self.moved - self.copied_rows


class _Tracker:
    def __init__(self, write: Write, look: FileInspector, checks: frozenset[Check]) -> None:
        self._write = write
        self._look = look
        self._checks = checks
        self._replaces = write.kind in (Kind.OVERWRITE, Kind.REPLACE_PARTITIONS)
        # An upsert's rows are the same whether or not there was a row to replace.
        self._needs_rows = write.kind is not Kind.UPSERT
        self._replaced_twice: list[Change] = []
        self._gone_already = 0
        self._stale: dict[str, Rows] = {}
        self._tracked: dict[str, _Tracked] = {}
        self._seen_known: set[str] = set()
        self._conflicts: list[Conflict] = []
        self._brought: dict[str, Entry] = {}
        """Data files that others have added since and that are still there."""
        self._dropped: set[str] = set()
        """Delete files that others have taken out since."""
        self._has_moved = False
        self._whole = {file.file_path for file in write.removed}
        """Files that I take out with all that is in them, rows that are dead already among it."""
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
                self._tracked[run.source].copied.append(_Piece(run.first, run.length, output, at))
                at += run.length

    def _track(self, file: DataFile) -> _Tracked:
        return self._tracked.setdefault(file.file_path, _Tracked(file))

    # One change

    def follow(self, change: Change) -> None:
        if Check.NOT_DELETED in self._checks and self._write.on_deleted != "keep":
            self._against_predicate(change)
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
        found = self._look.positions(deletes)
        for path, tracked in near.items():
            if path not in found:
                continue
            if named is not None:
                tracked.marks.append(deletes)
            rows = found[path]
            self._must_be_free(tracked, rows, change)
            self._forget_copies(tracked, rows)
            if tracked.seen & rows:
                self._conflict(
                    Check.NO_NEW_DELETE_FILES,
                    change,
                    f"{_count(tracked.seen & rows)} that this transaction read {_was(tracked.seen & rows)} deleted "
                    f"from {_name(path)}",
                    (path,),
                )

    def _marked(self, path: str, deletes: DataFile) -> _Tracked | None:
        """A file whose rows a delete file may hit, by the bounds of its positions."""
        tracked = self._interest(path)
        if tracked is None:
            return None
        lower, upper = (bounds.get(POSITION_FIELD) for bounds in (deletes.lower_bounds, deletes.upper_bounds))
        if lower is None or upper is None:
            return tracked
        first, last = (int.from_bytes(each, "little", signed=True) for each in (lower, upper))
        rows = tracked.gone | tracked.seen
        return tracked if first <= last and rows.range_cardinality(first, last + 1) else None

    def _must_be_free(self, tracked: _Tracked, rows: Rows, change: Change) -> None:
        """One row has one writer. To delete a row twice is harmless; to change a row that is gone is not."""
        twice = Rows() if change.is_delete and not self._needs_rows else tracked.moved & rows
        both = self._alive(tracked.file.file_path, (tracked.deleted & rows) - tracked.taken)
        tracked.taken |= both
        if not change.is_delete:
            # The winner's rows may live on with other values, which my delete would not reach.
            twice |= both
        self._gone_already += len(both)
        if twice:
            self._conflict(
                Check.ROW_OWNER,
                change,
                f"{_count(twice)} of {_name(tracked.file.file_path)} that this {self._write.name} changes "
                f"{_was(twice)} changed or deleted by another writer (position {twice[0]}{_more(twice)})",
                (tracked.file.file_path,),
            )

    def _forget_copies(self, tracked: _Tracked, rows: Rows) -> None:
        """Rows that another writer took out must not come back in my copy of them."""
        for piece in tracked.copied:
            hit = rows & _range(piece.first, piece.length)
            if hit:
                self._stale.setdefault(piece.output, Rows()).update(hit.shift(piece.at - piece.first))

    def _equality_deletes(self, entry: Entry, change: Change) -> None:
        # Copies keep the base's sequence number, so a later equality delete finds its rows in them by itself (P19).
        for tracked in self._near(entry):
            path = tracked.file.file_path
            if tracked.moved and (hit := self._look.hit_by_keys(entry, tracked.file, tracked.moved)):
                self._conflict(
                    Check.NO_NEW_DELETES,
                    change,
                    f"{_count(hit)} of {_name(path)} that this {self._write.name} changes {_was(hit)} replaced or "
                    "deleted by key",
                    (path,),
                )
            if tracked.seen and (hit := self._look.hit_by_keys(entry, tracked.file, tracked.seen)):
                self._conflict(
                    Check.NO_NEW_DELETE_FILES,
                    change,
                    f"{_count(hit)} that this transaction read {_was(hit)} replaced or deleted by key in {_name(path)}",
                    (path,),
                )

    def _near(self, deletes: Entry) -> Iterator[_Tracked]:
        """The files with rows that I change or depend on, where a delete by key may find some of them."""
        read = self._look.seen_files()
        for path in self._of_interest():
            tracked = self._tracked.get(path)
            if tracked is not None and not (tracked.moved or tracked.seen or self._is_unread(path)):
                continue
            # Which rows of a file were read is only found out where the delete may reach it at all.
            if self._look.applies(deletes, read[path] if tracked is None else tracked.file):
                found = self._interest(path)
                if found is not None:
                    yield found

    def _removal(self, file: DataFile, change: Change) -> None:
        tracked = self._interest(file.file_path)
        if tracked is None:
            return
        if self._write.kind is Kind.REWRITE and change.operation == "replace":
            self._conflict(
                Check.FILES_NOT_REMOVED,
                change,
                f"another rewrite replaced {_name(file.file_path)}, which this one replaces, too",
                (file.file_path,),
                "Nothing is lost: run it again and it plans from the files there are now",
            )
            return
        lineage = self._lineage_of(change)
        if lineage is None:
            what = f"{_name(file.file_path)} was replaced, and its writer left no record of where the rows went"
            if tracked.gone:
                self._conflict(Check.FILES_EXIST, change, what, (file.file_path,))
            if tracked.seen:
                self._conflict(Check.NO_REMOVED_ROWS, change, what, (file.file_path,))
            return
        del self._tracked[file.file_path]
        self._has_moved = True
        self._move(tracked, lineage, change)

    def _lineage_of(self, change: Change) -> Lineage | None:
        if change.lineage_path is not None:
            return self._look.lineage(change.lineage_path)
        # Where rows only go, no row of a removed file is anywhere else.
        return Lineage() if change.is_delete else None

    def _move(self, tracked: _Tracked, lineage: Lineage, change: Change) -> None:
        path = tracked.file.file_path
        pieces = list(_pieces_of(path, lineage.outputs))
        rebased = Rows()
        for piece in pieces:
            rebased.add_range(piece.first, piece.first + piece.length)
        changed = lineage.changed.get(path, Rows())
        lost = (tracked.moved & changed) | (tracked.deleted & changed)
        if self._needs_rows:
            lost |= tracked.moved - rebased
        if path in self._whole:
            # A copy that was planned before a row was deleted still has it, and a mark on it.
            doomed = tracked.deleted & rebased
            tracked.taken |= doomed - self._alive(path, doomed)
        gone = self._alive(path, tracked.deleted - rebased - changed - tracked.taken)
        self._gone_already += len(gone)
        replaced = gone if self._replaces else Rows() if self._needs_rows else tracked.moved - rebased - changed
        if replaced and not change.is_delete:
            self._replaced_twice.append(change)
        if lost:
            self._conflict(
                Check.ROW_OWNER,
                change,
                f"{_count(lost)} of {_name(path)} that this {self._write.name} changes {_was(lost)} changed or deleted "
                f"by another writer (position {lost[0]}{_more(lost)})",
                (path,),
            )
        if tracked.seen - rebased:
            self._conflict(
                Check.NO_REMOVED_ROWS,
                change,
                f"{_count(tracked.seen - rebased)} that this transaction read {_was(tracked.seen - rebased)} taken out "
                f"of {_name(path)}",
                (path,),
            )
        self._forget_copies(tracked, tracked.copied_rows - rebased)
        added = {entry.file.file_path: entry.file for entry in change.added}
        for piece in pieces:
            if piece.output in added:
                self._track_piece(tracked, piece, added[piece.output])

    def _alive(self, path: str, rows: Rows) -> Rows:
        """Those of the rows that were there at the base; the others nobody can have replaced since."""
        live = self._look.live_rows(path) if rows else None
        return rows if live is None else rows & live

    def _track_piece(self, tracked: _Tracked, piece: _Piece, output: DataFile) -> None:
        """The part of a file's rows that went into one stretch of another file."""
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
                    _Piece(first - piece.first + piece.at, end - first, mine.output, first - mine.first + mine.at)
                )

    # Rows that were appended and that somebody deleted meanwhile (P23)

    def _against_predicate(self, change: Change) -> None:
        for file in self._write.added:
            rows = self._look.asked_to_go(change, file)
            if not rows:
                continue
            if self._write.on_deleted == "drop":
                self._stale.setdefault(file.file_path, Rows()).update(rows)
                continue
            self._conflict(
                Check.NOT_DELETED,
                change,
                f"{_count(rows)} of this {self._write.name} match what another writer has deleted meanwhile",
                (file.file_path,),
                "Append again if they are wanted all the same, or say on_deleted='keep' or 'drop'",
            )

    # What is looked at

    def _of_interest(self) -> list[str]:
        """In an order that is always the same: what is looked at first is read, and told, first."""
        unread = (path for path in self._look.seen_files() if path not in self._seen_known)
        return list(dict.fromkeys((*self._tracked, *unread)))

    def _is_of_interest(self, path: str) -> bool:
        return path in self._tracked or self._is_unread(path)

    def _is_unread(self, path: str) -> bool:
        """My operation read rows of this file, and which ones is not found out yet."""
        return path not in self._seen_known and path in self._look.seen_files()

    def _interest(self, path: str) -> _Tracked | None:
        """The rows of one file that matter, those that were only read included; they are found when first needed."""
        if path not in self._seen_known:
            self._seen_known.add(path)
            seen = self._look.seen_rows(path)
            if seen is not None:
                file, rows = seen
                self._track(file).seen |= rows
        return self._tracked.get(path)

    def _conflict(self, check: Check, change: Change, detail: str, files: tuple[str, ...], advice: str = "") -> None:
        if check in self._checks:
            self._conflicts.append(
                Conflict(
                    check,
                    detail,
                    change.snapshot_id,
                    change.operation,
                    files,
                    advice or f"Read the table again and repeat the {self._write.name}",
                )
            )

    # Result

    def result(self) -> Rebased:
        write = self._write
        removed: list[DataFile] = []
        marks: list[DataFile] = list(write.removed_deletes)
        positions: dict[str, Rows] = {}
        files: dict[str, DataFile] = {}
        for path, tracked in self._tracked.items():
            if tracked.gone and len(tracked.gone) >= tracked.file.record_count:
                removed.append(tracked.file)
                marks.extend(tracked.marks)
                continue
            self._leave_copied(tracked)
            if tracked.gone and tracked.gone != write.positions.get(path):
                positions[path], files[path] = tracked.gone, tracked.file
        added: list[DataFile] = []
        for file in write.added:
            stale = self._stale.get(file.file_path, Rows())
            if len(stale) < file.record_count or not stale:
                added.append(file)
                if stale:
                    positions[file.file_path], files[file.file_path] = stale, file
        whole = {file.file_path for file in removed}
        mine = {file.file_path for file in added}
        deletes = [file for file in write.deletes if self._still_holds(file, positions, whole, mine)]
        rebased = Rebased(
            tuple(removed),
            positions,
            files,
            tuple(added),
            tuple(deletes),
            removed_deletes=tuple(marks),
            lineage=self._lineage() if self._has_moved else None,
            conflicts=tuple(self._conflicts),
            replaced_twice=tuple(self._replaced_twice),
            dropped=sum(len(rows) for path, rows in self._stale.items() if path not in write.copies),
            gone_already=self._gone_already,
        )
        # What is left must be work to do: an attempt that only takes out what is gone would be an empty snapshot.
        return rebased.keeping(self._dropped | self._needed_again(whole)) if write.unneeded else rebased

    def _needed_again(self, whole: set[str]) -> set[str]:
        """Delete files that applied to nothing at the base, and apply to files that others have brought since.

        A copy is as old as the snapshot that its writer read (P20), which may be older than a delete by key that
        landed in between: without the delete, a row that it took out would be back.
        """
        brought = [entry for path, entry in self._brought.items() if path not in whole]
        unneeded = (file for file in self._write.removed_deletes if file.file_path in self._write.unneeded)
        return {file.file_path for file in unneeded if any(self._reaches(file, each) for each in brought)}

    def _reaches(self, deletes: DataFile, data: Entry) -> bool:
        number = self._write.unneeded[deletes.file_path]
        # By position a delete reaches files of its own age, by key only older ones.
        limit = number + (deletes.content == Content.POSITION_DELETES)
        if data.sequence_number is not None and data.sequence_number >= limit:
            return False
        return self._look.applies(Entry(Status.EXISTING, deletes, sequence_number=number), data.file)

    def _leave_copied(self, tracked: _Tracked) -> None:
        """Rows that I copied, in a file that stays because others' rows are in it, too: they are there already.

        So a position delete always means that a row went or changed, and everybody may take it for that.
        """
        if tracked.copied:
            rows = tracked.copied_rows
            self._forget_copies(tracked, rows)
            tracked.gone -= rows
            tracked.copied = []

    def _lineage(self) -> Lineage:
        outputs: dict[str, tuple[Run, ...]] = {}
        for output in self._write.copies:
            pieces = sorted(
                (piece.at, path, (piece.first, piece.length))
                for path, tracked in self._tracked.items()
                for piece in tracked.copied
                if piece.output == output
            )
            runs: list[Run] = []
            end = 0
            for at, path, (first, length) in pieces:
                if at > end:
                    # Rows whose source is gone: nobody can be looking for them any more.
                    runs.append(Run("", 0, at - end))
                runs.append(Run(path, first, length))
                end = at + length
            if runs:
                outputs[output] = tuple(runs)
        changed = {path: tracked.moved for path, tracked in self._tracked.items() if tracked.moved}
        return Lineage(outputs, changed)

    def _still_holds(self, deletes: DataFile, positions: Mapping[str, Rows], whole: set[str], mine: set[str]) -> bool:
        if deletes.content != Content.POSITION_DELETES:
            return True
        named = named_file(deletes)
        is_there = named in self._tracked or named in mine
        return is_there and named not in positions and named not in whole


def _pieces_of(source: str, outputs: Mapping[str, tuple[Run, ...]]) -> Iterable[_Piece]:
    for output, runs in outputs.items():
        at = 0
        for run in runs:
            if run.source == source:
                yield _Piece(run.first, run.length, output, at)
            at += run.length


def _range(first: int, length: int) -> Rows:
    rows = Rows()
    rows.add_range(first, first + length)
    return rows


def _count(rows: Rows) -> str:
    return "1 row" if len(rows) == 1 else f"{len(rows)} rows"


def _was(rows: Rows) -> str:
    return "was" if len(rows) == 1 else "were"


def _more(rows: Rows) -> str:
    return " …" if len(rows) > 1 else ""


def _name(path: str) -> str:
    """A file's own name; where it lies is in the evidence."""
    return path.rpartition("/")[2]

"""The lake as it was, and the commits that made it so: what reads the recorded order of commits (rule P41)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from frazil.catalog.base import CommitOrder, Head, LakeCatalog, OrderedCommit, PointerMove
from frazil.catalog.order import facts
from frazil.catalog.pointer import version_of
from frazil.commit.group import GROUP_SIZE
from frazil.commit.origins import author_of
from frazil.commit.summaries import commits_of
from frazil.errors import CorruptMetadata, InvalidInput, NoSuchTable, StorageError, Unsupported
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.times import iso, milliseconds
from frazil.model import Ident, LakeCommit, SharedCommit, Snapshot, TableMove
from frazil.table.reads import commits_in

if TYPE_CHECKING:
    from frazil.lake import Lake

_MOVED, _CREATED, _DROPPED, _RENAMED = "commit", "create", "drop", "rename"


# The lake at a time


class PastInstant:
    """Every table as it was at a time: the pointers of then, the metadata of a table when it is needed."""

    def __init__(self, lake: Lake, as_of: dt.datetime | str | int) -> None:
        self._lake = lake
        self._as_of_ms = milliseconds(as_of, "as_of")
        cut = _order_of(lake.catalog, "read the whole lake as of a time").cut(self._as_of_ms)
        self._current = cut.current
        self._recorded = cut.earlier
        self._seen = cut.undone()
        self._heads: dict[Ident, Head] = {}

    @property
    def _when(self) -> str:
        return iso(self._as_of_ms)

    def idents(self) -> list[Ident]:
        """The tables that there were. Without those that another engine has removed since, at an unknown time."""
        return sorted(ident for ident in self._seen if self._location(ident) is not None)

    def head(self, ident: Ident) -> Head:
        """Raises NoSuchTable, and InvalidInput for a version that is gone or cannot be told."""
        if ident not in self._heads:
            self._heads[ident] = self._load(ident)
        return self._heads[ident]

    def _load(self, ident: Ident) -> Head:
        location = self._location(ident)
        if location is None:
            raise NoSuchTable(f"There was no table {ident} at {self._when}")
        head = self._head_at(ident, location)
        self._check_rows(ident, head.metadata)
        return head

    def _location(self, ident: Ident) -> str | None:
        """The version of then; None: there was no table of that name. Raises InvalidInput."""
        seen, recorded = self._seen.get(ident), self._recorded.get(ident)
        if seen == recorded:
            return seen
        if seen is None:
            raise InvalidInput(
                f"It is not known whether there was a table {ident} at {self._when}",
                evidence="Another engine has dropped or renamed it since its last recorded commit, at an unknown time",
                advice="Choose a time at which it is known: see lake.history()",
            )
        return self._placed(ident, seen, recorded)

    def _placed(self, ident: Ident, seen: str, recorded: str | None) -> str | None:
        """Among versions that no recorded commit made, the one of then, by the times in the table's own metadata."""
        metadata = self._head_at(ident, seen).metadata
        log = metadata.raw.get("metadata-log") or ()
        versions = [(int(each["timestamp-ms"]), str(each["metadata-file"])) for each in log]
        versions.append((metadata.last_updated_ms, seen))
        files = [file for _, file in versions]
        if recorded in files:
            versions = versions[files.index(recorded) + 1 :]
        for at, file in reversed(versions):
            if at <= self._as_of_ms:
                return file
        if recorded is None and version_of(files[0]) <= 0:
            # The log has the first version, which is younger.
            return None
        if recorded in files:
            return recorded
        raise self._expired(ident, "The table's log of metadata files does not go back so far")

    def _head_at(self, ident: Ident, location: str) -> Head:
        try:
            return self._lake.catalog.load_at(ident, location)
        except StorageError as error:
            if isinstance(error, CorruptMetadata) or not isinstance(error.__cause__, CorruptMetadata):
                raise
            raise self._expired(ident, error.__cause__.problem) from error

    def _check_rows(self, ident: Ident, metadata: TableMetadata) -> None:
        """Raises InvalidInput if the snapshot of then has expired: its files may be deleted at any time."""
        snapshot_id = metadata.ref_snapshot_id(MAIN)
        if snapshot_id is None or ident not in self._current:
            return
        try:
            now = self._lake.catalog.load(ident).metadata
        except NoSuchTable:
            # Dropped meanwhile, which leaves its files.
            return
        if now.uuid == metadata.uuid and now.snapshot(snapshot_id) is None:
            raise self._expired(ident, f"Its snapshot {snapshot_id} has expired")

    def _expired(self, ident: Ident, evidence: str) -> InvalidInput:
        return InvalidInput(
            f"The version of the table {ident} that was current at {self._when} has expired",
            evidence=evidence,
            advice="Choose a later time; table.history() lists the snapshots that are left",
        )


def _order_of(catalog: LakeCatalog, what: str) -> CommitOrder:
    """Raises Unsupported."""
    if catalog.order is None:
        raise Unsupported(
            f"The catalog {catalog.name} does not record the order of all commits, so that it cannot {what}",
            advice="Read each table by its own history: table.scan(as_of=…), table.history(); or keep the tables in a "
            "catalog on SQLite or Postgres",
        )
    return catalog.order


# The lake's history


def lake_history(catalog: LakeCatalog, limit: int | None) -> list[LakeCommit]:
    """The recorded commits of all tables, oldest first: the newest ``limit`` of them. Raises Unsupported."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise InvalidInput(f"limit must be a number of commits, not {limit!r}")
    found = _order_of(catalog, "list them").newest(limit)
    shared = _shared_commits(catalog, [move for each in found for move in each.moves])
    return [_commit(each, shared) for each in found]


def _commit(commit: OrderedCommit, shared: Mapping[int, tuple[SharedCommit, ...]]) -> LakeCommit:
    moves = [_move(each, shared) for each in commit.moves]
    snapshots = [snapshot for each in commit.moves for snapshot in _snapshots(each)]
    authors = [author_of(each) for each in snapshots]
    ids = {each.commit_id for move in moves for each in move.commits}
    ids |= {facts(each)["commit"] for each in commit.moves if "commit" in facts(each)}
    return LakeCommit(
        committed_at=dt.datetime.fromtimestamp(commit.stamp_ms / 1000, tz=dt.UTC),
        commit_id=_only(ids),
        verb=_verb(commit.moves, {each.verb for each in authors}),
        app=_only({each.app for each in authors}),
        host=_only({each.host for each in authors}),
        tables=_with_renames(moves, commit.moves),
    )


def _verb(moves: Sequence[PointerMove], verbs: set[str | None]) -> str | None:
    if len(moves) > 1:
        return _RENAMED if _is_rename(moves) else "transaction"
    action = _action(moves[0])
    return _only(verbs) or facts(moves[0]).get("verb") or (None if action == _MOVED else action)


def _move(move: PointerMove, shared: Mapping[int, tuple[SharedCommit, ...]]) -> TableMove:
    snapshots = _snapshots(move)
    commits = tuple(commit for each in snapshots for commit in shared.get(each.snapshot_id, ()) or commits_in(each))
    return TableMove(
        table=str(move.ident),
        action=_action(move),
        metadata_location=move.location,
        snapshot_ids=tuple(each.snapshot_id for each in snapshots),
        commits=commits,
    )


def _action(move: PointerMove) -> str:
    if move.previous is None:
        return _CREATED
    return _DROPPED if move.location is None else _MOVED


def _is_rename(moves: Sequence[PointerMove]) -> bool:
    return len(moves) == 2 and {(each.previous, each.location) for each in moves} in (
        {(moves[0].previous, None), (None, moves[0].previous)},
        {(moves[1].previous, None), (None, moves[1].previous)},
    )


def _with_renames(moves: Sequence[TableMove], recorded: Sequence[PointerMove]) -> tuple[TableMove, ...]:
    """A rename as one move of the new name."""
    if not _is_rename(recorded):
        return tuple(moves)
    (old,) = (each for each in moves if each.action == _DROPPED)
    (new,) = (each for each in moves if each.action == _CREATED)
    return (TableMove(new.table, _RENAMED, new.metadata_location, renamed_from=old.table),)


def _snapshots(move: PointerMove) -> list[Snapshot]:
    """The new snapshots, as far as they are recorded: without their manifests and statistics."""
    found: list[Snapshot] = []
    for each in facts(move).get("snapshots", ()):
        match each:
            case [int() as snapshot_id, int() as number, dict() as summary]:
                found.append(Snapshot(snapshot_id, None, number, 0, None, summary))
    return found


def _shared_commits(catalog: LakeCatalog, moves: Sequence[PointerMove]) -> dict[int, tuple[SharedCommit, ...]]:
    """By snapshot id, the commits that share a snapshot, as far as the catalog still has their records."""
    log = catalog.changes
    numbers: dict[str, list[int]] = {}
    for move in moves:
        for each in _snapshots(move):
            if GROUP_SIZE in each.summary:
                numbers.setdefault(str(facts(move).get("uuid")), []).append(each.sequence_number)
    found: dict[int, tuple[SharedCommit, ...]] = {}
    for uuid, of_table in numbers.items() if log is not None else ():
        assert log is not None
        found.update(commits_of(log.find(uuid, min(of_table) - 1, max(of_table))))
    return found


def _only(values: set[Any]) -> Any:
    """The value that all have in common; None: they differ, or it is not known."""
    return values.pop() if len(values) == 1 else None

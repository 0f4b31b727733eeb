"""What happened between the snapshot an operation read and the head it wants to build on.

Three sources say the same, from fast to slow: what this process has seen before, the summaries that a SQL catalog keeps
(one query for all snapshots), and the manifests, which are the truth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from frazil.commit.operations import Base, Kind
from frazil.commit.snapshot_layout import LINEAGE, VERB
from frazil.commit.summaries import Source
from frazil.errors import CorruptMetadata, Unsupported
from frazil.format.manifests import DATA_MANIFEST, read_manifest, read_manifest_list
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage, is_local
from frazil.model import Change, Content, DataFile, Entry, Manifest, Predicate, Snapshot, Status

_REMOTE_THREADS = 16
# Larger ones would push everything else out of the memory for parsed files.
_MOST_REMEMBERED = 4 << 20

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class History:
    """What landed on a branch after a base, oldest first."""

    changes: tuple[Change, ...]
    base_is_ancestor: bool
    """False: the branch no longer leads back to the base (rule P25). The changes are then those newer than it."""
    base_is_lost: bool = False
    """The base has expired, and its files were removed: nobody can say any more what has changed since."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A change in memory, and whether the summaries were asked about it: they alone know its predicate."""

    change: Change
    is_complete: bool


def history(storage: Storage, head: TableMetadata, branch: str, base: Base, summaries: Source) -> History:
    """Every change from ``base`` (without it) to the head of ``branch``.

    ``summaries`` is asked once, and only when a change is not in memory. Raises CorruptMetadata when a manifest cannot
    be read: others may have expired it since the head was read.
    """
    newest = head.head_snapshot(branch)
    if newest is None:
        return History((), base_is_ancestor=base.snapshot_id is None)
    if base.snapshot is not None and not head.has_snapshot(base.snapshot.snapshot_id):
        # It has expired, or was rolled back first. Which of the two, the branch's own snapshots say.
        head = head.with_snapshot(base.snapshot)
    passed, met_base = _walk(head, newest, base)
    if not met_base:
        start = None if base.snapshot_id is None else head.snapshot(base.snapshot_id)
        is_known = start is not None or base.snapshot_id is None
        if is_known and _is_broken(storage, head, passed[-1], base):
            return _over_a_gap(storage, head, start, passed, base, summaries)
    since = [each for each in reversed(passed) if met_base or _is_after(each, base)]
    changes = _changes(storage, head, newest, since, summaries)
    return History(changes, base_is_ancestor=met_base or base.snapshot_id is None)


def change_of(storage: Storage, metadata: TableMetadata, snapshot: Snapshot) -> Change:
    """What a snapshot did, from its manifests. It has no predicate: manifests do not know one."""
    known: _Known | None = storage.parsed.get(_key(metadata, snapshot))
    if known is not None:
        return known.change
    change = _read_change(storage, metadata, snapshot, _own_manifests(snapshot, _manifests(storage, snapshot)))
    _remember(storage, metadata, snapshot, _Known(change, is_complete=False))
    return change


# The walk


def _walk(head: TableMetadata, newest: Snapshot, base: Base) -> tuple[list[Snapshot], bool]:
    """The snapshots from the head back to the base, without it; and whether it was met."""
    passed: list[Snapshot] = []
    for snapshot in head.ancestors(newest.snapshot_id):
        if snapshot.snapshot_id == base.snapshot_id:
            return passed, True
        passed.append(snapshot)
        if not _is_after(snapshot, base) and snapshot.sequence_number:
            # As old as the base, or older: the base cannot come any more. (Before format version 2 all numbers are 0.)
            break
    return passed, False


def _is_after(snapshot: Snapshot, base: Base) -> bool:
    return base.snapshot_id is None or snapshot.sequence_number > base.sequence_number


def _is_broken(storage: Storage, head: TableMetadata, oldest: Snapshot, base: Base) -> bool:
    """Does the way back end where a snapshot has expired, rather than where the table began or the base was left?"""
    if not _is_after(oldest, base):
        return False
    if oldest.parent_snapshot_id is not None:
        return not head.has_snapshot(oldest.parent_snapshot_id)
    # PyIceberg clears the parents of those it keeps. What was not made on an empty table had a parent once.
    manifests = _manifests(storage, oldest)
    return any(each.added_snapshot_id != oldest.snapshot_id or each.existing_files_count for each in manifests)


# A gap: snapshots between the base and the head have expired (rule P18)


def _over_a_gap(
    storage: Storage,
    head: TableMetadata,
    start: Snapshot | None,
    passed: Sequence[Snapshot],
    base: Base,
    summaries: Source,
) -> History:
    """What came of the base up to the oldest snapshot that is still there, then each of the later ones.

    The expired ones count by the difference they made. Where summaries are kept of them, and come to that very
    difference, they tell more; some may be missing, and some may be of other branches or of what was rolled back.
    """
    oldest = passed[-1]
    first, *later = _changes(storage, head, passed[0], tuple(reversed(passed)), summaries)
    told = (*_in_the_gap(base, oldest, summaries), first)
    after = _listed(storage, oldest)
    try:
        before = _listed(storage, start)
        gone = _live(storage, [each for path, each in before.items() if path not in after])
    except CorruptMetadata:
        # Who expired it removed its files, too.
        return History((*_asked_to_go(told[:-1], ()), first, *later), base_is_ancestor=False, base_is_lost=True)
    net = _difference(oldest, gone, _live(storage, [each for path, each in after.items() if path not in before]))
    if _all_together(told) != _all_together((net,)):
        told = (*_asked_to_go(told, net.deletes), net)
    return History((*told, *later), base_is_ancestor=True)


def _in_the_gap(base: Base, oldest: Snapshot, summaries: Source) -> list[Change]:
    kept = summaries(base.sequence_number, oldest.sequence_number - 1)
    found = [
        # A predicate alone, of a change with too many files: its place among the others is not known.
        each if isinstance(each, Change) else Change(key, oldest.sequence_number - 1, "delete", predicate=each)
        for key, each in kept.items()
    ]
    inside = (each for each in found if base.sequence_number < each.sequence_number < oldest.sequence_number)
    return sorted(inside, key=lambda change: change.sequence_number)


def _all_together(changes: Iterable[Change]) -> tuple[frozenset[str], frozenset[str]]:
    """The files that come and those that go, by path, when the changes are done one after the other."""
    came: set[str] = set()
    went: set[str] = set()
    for change in changes:
        new = {entry.file.file_path for entry in (*change.added, *change.deletes)}
        old = {file.file_path for file in (*change.removed, *change.removed_deletes)}
        went |= old - came
        came = (came - old) | new
    return frozenset(came), frozenset(went)


def _asked_to_go(changes: Iterable[Change], live: Iterable[Entry]) -> Iterator[Change]:
    """What the changes were asked to take out of the table, without their files: a difference has no predicates (P23).

    Deletes by key that say nothing else are kept while they are ``live``: only then can their keys be read for sure.
    """
    readable = {entry.file.file_path for entry in live if entry.file.content == Content.EQUALITY_DELETES}
    for change in changes:
        by_key = tuple(each for each in change.deletes if change.is_delete and each.file.file_path in readable)
        if change.predicate is not None or by_key:
            yield replace(change, added=(), removed=(), deletes=by_key, removed_deletes=(), lineage_path=None)


# Changes, by the fastest source that knows them


def _changes(
    storage: Storage, head: TableMetadata, newest: Snapshot, snapshots: Sequence[Snapshot], summaries: Source
) -> tuple[Change, ...]:
    found: dict[int, Change] = {}
    for snapshot in snapshots:
        known: _Known | None = storage.parsed.get(_key(head, snapshot))
        if known is not None and known.is_complete:
            found[snapshot.snapshot_id] = known.change
    missing = [each for each in snapshots if each.snapshot_id not in found]
    if missing:
        for snapshot, change in _found_out(storage, head, newest, missing, summaries):
            _remember(storage, head, snapshot, _Known(change, is_complete=True))
            found[snapshot.snapshot_id] = change
    return tuple(found[each.snapshot_id] for each in snapshots)


def _found_out(
    storage: Storage, head: TableMetadata, newest: Snapshot, missing: Sequence[Snapshot], summaries: Source
) -> Iterator[tuple[Snapshot, Change]]:
    numbers = [each.sequence_number for each in missing]
    kept = summaries(min(numbers) - 1, max(numbers))
    unread: list[Snapshot] = []
    for snapshot in missing:
        summary = kept.get(snapshot.snapshot_id)
        if isinstance(summary, Change) and summary.sequence_number == snapshot.sequence_number:
            yield snapshot, summary
        else:
            unread.append(snapshot)
    if not unread:
        return
    shortcut = _Shortcut(storage, newest)

    def read(snapshot: Snapshot) -> Change:
        own = shortcut.manifests(snapshot)
        if own is None:
            return change_of(storage, head, snapshot)
        return _read_change(storage, head, snapshot, own)

    for snapshot, change in zip(unread, _side_by_side(head.location, read, unread), strict=True):
        summary = kept.get(snapshot.snapshot_id)
        yield snapshot, replace(change, predicate=summary) if isinstance(summary, Predicate) else change


class _Shortcut:
    """Finds what appends added in the newest manifest list, which saves reading a list for each of them."""

    def __init__(self, storage: Storage, newest: Snapshot) -> None:
        self._by_snapshot: dict[int, list[Manifest]] = defaultdict(list)
        for manifest in _manifests(storage, newest):
            self._by_snapshot[manifest.added_snapshot_id].append(manifest)

    def manifests(self, snapshot: Snapshot) -> list[Manifest] | None:
        """All that the snapshot added; None: some of it may be gone from the newest list, or there is more to it."""
        summary = snapshot.summary
        if snapshot.operation != "append" or any(_count(summary, key) for key in _NOT_IN_AN_APPEND):
            return None
        found = self._by_snapshot.get(snapshot.snapshot_id, [])
        added = sum(each.added_files_count for each in found if each.content == DATA_MANIFEST)
        return found if added and added == _count(summary, "added-data-files") else None


_NOT_IN_AN_APPEND = ("deleted-data-files", "added-delete-files", "removed-delete-files")


def _side_by_side(location: str, work: Callable[[T], R], items: Sequence[T]) -> Iterable[R]:
    # Decoding holds Python's lock: threads only help where reading waits for a network.
    if len(items) <= 1 or is_local(location):
        return map(work, items)
    with ThreadPoolExecutor(min(_REMOTE_THREADS, len(items)), thread_name_prefix="frazil-history") as pool:
        return list(pool.map(work, items))


# Manifests


def _read_change(
    storage: Storage, metadata: TableMetadata, snapshot: Snapshot, manifests: Iterable[Manifest]
) -> Change:
    files: dict[tuple[Status, bool], list[Entry]] = defaultdict(list)
    for manifest in manifests:
        for entry in read_manifest(storage, manifest, live_only=False):
            if entry.snapshot_id == snapshot.snapshot_id:
                files[entry.status, manifest.content == DATA_MANIFEST].append(entry)
    change = Change(
        snapshot_id=snapshot.snapshot_id,
        sequence_number=snapshot.sequence_number,
        operation=snapshot.operation,
        added=tuple(files[Status.ADDED, True]),
        removed=_files(files[Status.DELETED, True]),
        deletes=tuple(files[Status.ADDED, False]),
        removed_deletes=_files(files[Status.DELETED, False]),
        is_delete=_only_deletes(snapshot, files[Status.ADDED, True]),
        lineage_path=snapshot.summary.get(LINEAGE),
    )
    return change if _agrees(change, snapshot) else _compared_with_parent(storage, metadata, snapshot, change)


def _only_deletes(snapshot: Snapshot, added: Sequence[Entry]) -> bool:
    # A delete of ours may copy rows that stay into new files; another writer's is known by adding none.
    return snapshot.summary.get(VERB) == Kind.DELETE or (snapshot.operation == "delete" and not added)


def _agrees(change: Change, snapshot: Snapshot) -> bool:
    """Do the manifests tell as many files as the snapshot's writer counted?"""
    counts = (
        ("added-data-files", change.added),
        ("deleted-data-files", change.removed),
        ("added-delete-files", change.deletes),
        ("removed-delete-files", change.removed_deletes),
    )
    return all(_count(snapshot.summary, key) in (None, len(files)) for key, files in counts)


def _compared_with_parent(storage: Storage, metadata: TableMetadata, snapshot: Snapshot, change: Change) -> Change:
    """A writer may drop a manifest from the list without saying so in another: the live files say what is gone."""
    parent = None
    if snapshot.parent_snapshot_id is not None:
        parent = metadata.snapshot(snapshot.parent_snapshot_id)
        if parent is None:
            return change
    net = _net(storage, parent, snapshot)
    return replace(net, operation=change.operation, is_delete=change.is_delete, lineage_path=change.lineage_path)


def _net(storage: Storage, base: Snapshot | None, head: Snapshot) -> Change:
    """The difference between the live files of two snapshots, as if one snapshot had made it."""
    before, after = _listed(storage, base), _listed(storage, head)
    gone = _live(storage, [each for path, each in before.items() if path not in after])
    new = _live(storage, [each for path, each in after.items() if path not in before])
    return _difference(head, gone, new)


def _difference(head: Snapshot, gone: Mapping[str, Entry], new: Mapping[str, Entry]) -> Change:
    """From the live files of manifests that one of two snapshots names.

    A manifest never changes, so the files of one that both name are live in both.
    """
    added = [replace(entry, status=Status.ADDED) for path, entry in new.items() if path not in gone]
    removed = [entry for path, entry in gone.items() if path not in new]
    return Change(
        snapshot_id=head.snapshot_id,
        sequence_number=head.sequence_number,
        operation="overwrite",
        added=tuple(each for each in added if not each.file.content),
        removed=_files(each for each in removed if not each.file.content),
        deletes=tuple(each for each in added if each.file.content),
        removed_deletes=_files(each for each in removed if each.file.content),
    )


def _live(storage: Storage, manifests: Sequence[Manifest]) -> dict[str, Entry]:
    location = manifests[0].manifest_path if manifests else ""
    found = _side_by_side(location, lambda each: read_manifest(storage, each), manifests)
    return {entry.file.file_path: entry for entries in found for entry in entries}


def _listed(storage: Storage, snapshot: Snapshot | None) -> dict[str, Manifest]:
    return {} if snapshot is None else {each.manifest_path: each for each in _manifests(storage, snapshot)}


def _manifests(storage: Storage, snapshot: Snapshot) -> tuple[Manifest, ...]:
    if snapshot.manifest_list is None:
        raise Unsupported(
            f"The snapshot {snapshot.snapshot_id} keeps its manifests in the metadata file, as format v1 once did",
            advice="Rewrite the table's manifests with another engine, or write one new commit to it",
        )
    return read_manifest_list(storage, snapshot.manifest_list)


def _own_manifests(snapshot: Snapshot, manifests: Iterable[Manifest]) -> Iterator[Manifest]:
    return (each for each in manifests if each.added_snapshot_id == snapshot.snapshot_id)


def _files(entries: Iterable[Entry]) -> tuple[DataFile, ...]:
    return tuple(entry.file for entry in entries)


def _count(summary: Mapping[str, str], key: str) -> int | None:
    text = str(summary.get(key, ""))
    return int(text) if text.isdigit() else None


# Memory


def _key(metadata: TableMetadata, snapshot: Snapshot) -> str:
    # With the list's name, which no two attempts share: the attempts of one commit share their snapshot id.
    return f"change {metadata.uuid} {snapshot.snapshot_id} {snapshot.manifest_list}"


def _remember(storage: Storage, metadata: TableMetadata, snapshot: Snapshot, known: _Known) -> None:
    size = _size(known.change)
    if size <= _MOST_REMEMBERED:
        storage.parsed.put(_key(metadata, snapshot), known, size)


def _size(change: Change) -> int:
    """About how many bytes of memory this takes."""
    entries = (*change.added, *change.deletes)
    files = (*(entry.file for entry in entries), *change.removed, *change.removed_deletes)
    return 1_000 + sum(1_000 + 100 * (len(each.value_counts) + len(each.lower_bounds)) for each in files)

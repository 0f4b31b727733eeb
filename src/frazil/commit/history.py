"""The changes between an operation's base and the head that its attempt builds on.

There are three equivalent sources, fastest first: this process's cache, the summaries that a SQL catalog keeps (one
query for all snapshots), and the manifests, which are authoritative.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from frazil.commit.operations import Base, Kind
from frazil.commit.snapshot_layout import LINEAGE, VERB, only_marks
from frazil.commit.summaries import Source
from frazil.errors import CorruptMetadata, Unsupported
from frazil.format.manifests import DATA_MANIFEST, read_manifest, read_manifest_list
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage, is_local
from frazil.model import Change, Content, DataFile, Entry, Manifest, Predicate, Snapshot, Status

_REMOTE_THREADS = 16
# Larger ones would evict everything else from the cache of parsed files.
_MOST_REMEMBERED = 4 << 20

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class History:
    """The changes that landed on a branch after a base, oldest first."""

    changes: tuple[Change, ...]
    base_is_ancestor: bool
    """False: the base is no longer in the branch's history (rule P25). ``changes`` are then those newer than it."""
    base_is_lost: bool = False
    """The base has expired and its files were removed, so the changes since cannot be determined."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A cached change, and whether the summaries were queried for it: only they contain its predicate."""

    change: Change
    is_complete: bool


def history(storage: Storage, head: TableMetadata, branch: str, base: Base, summaries: Source) -> History:
    """Every change from ``base`` (without it) to the head of ``branch``.

    ``summaries`` is queried once, and only if a change is not cached. Raises CorruptMetadata if a manifest cannot be
    read: it may have expired since the head was read.
    """
    newest = head.head_snapshot(branch)
    if newest is None:
        return History((), base_is_ancestor=base.snapshot_id is None)
    if base.snapshot is not None and not head.has_snapshot(base.snapshot.snapshot_id):
        # The base has expired, perhaps after a rollback. The branch's own snapshots show which.
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
    """The change that a snapshot made, from its manifests. It has no predicate: manifests do not contain one."""
    known: _Known | None = storage.parsed.get(_key(metadata, snapshot))
    if known is not None:
        return known.change
    change = _read_change(storage, metadata, snapshot, _own_manifests(snapshot, _manifests(storage, snapshot)))
    _remember(storage, metadata, snapshot, _Known(change, is_complete=False))
    return change


# The walk


def _walk(head: TableMetadata, newest: Snapshot, base: Base) -> tuple[list[Snapshot], bool]:
    """The snapshots from the head back to the base, without the base, and whether the base was reached."""
    passed: list[Snapshot] = []
    for snapshot in head.ancestors(newest.snapshot_id):
        if snapshot.snapshot_id == base.snapshot_id:
            return passed, True
        passed.append(snapshot)
        if not _is_after(snapshot, base) and snapshot.sequence_number:
            # As old as the base, or older: the base cannot follow. (In format version 1 all numbers are 0.)
            break
    return passed, False


def _is_after(snapshot: Snapshot, base: Base) -> bool:
    return base.snapshot_id is None or snapshot.sequence_number > base.sequence_number


def _is_broken(storage: Storage, head: TableMetadata, oldest: Snapshot, base: Base) -> bool:
    """Whether the walk ended at an expired snapshot, rather than at the table's first one or before the base."""
    if not _is_after(oldest, base):
        return False
    if oldest.parent_snapshot_id is not None:
        return not head.has_snapshot(oldest.parent_snapshot_id)
    # PyIceberg clears the parent ids of snapshots whose parents expire. A snapshot with older files had a parent.
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
    """The changes from the base to the oldest kept snapshot, then each later change.

    The expired snapshots are replaced by the difference between the two. Their summaries are more precise and are used
    if they add up to exactly that difference: some may be missing, belong to other branches, or were rolled back.
    """
    oldest = passed[-1]
    first, *later = _changes(storage, head, passed[0], tuple(reversed(passed)), summaries)
    summarized = (*_in_the_gap(base, oldest, summaries), first)
    after = _listed(storage, oldest)
    try:
        before = _listed(storage, start)
        gone = _live(storage, [each for path, each in before.items() if path not in after])
    except CorruptMetadata:
        # Its files were removed when it expired.
        requests = _delete_requests(summarized[:-1], ())
        return History((*requests, first, *later), base_is_ancestor=False, base_is_lost=True)
    net = _difference(oldest, gone, _live(storage, [each for path, each in after.items() if path not in before]))
    if _combined(summarized) != _combined((net,)):
        summarized = (*_delete_requests(summarized, net.deletes), net)
    return History((*summarized, *later), base_is_ancestor=True)


def _in_the_gap(base: Base, oldest: Snapshot, summaries: Source) -> list[Change]:
    kept = summaries(base.sequence_number, oldest.sequence_number - 1)
    found = [
        # Only the predicate of a change with too many files: its position among the changes is not known.
        each if isinstance(each, Change) else Change(key, oldest.sequence_number - 1, "delete", predicate=each)
        for key, each in kept.items()
    ]
    inside = (each for each in found if base.sequence_number < each.sequence_number < oldest.sequence_number)
    return sorted(inside, key=lambda change: change.sequence_number)


def _combined(changes: Iterable[Change]) -> tuple[frozenset[str], frozenset[str]]:
    """The paths of the files added and removed by all changes together, in order."""
    added: set[str] = set()
    removed: set[str] = set()
    for change in changes:
        new = {entry.file.file_path for entry in (*change.added, *change.deletes)}
        old = {file.file_path for file in (*change.removed, *change.removed_deletes)}
        removed |= old - added
        added = (added - old) | new
    return frozenset(added), frozenset(removed)


def _delete_requests(changes: Iterable[Change], live: Iterable[Entry]) -> Iterator[Change]:
    """The deletes that the changes requested, without their files: a difference has no predicates (P23).

    Equality deletes without a predicate are kept if they are ``live``: only then are their keys certain to be readable.
    """
    readable = {entry.file.file_path for entry in live if entry.file.content == Content.EQUALITY_DELETES}
    for change in changes:
        by_key = tuple(each for each in change.deletes if change.is_delete and each.file.file_path in readable)
        if change.predicate is not None or by_key:
            yield replace(change, added=(), removed=(), deletes=by_key, removed_deletes=(), lineage_path=None)


# Changes, from the fastest source that has them


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
        for snapshot, change in _loaded(storage, head, newest, missing, summaries):
            _remember(storage, head, snapshot, _Known(change, is_complete=True))
            found[snapshot.snapshot_id] = change
    return tuple(found[each.snapshot_id] for each in snapshots)


def _loaded(
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

    for snapshot, change in zip(unread, _in_parallel(head.location, read, unread), strict=True):
        summary = kept.get(snapshot.snapshot_id)
        yield snapshot, replace(change, predicate=summary) if isinstance(summary, Predicate) else change


class _Shortcut:
    """Finds the manifests of appends in the newest manifest list, so that each snapshot's own list is not read."""

    def __init__(self, storage: Storage, newest: Snapshot) -> None:
        self._by_snapshot: dict[int, list[Manifest]] = defaultdict(list)
        for manifest in _manifests(storage, newest):
            self._by_snapshot[manifest.added_snapshot_id].append(manifest)

    def manifests(self, snapshot: Snapshot) -> list[Manifest] | None:
        """All manifests that the snapshot added; None: it is not an append, or some may have left the newest list."""
        summary = snapshot.summary
        if snapshot.operation != "append" or any(_count(summary, key) for key in _NOT_IN_AN_APPEND):
            return None
        found = self._by_snapshot.get(snapshot.snapshot_id, [])
        added = sum(each.added_files_count for each in found if each.content == DATA_MANIFEST)
        return found if added and added == _count(summary, "added-data-files") else None


_NOT_IN_AN_APPEND = ("deleted-data-files", "added-delete-files", "removed-delete-files")


def _in_parallel(location: str, work: Callable[[T], R], items: Sequence[T]) -> Iterable[R]:
    # Decoding holds the GIL: threads only help where reading waits for a network.
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
        is_delete=_only_deletes(snapshot, files[Status.ADDED, True], files[Status.ADDED, False]),
        lineage_path=snapshot.summary.get(LINEAGE),
    )
    return change if _agrees(change, snapshot) else _compared_with_parent(storage, metadata, snapshot, change)


def _only_deletes(snapshot: Snapshot, added: Sequence[Entry], deletes: Sequence[Entry]) -> bool:
    # Frazil's deletes may copy remaining rows into new files; a foreign delete is recognized by adding no files.
    if snapshot.operation == "replace":
        return only_marks(added, [entry.file for entry in deletes])
    return snapshot.summary.get(VERB) == Kind.DELETE or (snapshot.operation == "delete" and not added)


def _agrees(change: Change, snapshot: Snapshot) -> bool:
    """Whether the manifests contain as many files as the snapshot's summary counts."""
    counts = (
        ("added-data-files", change.added),
        ("deleted-data-files", change.removed),
        ("added-delete-files", change.deletes),
        ("removed-delete-files", change.removed_deletes),
    )
    return all(_count(snapshot.summary, key) in (None, len(files)) for key, files in counts)


def _compared_with_parent(storage: Storage, metadata: TableMetadata, snapshot: Snapshot, change: Change) -> Change:
    """A foreign writer may drop a manifest without DELETED entries: only the live files show the change."""
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
    """The change between two snapshots, from the live files of the manifests that only one of them lists.

    A manifest never changes, so the files of a manifest in both lists are live in both.
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
    found = _in_parallel(location, lambda each: read_manifest(storage, each), manifests)
    return {entry.file.file_path: entry for entries in found for entry in entries}


def _listed(storage: Storage, snapshot: Snapshot | None) -> dict[str, Manifest]:
    return {} if snapshot is None else {each.manifest_path: each for each in _manifests(storage, snapshot)}


def _manifests(storage: Storage, snapshot: Snapshot) -> tuple[Manifest, ...]:
    if snapshot.manifest_list is None:
        raise Unsupported(
            f"The snapshot {snapshot.snapshot_id} has no manifest list, as some writers of format version 1 do",
            advice="Rewrite the table's manifests with another engine, or make a new commit to the table",
        )
    return read_manifest_list(storage, snapshot.manifest_list)


def _own_manifests(snapshot: Snapshot, manifests: Iterable[Manifest]) -> Iterator[Manifest]:
    return (each for each in manifests if each.added_snapshot_id == snapshot.snapshot_id)


def _files(entries: Iterable[Entry]) -> tuple[DataFile, ...]:
    return tuple(entry.file for entry in entries)


def _count(summary: Mapping[str, str], key: str) -> int | None:
    text = str(summary.get(key, ""))
    return int(text) if text.isdigit() else None


# Cache


def _key(metadata: TableMetadata, snapshot: Snapshot) -> str:
    # With the path of the manifest list, which is unique to an attempt: attempts of one commit share a snapshot id.
    return f"change {metadata.uuid} {snapshot.snapshot_id} {snapshot.manifest_list}"


def _remember(storage: Storage, metadata: TableMetadata, snapshot: Snapshot, known: _Known) -> None:
    size = _size(known.change)
    if size <= _MOST_REMEMBERED:
        storage.parsed.put(_key(metadata, snapshot), known, size)


def _size(change: Change) -> int:
    """About how many bytes of memory the change takes."""
    entries = (*change.added, *change.deletes)
    files = (*(entry.file for entry in entries), *change.removed, *change.removed_deletes)
    return 1_000 + sum(1_000 + 100 * (len(each.value_counts) + len(each.lower_bounds)) for each in files)

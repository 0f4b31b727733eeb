"""Group commit: the leader commits the queued operations of other writers together with its own.

    own operation ──┐                      ┌ one snapshot for all that only append, one for each of the others
    queued commits ─┴─▶ check one by one ──┤
                                           └ back to its writer: needs file access, conflicts, unknown format

One metadata file, one swap; all outcomes in the swap's own transaction (rules P1 to P4, P17).
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from frazil.catalog.base import CommitRecord, QueueEntry, QueueUpdate
from frazil.catalog.records import ids_in, is_in_properties
from frazil.commit import delegation, origins
from frazil.commit.build import Owners, Scope, add_changes, add_write, commit_in, owning, parent_of, put_snapshot
from frazil.commit.checking import checked_and_rebased, looks_back
from frazil.commit.delegation import DelegatedCommit
from frazil.commit.history import History
from frazil.commit.inspection import FullInspector, StatsOnlyInspector
from frazil.commit.manifests import OperationManifests
from frazil.commit.operations import Identity, Kind, Operation, Write
from frazil.commit.rebase import unchanged
from frazil.commit.snapshot_layout import SnapshotPosition, may_be_cleaned_up
from frazil.commit.stages import Built, GroupResult, RebasedStep, TicketOutcome
from frazil.commit.unit import TableUnit, WriteStep
from frazil.errors import CatalogUnavailable, CorruptMetadata, InvalidInput, StorageError
from frazil.format.manifests import read_manifest_list
from frazil.format.metadata import MAIN, TableMetadata
from frazil.model import Snapshot

GROUP_SIZE, GROUP_DIGEST = "frazil.group-size", "frazil.group-digest"
"""Keys of a snapshot's summary: how many commits share it, and a digest of their ids."""
MOST_TICKETS = 500
MOST_BYTES = 8 << 20
MOST_TRIES = 2
"""A queued commit that was in so many failed groups may have caused the failures (rule P4)."""
_OLD_MS = 1_000
"""A queued commit that has waited as long was in a failed group."""
_FAR_BACK = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class GroupMembers:
    """The queued commits that a leader found after it had read the head (rule P2)."""

    entries: tuple[QueueEntry, ...]
    is_first_attempt: bool
    """No attempt was lost yet, so nothing indicates that one of the commit ids has landed already."""


def add_members(
    unit: TableUnit, own: WriteStep | None, members: GroupMembers, onto: Built, scope: Scope, identity: Identity
) -> Built:
    """The members' operations on top of what is built. ``own``: the leader's write, to share a snapshot with them."""
    return _Assembly(unit, own, members, onto, scope, identity).run()


def shared_write(unit: TableUnit, scope: Scope) -> WriteStep | None:
    """The leader's only write, if rows of other writers may be added to its snapshot."""
    delegated = delegation.delegable(unit.operations)
    if delegated is None or delegated.write is None or not delegated.write.may_share_a_snapshot:
        return None
    if scope.identity.given and not scope.catalog.capabilities.records_commit_ids:
        # A commit id that the caller chose is found again only by the summary, so it needs a snapshot of its own.
        return None
    return unit.writes[0]


def queue_update_of(built: Built, own: str | None) -> QueueUpdate | None:
    """What the swap changes in the queue. ``own``: the ticket of the leader, if it is queued as well."""
    group = built.group
    if group is None and own is None:
        return None
    outcomes = dict(group.outcomes) if group is not None else {}
    size = len(outcomes) + 1
    if own is not None:
        # Read only by a writer that repeats the call; the guard on it keeps the operation from landing twice.
        outcomes[own] = TicketOutcome(built.snapshot_id, built.sequence_number, shared=built.is_shared)
    committed = {key: replace(each, group_size=size).encode() for key, each in outcomes.items()}
    if group is None:
        return QueueUpdate(committed)
    return QueueUpdate(committed, group.returned, group.records, group.to_notify)


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    """A queued commit that is committed with the group."""

    entry: QueueEntry
    commit: DelegatedCommit
    identity: Identity

    @property
    def key(self) -> str:
        return self.entry.ticket.key

    @property
    def write(self) -> Write | None:
        return self.commit.write


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Rows of a shared snapshot; without a member they are the leader's."""

    write: Write
    identity: Identity
    member: _Member | None = None


class _Returned(Exception):
    """The queued commit goes back to its writer, which finds out more, or reports what conflicts (rule P4)."""


class _Assembly:
    """Puts one group together, for one attempt."""

    def __init__(
        self,
        unit: TableUnit,
        own: WriteStep | None,
        members: GroupMembers,
        onto: Built,
        scope: Scope,
        identity: Identity,
    ) -> None:
        self._ident = unit.ident
        self._own = own
        self._built = onto
        self._scope = scope
        self._identity = identity
        self._is_first_attempt = members.is_first_attempt
        self._entries = list(_bounded(members.entries))
        self._returned: list[str] = []
        self._outcomes: dict[str, TicketOutcome] = {}
        self._records: list[CommitRecord] = []
        self._ids_in_table: frozenset[str] | None = None
        """Looked up when the first member has a commit id of its own."""
        self._merged: set[str] = set()
        """Manifests that members replace by merged ones."""
        self._unaffected: set[Hashable] = set()
        """Kinds of writes for which nothing that landed can matter."""
        self._rebased: dict[tuple[int, int | None], int] = {}
        """(snapshot, base) → how many snapshots came in between. Many members have the same base."""

    def run(self) -> Built:
        known = self._known_ids()
        if self._own is None:
            self._built = replace(self._built, concurrent=(*self._built.concurrent, *self._built.changes))
        else:
            self._merged = self._own.write.parts
        members = [member for each in self._entries if (member := self._member(each, known)) is not None]
        members = [member for member in members if self._change(member)]
        self._add_together([each for each in members if self._shares(each)])
        for member in members:
            if member.write is None:
                self._landed(member, None, is_shared=False)
            elif not self._shares(member):
                self._add_alone(member, member.write)
        return replace(self._built, group=self._result())

    def _result(self) -> GroupResult:
        tickets = {each.ticket.key: each.ticket for each in self._entries}
        concerned = (*self._outcomes, *self._returned)
        addresses = ((each.notify_address, each.key) for each in (tickets[key] for key in concerned))
        to_notify = tuple(pair for pair in addresses if pair[0])
        return GroupResult(self._outcomes, tuple(self._returned), tuple(self._records), to_notify)

    # Which of the queued commits are members

    def _member(self, entry: QueueEntry, known: set[str]) -> _Member | None:
        """None: the commit goes back to its writer."""
        try:
            return self._checked_member(entry, known)
        except (CatalogUnavailable, StorageError, CorruptMetadata):
            # The catalog or the storage failed, not this commit.
            raise
        except Exception:  # noqa: BLE001 - whatever it is: one bad ticket must not stop the whole group (rule P4)
            self._give_back(entry)
            return None

    def _checked_member(self, entry: QueueEntry, known: set[str]) -> _Member:
        commit, identity = delegation.decode(entry.ticket)
        if entry.tries >= MOST_TRIES or identity.commit_id in known:
            raise _Returned
        if identity.given and self._has_landed(identity.commit_id, self._built.head.metadata):
            raise _Returned
        member = _Member(entry, commit, identity)
        if commit.write is not None:
            self._check_write(member, commit.write)
        known.add(identity.commit_id)
        return member

    def _has_landed(self, commit_id: str, head: TableMetadata) -> bool:
        """Whether an earlier call with this id has landed since its writer looked: a swap may arrive late (rule P9)."""
        if self._ids_in_table is None:
            self._ids_in_table = ids_in(head)
        return commit_id in self._ids_in_table or is_in_properties(head, commit_id)

    def _check_write(self, member: _Member, write: Write) -> None:
        properties, now = self._built.metadata.properties, self._built.head.now_ms
        if not write.only_adds or not _knows_base(write, self._built.head.metadata):
            raise _Returned
        if write.staged_since_ms is not None and may_be_cleaned_up(write.staged_since_ms, now, properties):
            raise _Returned
        # A write with a snapshot of its own is checked when it is added, also against the other members.
        if self._shares(member):
            self._check_unchanged(write)
        if write.merges:
            self._take_parts(write)

    def _check_unchanged(self, write: Write) -> None:
        """Of writes that differ only in their files, one is checked for all, if nothing that landed can matter."""
        alike = _alike(write)
        if alike in self._unaffected:
            return
        if not is_unchanged(self._delegated(write), self._built, self._scope):
            raise _Returned
        if not looks_back(write, self._built):
            self._unaffected.add(alike)

    def _take_parts(self, write: Write) -> None:
        """The manifests to merge must be there, and no other member may merge them."""
        parts = write.parts
        parent = parent_of(self._ident, self._built.metadata, write.branch)
        listed = _listed(self._scope, parent)
        if parts & self._merged or not parts <= listed:
            raise _Returned
        self._merged |= parts

    def _change(self, member: _Member) -> bool:
        """Add the member's changes of properties, with its rows or without any."""
        if member.commit.changes:
            try:
                found = add_changes(member.commit.changes, self._built)
            except InvalidInput:
                found = None
            if not isinstance(found, Built):
                self._give_back(member.entry)
                return False
            self._built = found
        return True

    def _delegated(self, *operations: Operation) -> TableUnit:
        return TableUnit.of(self._ident, operations, self._scope.storage, self._scope.runtime, StatsOnlyInspector)

    def _give_back(self, entry: QueueEntry) -> None:
        self._returned.append(entry.ticket.key)

    def _known_ids(self) -> set[str]:
        """Ids that are recorded already: one of these in the group would undo the whole swap."""
        found = {self._identity.commit_id}
        for each in () if self._is_first_attempt else self._entries:
            try:
                identity = delegation.decode(each.ticket)[1]
            except delegation.UnreadableTicket:
                continue
            head = self._built.head.metadata
            if identity.given and self._scope.catalog.find_commit(head, identity.commit_id) is not None:
                found.add(identity.commit_id)
        return found

    def _shares(self, member: _Member) -> bool:
        if member.identity.given and not self._scope.catalog.capabilities.records_commit_ids:
            # Where ids are kept in the table itself, each needs a summary of its own.
            return False
        return member.write is not None and member.write.may_share_a_snapshot

    # Building

    def _add_together(self, members: Sequence[_Member]) -> None:
        parts = [] if self._own is None else [_Part(_with_bundles(self._own), self._identity)]
        parts += [_Part(each.write, each.identity, each) for each in members if each.write is not None]
        by_branch: dict[str, list[_Part]] = {}
        for part in parts:
            by_branch.setdefault(part.write.branch, []).append(part)
        for branch, group in by_branch.items():
            self._add_shared_snapshot(branch, self._own if group[0].member is None else None, group)

    def _add_shared_snapshot(self, branch: str, own: WriteStep | None, parts: Sequence[_Part]) -> None:
        scope, metadata = self._scope, self._built.metadata
        rows = [part for part in parts if part.write.adds_rows]
        step = self._shared_step(branch, own, parts, Kind.APPEND if rows else Kind.REWRITE)
        parent = parent_of(self._ident, metadata, branch)
        position = SnapshotPosition(
            step.snapshot_id, metadata.last_sequence_number + 1, 0, scope.attempt, merges_later=True
        )
        # The commits that the snapshot belongs to; a merge of manifests beside rows is not one of them.
        owners = rows or parts
        is_shared = len(owners) > 1
        ready = RebasedStep(step, History((), base_is_ancestor=True), unchanged(step.write))
        try:
            built, _ = put_snapshot(ready, self._built, parent, position, scope, _owners(owners))
        finally:
            scope.files.take_over(step)
        scope.files.take_over_unused(step)
        built = replace(built, concurrent=(*built.concurrent, built.changes[-1]))
        if own is not None:
            built = replace(owning(built, position), is_shared=is_shared).counting_rows(own.write)
            own.manifests.keep_rows()
        self._built = built
        for part in parts:
            if part.member is not None:
                self._landed(part.member, position.snapshot_id, is_shared=is_shared)

    def _shared_step(self, branch: str, own: WriteStep | None, parts: Sequence[_Part], kind: Kind) -> WriteStep:
        scope = self._scope
        write = Write(
            kind,
            self._built.metadata.uuid,
            branch=branch,
            added=tuple(file for part in parts for file in part.write.added),
            bundles=tuple(bundle for part in parts for bundle in part.write.bundles),
            merges=tuple(merge for part in parts for merge in part.write.merges),
        )
        return WriteStep(
            write,
            own.snapshot_id if own is not None else scope.runtime.new_snapshot_id(),
            OperationManifests(write, scope.storage, scope.runtime),
            FullInspector(scope.storage, write),
        )

    def _add_alone(self, member: _Member, write: Write) -> None:
        unit = self._delegated(write)
        (step,) = unit.writes
        try:
            found = add_write(unit, step, self._built, self._scope, member=member.identity)
        finally:
            self._scope.files.take_over(step)
        if not isinstance(found, Built):
            self._give_back(member.entry)
            return
        self._scope.files.take_over_unused(step)
        self._built = replace(found, concurrent=(*found.concurrent, found.changes[-1]))
        self._landed(member, step.snapshot_id, is_shared=False)

    def _landed(self, member: _Member, snapshot_id: int | None, *, is_shared: bool) -> None:
        metadata, write, index = self._built.metadata, member.write, len(self._outcomes) + 1
        number = metadata.last_sequence_number
        rebased = 0 if snapshot_id is None or write is None else self._rebased_over(metadata, snapshot_id, write)
        seen = snapshot_id if snapshot_id is not None else metadata.ref_snapshot_id(MAIN)
        self._outcomes[member.key] = TicketOutcome(seen, number, index, is_shared, rebased)
        if member.identity.given and self._scope.catalog.capabilities.records_commit_ids:
            self._records.append(
                CommitRecord(
                    table_uuid=member.entry.ticket.table_uuid,
                    commit_id=member.identity.commit_id,
                    digest=member.identity.digest,
                    snapshot_id=snapshot_id,
                    sequence_number=number,
                    summary=counts_of(member.commit),
                )
            )

    def _rebased_over(self, metadata: TableMetadata, snapshot_id: int, write: Write) -> int:
        way = snapshot_id, write.base.snapshot_id
        if way not in self._rebased:
            self._rebased[way] = _snapshots_between(metadata, *way)
        return self._rebased[way]


def is_unchanged(unit: TableUnit, onto: Built, scope: Scope) -> bool:
    """Whether the only write of a unit can be committed exactly as it was staged."""
    (step,) = unit.writes
    found = checked_and_rebased(unit, step, onto, scope.catalog)
    return isinstance(found, RebasedStep) and found.is_unchanged


def counts_of(commit: DelegatedCommit) -> dict[str, int]:
    """What a commit does, if nothing of it is left out."""
    counts = {"changed": len(commit.changes)} if commit.changes else {}
    write = commit.write
    if write is None:
        return counts
    return {
        **counts,
        "rows_inserted": write.rows.inserted,
        "rows_updated": write.rows.updated,
        "rows_deleted": write.rows.deleted,
        "files_added": write.new_files,
        "files_removed": 0,
        "bytes_written": write.new_bytes,
    }


def old_ones(waiting: Iterable[QueueEntry]) -> list[str]:
    """Tickets whose tries are counted, because they have been in a failed group."""
    return [each.ticket.key for each in waiting if each.age_ms > _OLD_MS]


def _bounded(waiting: Sequence[QueueEntry]) -> Iterable[QueueEntry]:
    size = 0
    for each in waiting[:MOST_TICKETS]:
        size += len(each.ticket.body)
        if size > MOST_BYTES:
            return
        yield each


def _listed(scope: Scope, parent: Snapshot | None) -> set[str]:
    listed = read_manifest_list(scope.storage, parent.manifest_list) if parent and parent.manifest_list else ()
    return {each.manifest_path for each in listed}


def _alike(write: Write) -> Hashable:
    """Everything that is checked of added rows, where nothing that has landed can matter to them."""
    on = (write.table_uuid, write.branch, write.base, write.isolation, write.on_deleted)
    columns = (write.schema_id, tuple(write.written_ids.items()), write.nullable_ids)
    keys = (write.keys, write.key_spec_id, frozenset(write.new_specs))
    return (write.kind, write.adds_rows, on, columns, keys)


def _knows_base(write: Write, head: TableMetadata) -> bool:
    """What has happened since an expired base, only its writer can find out (rule P18)."""
    base = write.base.snapshot_id
    return write.on_deleted == "keep" or base is None or head.has_snapshot(base)


def _owners(parts: Sequence[_Part]) -> Owners:
    if len(parts) == 1:
        return Owners.of(parts[0].identity, parts[0].write)
    ids = "\n".join(sorted(part.identity.commit_id for part in parts))
    summary = {
        GROUP_SIZE: str(len(parts)),
        GROUP_DIGEST: hashlib.sha256(ids.encode()).hexdigest()[:16],
        **origins.shared_in_summary([part.identity.origin for part in parts]),
    }
    return Owners(summary, tuple(commit_in(part.write, part.identity) for part in parts))


def _with_bundles(step: WriteStep) -> Write:
    """The leader's write, by the manifests that it made when it was queued, if it made any."""
    bundles = step.manifests.bundles
    return replace(step.write, added=(), bundles=bundles) if bundles else step.write


def _snapshots_between(metadata: TableMetadata, snapshot_id: int, base_id: int | None) -> int:
    count = -1
    for each in metadata.ancestors(snapshot_id):
        if each.snapshot_id == base_id or count > _FAR_BACK:
            break
        count += 1
    return max(0, count)

"""Committing together: whoever has the turn takes along everybody whose ticket waits.

    my operation ─┐                      ┌ one snapshot for all who only append, one for each of the others
    tickets ──────┴─▶ check one by one ──┤
                                         └ back to its writer: needs a look at files, conflicts, not understood

One metadata file, one swap; all fates in the swap's own transaction (rules P1 to P4, P17).
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from frazil.catalog.base import Catalog, CommitRecord, QueueEntry, QueueUpdate
from frazil.catalog.records import COMMIT_DIGEST, COMMIT_ID, ids_in, is_in_properties
from frazil.commit import delegation
from frazil.commit.chain import Building, Chain, Draft, GroupResult, Refused, Step, TicketOutcome, looks_back, parent_of
from frazil.commit.inspection import FullInspector, NeedsFileAccess, StatsOnlyInspector
from frazil.commit.intents import IntentConflict
from frazil.commit.manifests import FilesMissing, OperationManifests
from frazil.commit.operations import Identity, Kind, Operation, Write
from frazil.commit.rebase import unchanged
from frazil.commit.snapshot_layout import SnapshotPosition, may_be_cleaned_up
from frazil.errors import CatalogUnavailable, CorruptMetadata, InvalidInput, StorageError
from frazil.format.manifests import read_manifest_list
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.storage import Storage
from frazil.model import Ident, SharedCommit
from frazil.runtime import Runtime

GROUP_SIZE, GROUP_DIGEST = "frazil.group-size", "frazil.group-digest"
"""Keys of a snapshot's summary: how many commits share it, and a digest of their ids."""
MOST_TICKETS = 500
MOST_BYTES = 8 << 20
MOST_TRIES = 2
"""Who was in a group that came to nothing so often may have been the cause (rule P4)."""
_OLD_MS = 1_000
"""A ticket that has waited as long was in a group that came to nothing."""
_FAR_BACK = 10_000


def queue_update_of(draft: Draft, own: str | None) -> QueueUpdate | None:
    """The fates that a draft's swap decides. ``own``: my ticket, if I am in the queue, too."""
    boarded = draft.boarded
    if boarded is None and own is None:
        return None
    told = dict(boarded.outcomes) if boarded is not None else {}
    size = len(told) + 1
    if own is not None:
        # Nobody reads it but who looks after me; the guard on it keeps the operation from landing twice.
        told[own] = TicketOutcome(draft.snapshot_id, draft.sequence_number, shared=draft.is_shared)
    committed = {key: replace(each, group_size=size).encode() for key, each in told.items()}
    if boarded is None:
        return QueueUpdate(committed)
    return QueueUpdate(committed, boarded.returned, boarded.records, boarded.sleepers)


def summary_identity(identity: Identity) -> dict[str, str]:
    """What a snapshot's summary says about whose it is."""
    summary = {COMMIT_ID: identity.commit_id}
    if identity.given:
        summary[COMMIT_DIGEST] = identity.digest
    return summary


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    """One whose ticket waits."""

    waiting: QueueEntry
    parcel: delegation.DelegatedCommit
    identity: Identity

    @property
    def key(self) -> str:
        return self.waiting.ticket.key

    @property
    def write(self) -> Write | None:
        return self.parcel.write


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Rows that come in a shared snapshot; without a member they are my own."""

    write: Write
    identity: Identity
    member: _Member | None = None


class Group:
    """Implements ``GroupMembers``. Made for one attempt."""

    def __init__(
        self,
        ident: Ident,
        catalog: Catalog,
        storage: Storage,
        runtime: Runtime,
        identity: Identity,
        waiting: Sequence[QueueEntry],
        *,
        is_first: bool,
    ) -> None:
        self._ident = ident
        self._catalog = catalog
        self._storage = storage
        self._runtime = runtime
        self._identity = identity
        self._is_first = is_first
        """No attempt was lost yet, so nothing hints at a commit id that is there already."""
        self._found = list(_bounded(waiting))
        self._returned: list[str] = []
        self._outcomes: dict[str, TicketOutcome] = {}
        self._records: list[CommitRecord] = []
        self._ids_in_table: frozenset[str] | None = None
        """Looked up when somebody brings an id."""
        self._merged: set[str] = set()
        """Manifests that members put others in the place of."""
        self._standing: set[Hashable] = set()
        self._rebased: dict[tuple[int, int | None], int] = {}
        """(snapshot, base) → how many snapshots came in between: many have the same base, which may be far back."""

    def board(self, building: Building, mine: Step | None) -> GroupResult:
        known = self._known_ids(building)
        if mine is None:
            building.others.extend(building.kept)
        else:
            self._merged = mine.write.parts
        members = [member for each in self._found if (member := self._member(each, building, known)) is not None]
        members = [member for member in members if self._changed(building, member)]
        self._add_together(building, mine, [each for each in members if self._shares(each)])
        for member in members:
            if member.write is None:
                self._landed(building, member, None, is_shared=False)
            elif not self._shares(member):
                self._add_alone(building, member, member.write)
        by_key = {each.ticket.key: each.ticket for each in self._found}
        concerned = (*self._outcomes, *self._returned)
        sleepers = tuple((by_key[key].wake, key) for key in concerned if by_key[key].wake)
        return GroupResult(self._outcomes, tuple(self._returned), tuple(self._records), sleepers)

    # Who may come along

    def _member(self, waiting: QueueEntry, building: Building, known: set[str]) -> _Member | None:
        """None: it goes back to its writer, who finds out more, or says what conflicts."""
        try:
            parcel, identity = delegation.decode(waiting.ticket)
            if waiting.tries >= MOST_TRIES or identity.commit_id in known:
                raise NeedsFileAccess
            if identity.given and self._has_landed(identity.commit_id, building.head.metadata):
                raise NeedsFileAccess
            member = _Member(waiting, parcel, identity)
            if parcel.write is not None:
                self._look_over(member, parcel.write, building)
            known.add(identity.commit_id)
        except (NeedsFileAccess, Refused, delegation.UnreadableTicket):
            self._give_back(waiting)
            return None
        except (CatalogUnavailable, StorageError, CorruptMetadata):
            # Not for anything that this one has done.
            raise
        except Exception:  # noqa: BLE001 - whatever it is: one bad ticket must not stop everybody else (rule P4)
            self._give_back(waiting)
            return None
        return member

    def _has_landed(self, commit_id: str, head: TableMetadata) -> bool:
        """Whether an earlier call with this id has landed since its writer looked: a swap may come late (rule P9)."""
        if self._ids_in_table is None:
            self._ids_in_table = ids_in(head)
        return commit_id in self._ids_in_table or is_in_properties(head, commit_id)

    def _look_over(self, member: _Member, write: Write, building: Building) -> None:
        """Raises NeedsFileAccess and Refused."""
        properties, now = building.metadata.properties, building.head.now_ms
        if not write.only_adds or not _knows_base(write, building.head.metadata):
            raise NeedsFileAccess
        if write.staged_since_ms is not None and may_be_cleaned_up(write.staged_since_ms, now, properties):
            raise NeedsFileAccess
        # Who gets a snapshot of its own is checked when its turn comes, against the others, too.
        if self._shares(member):
            self._check_standing(write, building)
        if write.merges:
            self._take_parts(write, building)

    def _check_standing(self, write: Write, building: Building) -> None:
        """Raises NeedsFileAccess and Refused. One write is checked for all that differ only in their files."""
        alike = _alike(write)
        if alike in self._standing:
            return
        if not self._chain(write).stands(building):
            raise NeedsFileAccess
        if not looks_back(write, building):
            self._standing.add(alike)

    def _take_parts(self, write: Write, building: Building) -> None:
        """Raises NeedsFileAccess if a manifest to merge is missing or another member merges it."""
        parts = write.parts
        parent = parent_of(self._ident, building.metadata, write.branch)
        listed = read_manifest_list(self._storage, parent.manifest_list) if parent and parent.manifest_list else ()
        if parts & self._merged or not parts <= {each.manifest_path for each in listed}:
            raise NeedsFileAccess
        self._merged |= parts

    def _changed(self, building: Building, member: _Member) -> bool:
        """Whether the properties are set that come with its rows, or without any."""
        if member.parcel.changes:
            try:
                self._chain(*member.parcel.changes).apply_changes(building)
            except (NeedsFileAccess, Refused, IntentConflict, InvalidInput):
                self._give_back(member.waiting)
                return False
        return True

    def _chain(self, *operations: Operation) -> Chain:
        return Chain(self._ident, operations, self._catalog, self._storage, self._runtime, StatsOnlyInspector)

    def _give_back(self, waiting: QueueEntry) -> None:
        self._returned.append(waiting.ticket.key)

    def _known_ids(self, building: Building) -> set[str]:
        """Ids that are taken, among those whose writers chose them: one of these would undo the whole swap."""
        found = {self._identity.commit_id}
        for each in () if self._is_first else self._found:
            try:
                identity = delegation.decode(each.ticket)[1]
            except delegation.UnreadableTicket:
                continue
            if identity.given and self._catalog.find_commit(building.head.metadata, identity.commit_id) is not None:
                found.add(identity.commit_id)
        return found

    def _shares(self, member: _Member) -> bool:
        if member.identity.given and not self._catalog.capabilities.records_commit_ids:
            # Where ids are kept in the table itself, each needs a summary of its own.
            return False
        return member.write is not None and member.write.may_share_a_snapshot

    # Building

    def _add_together(self, building: Building, mine: Step | None, members: Sequence[_Member]) -> None:
        parts = [] if mine is None else [_Part(_as_it_travels(mine), self._identity)]
        parts += [_Part(each.write, each.identity, each) for each in members if each.write is not None]
        by_branch: dict[str, list[_Part]] = {}
        for part in parts:
            by_branch.setdefault(part.write.branch, []).append(part)
        for branch, group in by_branch.items():
            own = mine if group[0].member is None else None
            self._add_snapshot(building, branch, own, group)

    def _add_snapshot(self, building: Building, branch: str, own: Step | None, parts: Sequence[_Part]) -> None:
        metadata = building.metadata
        rows = [part for part in parts if part.write.brings_rows]
        write = Write(
            Kind.APPEND if rows else Kind.REWRITE,
            metadata.uuid,
            branch=branch,
            added=tuple(file for part in parts for file in part.write.added),
            bundles=tuple(bundle for part in parts for bundle in part.write.bundles),
            merges=tuple(merge for part in parts for merge in part.write.merges),
        )
        step = Step(
            write,
            own.snapshot_id if own is not None else self._runtime.new_snapshot_id(),
            OperationManifests(write, self._storage, self._runtime),
            FullInspector(self._storage, write),
        )
        parent = parent_of(self._ident, metadata, branch)
        place = SnapshotPosition(
            step.snapshot_id, metadata.last_sequence_number + 1, 0, building.attempt, merges_later=True
        )
        # Whose snapshot it is: a merge of manifests comes along and is nobody's.
        owners = rows or parts
        is_shared = len(owners) > 1
        building.boarding = _shared_identity(owners) if is_shared else summary_identity(owners[0].identity)
        commits = tuple(_shared_commit(part) for part in owners) if is_shared else ()
        try:
            building.put(step, unchanged(write), parent, place, commits)
        finally:
            building.boarding = None
            building.written.extend(step.manifests.written)
        building.unused.extend(step.manifests.unused)
        building.others.append(building.kept[-1])
        if own is not None:
            building.snapshot_id, building.sequence_number = place.snapshot_id, place.sequence_number
            building.is_shared = is_shared
            building.count_rows(own.write)
            own.manifests.keep_rows()
        for part in parts:
            if part.member is not None:
                self._landed(building, part.member, place.snapshot_id, is_shared=is_shared)

    def _add_alone(self, building: Building, member: _Member, write: Write) -> None:
        building.boarding = summary_identity(member.identity)
        try:
            snapshot_id = self._chain(write).add_alone(building)
        except (NeedsFileAccess, Refused, FilesMissing):
            self._give_back(member.waiting)
            return
        finally:
            building.boarding = None
        building.others.append(building.kept[-1])
        self._landed(building, member, snapshot_id, is_shared=False)

    def _landed(self, building: Building, member: _Member, snapshot_id: int | None, *, is_shared: bool) -> None:
        metadata, write, index = building.metadata, member.write, len(self._outcomes) + 1
        number = metadata.last_sequence_number
        rebased = 0 if snapshot_id is None or write is None else self._rebased_over(metadata, snapshot_id, write)
        seen = snapshot_id if snapshot_id is not None else metadata.ref_snapshot_id(MAIN)
        self._outcomes[member.key] = TicketOutcome(seen, number, index, is_shared, rebased)
        if member.identity.given and self._catalog.capabilities.records_commit_ids:
            self._records.append(
                CommitRecord(
                    table_uuid=member.waiting.ticket.table_uuid,
                    commit_id=member.identity.commit_id,
                    digest=member.identity.digest,
                    snapshot_id=snapshot_id,
                    sequence_number=number,
                    summary=counts_of(member.parcel),
                )
            )

    def _rebased_over(self, metadata: TableMetadata, snapshot_id: int, write: Write) -> int:
        way = snapshot_id, write.base.snapshot_id
        if way not in self._rebased:
            self._rebased[way] = _rebased_over(metadata, *way)
        return self._rebased[way]


def counts_of(parcel: delegation.DelegatedCommit) -> dict[str, int]:
    """What it does, when nothing of it is left out."""
    counts = {"changed": len(parcel.changes)} if parcel.changes else {}
    write = parcel.write
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
    """Tickets whose tries are to be counted, because they have been in a group that came to nothing."""
    return [each.ticket.key for each in waiting if each.age_ms > _OLD_MS]


def _bounded(waiting: Sequence[QueueEntry]) -> Iterable[QueueEntry]:
    size = 0
    for each in waiting[:MOST_TICKETS]:
        size += len(each.ticket.body)
        if size > MOST_BYTES:
            return
        yield each


def _alike(write: Write) -> Hashable:
    """All that is checked of rows that come, where nothing that has landed can matter to them."""
    on = (write.table_uuid, write.branch, write.base, write.isolation, write.on_deleted)
    columns = (write.schema_id, tuple(write.written_ids.items()), write.nullable_ids)
    keys = (write.keys, write.key_spec_id, frozenset(write.new_specs))
    return (write.kind, write.brings_rows, on, columns, keys)


def _knows_base(write: Write, head: TableMetadata) -> bool:
    """What has happened since a base that is not kept any more, only its writer can find out (rule P18)."""
    base = write.base.snapshot_id
    return write.on_deleted == "keep" or base is None or head.has_snapshot(base)


def _shared_identity(parts: Sequence[_Part]) -> Mapping[str, str]:
    ids = "\n".join(sorted(part.identity.commit_id for part in parts))
    return {GROUP_SIZE: str(len(parts)), GROUP_DIGEST: hashlib.sha256(ids.encode()).hexdigest()[:16]}


def _shared_commit(part: _Part) -> SharedCommit:
    return SharedCommit(part.identity.commit_id, part.write.new_rows, part.write.new_files)


def _as_it_travels(step: Step) -> Write:
    """My own write, with the manifests that I have made for others, if I have."""
    bundles = step.manifests.bundles
    return replace(step.write, added=(), bundles=bundles) if bundles else step.write


def _rebased_over(metadata: TableMetadata, snapshot_id: int, base_id: int | None) -> int:
    count = -1
    for each in metadata.ancestors(snapshot_id):
        if each.snapshot_id == base_id or count > _FAR_BACK:
            break
        count += 1
    return max(0, count)

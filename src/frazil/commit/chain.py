"""What one attempt proposes: the operations of a commit, one upon the other, on the head that was found.

Most commits have one operation, a transaction has several. Each is checked against what landed since its base, put on
top of the ones before it, and all of them go into one new metadata file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import orjson

from frazil.catalog.base import Catalog, ChangeRecord, CommitRecord, DroppedManifestLists, Head, Proposal, QueueUpdate
from frazil.catalog.records import COMMIT_DIGEST
from frazil.commit import summaries
from frazil.commit.checks import Check
from frazil.commit.conflicts import head_conflicts, row_conflicts
from frazil.commit.delegation import delegable
from frazil.commit.history import History, history
from frazil.commit.inspection import FullInspector, NeedsFileAccess
from frazil.commit.intents import IntentConflict
from frazil.commit.manifests import FilesMissing, OperationManifests, missing_files
from frazil.commit.metadata_changes import metadata_change, removing
from frazil.commit.operations import Bundle, MetadataChange, Operation, Write
from frazil.commit.rebase import Rebased
from frazil.commit.retention import gone_with_a_commit
from frazil.commit.snapshot_layout import (
    Effect,
    Json,
    SnapshotPosition,
    add_snapshot,
    change_of,
    distinct,
    may_be_cleaned_up,
    snapshot_json,
    write_requirements,
)
from frazil.errors import CommitFailed, CorruptMetadata, Unsupported
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.properties import ORPHAN_GRACE
from frazil.format.storage import Storage
from frazil.format.updates import apply, next_time_ms
from frazil.model import Change, Conflict, Content, Ident, Predicate, SharedCommit, Snapshot
from frazil.runtime import Runtime


class Refused(Exception):
    """The operations cannot land on this head, nor on any later one."""

    def __init__(self, conflicts: tuple[Conflict, ...]) -> None:
        self.conflicts = conflicts
        super().__init__("; ".join(map(str, conflicts)))


@dataclass(frozen=True, slots=True)
class Draft:
    """What one attempt proposes, with the files that only this attempt references."""

    updates: tuple[Json, ...]
    requirements: tuple[Json, ...]
    changes: tuple[ChangeRecord, ...]
    snapshot_id: int | None
    """The newest of its snapshots; None: it has none."""
    sequence_number: int
    written: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    """Those of ``written`` that nobody needs once it has landed."""
    is_shared: bool = False
    """Others' rows are in the same snapshot."""
    boarded: GroupResult | None = None
    dropped: DroppedManifestLists | None = None
    merge_due: str | None = None
    """The branch whose manifests are to be merged, once this has landed."""

    def proposal(self, record: CommitRecord | None, queue_update: QueueUpdate | None = None) -> Proposal:
        return Proposal(self.updates, self.requirements, record, self.changes, queue_update, self.dropped)


@dataclass(frozen=True, slots=True)
class TicketOutcome:
    """What the writer of a ticket is told when it is committed."""

    snapshot_id: int | None
    """None: the table has none, and this commit brought none."""
    sequence_number: int
    group_index: int = 0
    shared: bool = False
    rebased_over: int = 0
    group_size: int = 1

    def encode(self) -> bytes:
        about = (self.snapshot_id, self.sequence_number, self.group_index, self.shared, self.rebased_over)
        return orjson.dumps((*about, self.group_size))

    @staticmethod
    def decode(body: bytes) -> TicketOutcome:
        return TicketOutcome(*orjson.loads(body))


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Others' operations that are committed with one's own."""

    outcomes: Mapping[str, TicketOutcome]
    """By ticket."""
    returned: tuple[str, ...]
    records: tuple[CommitRecord, ...]
    sleepers: tuple[tuple[str, str], ...]


class GroupMembers(Protocol):
    """Those who wait to be taken along (``group.py``)."""

    def board(self, building: Building, mine: Step | None) -> GroupResult:
        """Put them on top of what is built; ``mine`` is a step that shares its snapshot with them."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A write of the chain with what its attempts share."""

    write: Write
    snapshot_id: int
    """The same over all attempts: an earlier one that landed unnoticed is recognised by it."""
    manifests: OperationManifests
    looking: FullInspector


class Chain:
    """The operations of one commit, over all of its attempts."""

    def __init__(
        self,
        ident: Ident,
        operations: Sequence[Operation],
        catalog: Catalog,
        storage: Storage,
        runtime: Runtime,
        look: type[FullInspector] = FullInspector,
    ) -> None:
        self._ident = ident
        self._catalog = catalog
        self._storage = storage
        self._runtime = runtime
        self._steps = [
            Step(
                operation,
                operation.snapshot_id or runtime.new_snapshot_id(),
                OperationManifests(operation, storage, runtime),
                look(storage, operation, _added_before(operations[:number])),
            )
            if isinstance(operation, Write)
            else operation
            for number, operation in enumerate(operations)
        ]
        self._writes = [step for step in self._steps if isinstance(step, Step)]
        # A transaction's reads may be a step of their own, which writes nothing.
        self._real = [step for step in self._writes if not step.write.is_empty] or self._writes

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        return tuple(step.snapshot_id for step in self._writes)

    @property
    def base_id(self) -> int | None:
        """The snapshot that the writes were made on, if there are any."""
        return self._real[-1].write.base.snapshot_id if self._real else None

    @property
    def branch(self) -> str:
        return self._real[-1].write.branch if self._real else MAIN

    def draft(
        self, head: Head, identity: Mapping[str, str], attempt: int, passengers: GroupMembers | None = None
    ) -> Draft | None:
        """Build on this head; None: there is nothing left to do. Raises Refused, and CommitFailed for lost files.

        GroupMembers come on top of the own operations, which are checked against the head alone.
        """
        self._check_files(head.metadata)
        building = Building(head, identity, attempt, has_passengers=passengers is not None)
        try:
            mine = None if passengers is None else self._shared(building)
            for step in self._steps:
                if isinstance(step, MetadataChange):
                    self._add_change(step, building)
                elif mine is None:
                    self._add_write(step, building)
            if passengers is not None and (mine is not None or building.updates):
                building.boarded = passengers.board(building, mine)
        except FilesMissing as missing:
            self._storage.delete(building.written)
            raise Refused((_missing(missing),)) from missing
        except IntentConflict as conflict:
            self._storage.delete(building.written)
            raise Refused(conflict.conflicts) from conflict
        except BaseException:
            self._storage.delete(building.written)
            raise
        if not building.updates:
            return None
        keeps = self._catalog.capabilities.keeps_changes
        if keeps:
            building.let_go(lambda: self._catalog.pinned(head.metadata.uuid))
        return building.draft(keeps_changes=keeps)

    def _shared(self, building: Building) -> Step | None:
        """My one write, if others' rows may come in the same snapshot."""
        parcel = delegable([step.write if isinstance(step, Step) else step for step in self._steps])
        if parcel is None or parcel.write is None or not parcel.write.may_share_a_snapshot:
            return None
        if COMMIT_DIGEST in building.identity and not self._catalog.capabilities.records_commit_ids:
            # An id that its caller chose is found again in the snapshot's summary only, so it needs one of its own.
            return None
        return self._writes[0] if self.stands(building) else None

    def stands(self, building: Building) -> bool:
        """Whether the one write can be committed exactly as it was staged. Raises Refused."""
        (step,) = self._writes
        return self._checked(step, building)[0].is_unchanged(step.write)

    def add_alone(self, building: Building) -> int:
        """Put the one write of another writer on top, with a snapshot of its own, whose id is returned."""
        (step,) = self._writes
        try:
            self._add_write(step, building)
        finally:
            building.written.extend(step.manifests.written)
        building.unused.extend(step.manifests.unused)
        return step.snapshot_id

    def bundle(self, head: TableMetadata) -> tuple[Bundle, ...]:
        """The files of my one write in manifests that others can name."""
        (step,) = self._writes
        return step.manifests.bundle(head)

    def apply_changes(self, building: Building) -> None:
        """Add changes without rows, all or none. Raises Refused, and NeedsFileAccess if nothing changes."""
        trial, found = building.metadata, []
        for step in self._steps:
            if isinstance(step, MetadataChange):
                _refuse_any(head_conflicts(step, trial))
                change = metadata_change(step, trial, building.head.now_ms)
                if change is None:
                    raise NeedsFileAccess
                trial = apply(trial, change[0], now_ms=building.head.now_ms, previous_location=None)
                found.append(change)
        for updates, requirements in found:
            building.add(updates, requirements)

    def _check_files(self, metadata: TableMetadata) -> None:
        """Those who clean up may have taken the files of an old operation for orphans (rule P35)."""
        now = self._runtime.now_ms()
        old = [
            step.manifests
            for step in self._writes
            if step.write.staged_since_ms is not None
            and may_be_cleaned_up(step.write.staged_since_ms, now, metadata.properties)
        ]
        missing = missing_files(self._storage, [path for each in old for path in each.paths])
        if missing:
            raise CommitFailed(
                f"{len(missing)} of the files that were written for this commit to {self._ident} were removed before "
                "it could land, and nothing was committed",
                evidence=f"One of them is {missing[0]}",
                advice="Repeat the write. Whoever removes orphans must spare files that are younger than "
                f"{ORPHAN_GRACE} says, and a write must not take as long as that",
            )

    def _add_change(self, operation: MetadataChange, building: Building) -> None:
        _refuse_any(head_conflicts(operation, building.metadata))
        change = metadata_change(operation, building.metadata, building.head.now_ms)
        if change is not None:
            building.add(*change)
            building.count("changed", 1)

    def _add_write(self, step: Step, building: Building) -> None:
        write, metadata = step.write, building.metadata
        if write.is_empty and len(self._steps) == 1:
            # It found nothing to do and does nothing: as if it had come before everything that landed since.
            return
        rebased, since = self._checked(step, building)
        if write.reads:
            building.require(write_requirements(write, building.head.metadata))
        if rebased.is_empty:
            return
        parent = parent_of(self._ident, metadata, write.branch)
        # What was read is the parent, unless winners have come in between. The first step that writes anything read
        # the base, however many have only read before it.
        read = write.base.sequence_number if since.changes and step is self._real[0] else None
        if read is None:
            read = parent.sequence_number if parent is not None else 0
        place = SnapshotPosition(
            snapshot_id=step.snapshot_id,
            sequence_number=metadata.last_sequence_number + 1,
            copies_number=read,
            attempt=building.attempt,
            merges_later=building.has_passengers,
        )
        effect = building.put(step, rebased, parent, place)
        if building.boarding is None:
            building.count_effect(write, rebased, effect)

    def check(self, head: Head) -> None:
        """Raise Refused if what was read is not so any more; nothing is built."""
        building = Building(head, {}, attempt=0)
        for step in self._writes:
            self._checked(step, building)

    def _checked(self, step: Step, building: Building) -> tuple[Rebased, History]:
        write, metadata, found = step.write, building.metadata, building.head.metadata
        _refuse_any(head_conflicts(write, metadata, found))
        since = self._history(write, building)
        if since.changes and (write.bundles or any(each.is_partial for each in building.others)):
            # What would have to be compared is in manifests that only their writers open.
            raise NeedsFileAccess
        rebased, conflicts = row_conflicts(write, since, step.looking.at(metadata, found), metadata, found)
        if not since.base_is_ancestor or (since.changes and step is not self._real[0]):
            # What the files of another history need, nobody has looked at; and a delete by key of an earlier step
            # is younger than all that has landed since, and takes rows out of it.
            rebased = rebased.keeping(write.unneeded)
        _refuse_any((*conflicts, *self._later_step_conflicts(step, rebased, since, building)))
        return rebased, since

    def _history(self, write: Write, building: Building) -> History:
        head = building.head.metadata
        if write.branch != MAIN and write.branch not in head.refs:
            # Made by this very commit: nobody else can have written to it.
            return History((), base_is_ancestor=True)
        if not looks_back(write, building):
            return History((), base_is_ancestor=True)
        landed = history(self._storage, head, write.branch, write.base, self._kept_changes(head))
        return replace(landed, changes=(*landed.changes, *building.others))

    def _kept_changes(self, head: TableMetadata) -> summaries.Source:
        def find(after: int, up_to: int) -> Mapping[int, Change | Predicate]:
            return summaries.from_records(self._catalog.find_changes(head.uuid, after, up_to))

        return find

    def _later_step_conflicts(
        self, step: Step, rebased: Rebased, since: History, building: Building
    ) -> tuple[Conflict, ...]:
        """Steps of one transaction name each other's files, so none of them may move under the others."""
        if len(self._real) == 1 or not since.changes:
            return ()
        by_key = [
            change
            for change in since.changes
            if any(entry.file.content == Content.EQUALITY_DELETES for entry in change.deletes)
        ]
        # Copies made by a later step are younger than these deletes and would escape them.
        escapes = bool(by_key and step.write.copies and step is not self._real[0])
        if not escapes and (rebased.is_unchanged(step.write) or self._stands_alone(step)):
            return ()
        busy = [change for change in since.changes if change.removed or change.deletes] or list(since.changes)
        culprit = by_key[0] if escapes else busy[-1]
        return (
            Conflict(
                Check.FILES_EXIST,
                f"files that step {building.steps + 1} of this transaction changes were changed meanwhile",
                culprit.snapshot_id,
                culprit.operation,
                advice="Repeat the transaction from its first read",
            ),
        )

    def _stands_alone(self, step: Step) -> bool:
        """No other step names the files that this one takes rows out of, or those that it adds."""
        mine = _names(step.write)
        return all(mine.isdisjoint(_names(other.write)) for other in self._writes if other is not step)

    # Clean-up

    def keep_rows(self) -> None:
        for step in self._writes:
            step.manifests.keep_rows()

    def remove_unused(self) -> None:
        for step in self._writes:
            step.manifests.remove_unused()

    def remove_scratch(self) -> None:
        """Everything but the staged rows."""
        for step in self._writes:
            step.manifests.remove_all()

    def remove_everything(self) -> None:
        """Staged rows and manifests: nobody references them, and nobody ever will."""
        for step in self._writes:
            step.manifests.remove_all()
            self._storage.delete(step.write.staged_paths)


class Building:
    """One attempt, growing operation by operation."""

    def __init__(self, head: Head, identity: Mapping[str, str], attempt: int, *, has_passengers: bool = False) -> None:
        self.head = head
        self.identity = identity
        self.attempt = attempt
        self.has_passengers = has_passengers
        self.merge_due: str | None = None
        self.metadata = head.metadata
        self.updates: list[Json] = []
        self.written: list[str] = []
        self.unused: list[str] = []
        self.others: list[Change] = []
        """What other members of the group do, for those who come after them."""
        self.boarding: Mapping[str, str] | None = None
        """The identity of the other writer whose operation is being added; None: it is my own."""
        self.boarded: GroupResult | None = None
        self.is_shared = False
        self.dropped: DroppedManifestLists | None = None
        self.kept: list[Change] = []
        self.snapshot_id: int | None = None
        self.steps = 0
        self._requirements: list[Json] = []
        self.sequence_number: int | None = None
        """Of my own newest snapshot, where others' come after it."""
        self._counts: dict[str, int] = {}

    def add(self, updates: Sequence[Json], requirements: Sequence[Json]) -> None:
        self.metadata = apply(self.metadata, updates, now_ms=self.head.now_ms, previous_location=None)
        self.updates.extend(updates)
        self._requirements.extend(requirements)
        self.steps += 1

    def require(self, requirements: Sequence[Json]) -> None:
        self._requirements.extend(requirements)

    def count(self, key: str, number: int) -> None:
        self._counts[key] = self._counts.get(key, 0) + number

    def count_rows(self, write: Write) -> None:
        """All of a write that only adds."""
        self.count("rows_inserted", write.rows.inserted)
        self.count("files_added", len(write.added))
        self.count("bytes_written", sum(file.file_size_in_bytes for file in write.added))

    def count_effect(self, write: Write, rebased: Rebased, effect: Effect) -> None:
        self.count("rows_inserted", write.rows.inserted - rebased.dropped)
        self.count("rows_updated", write.rows.updated)
        self.count("rows_deleted", max(0, write.rows.deleted - rebased.gone_already))
        self.count("files_added", len(effect.added) + len(effect.deletes))
        self.count("files_removed", len(effect.removed) + len(effect.removed_deletes))
        self.count("bytes_written", effect.bytes_written)

    def put(
        self,
        step: Step,
        rebased: Rebased,
        parent: Snapshot | None,
        place: SnapshotPosition,
        commits: tuple[SharedCommit, ...] = (),
    ) -> Effect:
        """Write a snapshot's manifests, and put it on top of its branch."""
        write, metadata = step.write, self.metadata
        manifest_list, effect = step.manifests.write_list(metadata, parent, rebased, place)
        self.written.append(manifest_list)
        if step.manifests.is_merge_due:
            self.merge_due = write.branch
        snapshot = snapshot_json(
            write,
            effect,
            metadata,
            parent,
            place,
            timestamp_ms=next_time_ms(metadata, self.head.now_ms),
            manifest_list=manifest_list,
            identity=self.identity if self.boarding is None else self.boarding,
        )
        self.add(add_snapshot(metadata, write.branch, snapshot), write_requirements(write, self.head.metadata))
        if self.boarding is None:
            self.snapshot_id, self.sequence_number = place.snapshot_id, place.sequence_number
        self.kept.append(replace(change_of(write, effect, place), commits=commits))
        return effect

    def let_go(self, pinned: Callable[[], frozenset[int]]) -> None:
        """Snapshots that have had their time (rule P18). Their manifest lists are noted for those who remove files."""
        gone = gone_with_a_commit(self.metadata, self.head.now_ms, pinned)
        if gone.snapshot_ids:
            lists = (each.manifest_list for each in map(self.metadata.snapshot, gone.snapshot_ids) if each is not None)
            self.dropped = DroppedManifestLists(self.metadata.uuid, tuple(each for each in lists if each is not None))
            self.add(removing(gone, self.metadata), ())

    def draft(self, *, keeps_changes: bool) -> Draft:
        changes = (summaries.to_record(self.head.metadata.uuid, each) for each in self.kept if keeps_changes)
        return Draft(
            updates=tuple(self.updates),
            requirements=distinct(self._requirements),
            changes=tuple(each for each in changes if each is not None),
            snapshot_id=self.snapshot_id,
            sequence_number=self.sequence_number or self.metadata.last_sequence_number,
            written=tuple(self.written),
            counts=self._counts,
            unused=tuple(self.unused),
            is_shared=self.is_shared,
            boarded=self.boarded,
            dropped=self.dropped,
            merge_due=self.merge_due,
        )


def parent_of(ident: Ident, metadata: TableMetadata, branch: str) -> Snapshot | None:
    """The snapshot to build on. What cannot be resolved is refused: "no parent" would drop every earlier row."""
    parent = metadata.head_snapshot(branch)
    if parent is None and metadata.ref_snapshot_id(branch) is not None:
        raise CorruptMetadata(f"The branch {branch!r} of {ident} names a snapshot that is not kept")
    if parent is not None and parent.manifest_list is None:
        raise Unsupported(
            f"The newest snapshot of {ident} keeps its manifests in the metadata file, as v1 did",
            advice="Commit once with another engine, which writes a manifest list",
        )
    return parent


def _added_before(operations: Sequence[Operation]) -> frozenset[str]:
    """Files of earlier steps: younger than everything that others have done."""
    return frozenset(file.file_path for each in operations if isinstance(each, Write) for file in each.added)


def _names(write: Write) -> set[str]:
    return {file.file_path for file in (*write.removed, *write.added)} | set(write.positions)


def looks_back(write: Write, building: Building) -> bool:
    """Whether anything that landed since can matter. Rows added blindly only mind rows that were deleted (P23)."""
    head = building.metadata if building.others else building.head.metadata
    if write.removed or write.positions or write.reads or write.unneeded or not write.owns_files:
        return True
    if write.on_deleted == "keep":
        return False
    first: Snapshot | None = None
    for first in head.ancestors(head.ref_snapshot_id(write.branch)):
        if first.snapshot_id == write.base.snapshot_id:
            return False
        if first.operation not in ("append", "replace"):
            return True
    # Unless this is all that came since, what was deleted on the way here has expired, and may be on record.
    return first is not None and first.parent_snapshot_id != write.base.snapshot_id


def _refuse_any(found: Sequence[Conflict]) -> None:
    if found:
        raise Refused(tuple(found))


def _missing(missing: FilesMissing) -> Conflict:
    return Conflict(
        Check.FILES_EXIST,
        f"{len(missing.paths)} of the files it replaces are not in the table any more",
        files=missing.paths,
        advice="Read the table again and repeat the operation",
    )

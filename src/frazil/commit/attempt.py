"""One attempt of a commit, from the head to the outcome of one swap.

    read the head ─▶ landed already? ─▶ check and rebase each step ─▶ build ─▶ prepare ─▶ swap ─▶ resolve
                                           └─ Conflicting                                   └─ Landed | Lost

Everything computed from a head dies with its attempt, except the operation's own manifests, which depend on no head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from frazil import observe
from frazil.catalog.base import CommitRecord, Committed, Head, Outcome, Prepared, QueueState, Stale, Unknown
from frazil.commit.build import AttemptFiles, Scope
from frazil.commit.context import CommitContext, Phase
from frazil.commit.group import GroupMembers, queue_update_of
from frazil.commit.progress import Progress, SwapState
from frazil.commit.proposal import proposed
from frazil.commit.queued_writer import QueuedWriter
from frazil.commit.resolution import Resolution, Resolver
from frazil.commit.results import (
    Landed,
    commit_by_leader,
    find_commit,
    found_commit,
    is_ours,
    own_commit,
    unchanged_commit,
    unknown_error,
)
from frazil.commit.stages import Built, Refused, TicketOutcome
from frazil.commit.unit import CommitUnit, TableUnit
from frazil.errors import CorruptMetadata, FrazilError, StorageError, Unsupported
from frazil.format.metadata import UPGRADE, WRITTEN_VERSION, TableMetadata
from frazil.model import Conflict


@dataclass(frozen=True, slots=True)
class Lost:
    """The race was lost, for certain, and nothing of the attempt is left."""


@dataclass(frozen=True, slots=True)
class NotAlone:
    """Other commits are queued, and all of them would lose to this swap."""


@dataclass(frozen=True, slots=True, eq=False)
class Conflicting:
    """What landed since the base conflicts with the unit on this head. Nothing was sent."""

    head: Head
    conflicts: tuple[Conflict, ...]


AttemptResult = Landed | Lost | NotAlone | Conflicting


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """One attempt. ``leads``: this writer holds the commit lock and also commits for the queued writers."""

    context: CommitContext
    unit: CommitUnit
    table: TableUnit
    progress: Progress
    queued: QueuedWriter | None
    leads: bool = False

    def run(self) -> AttemptResult:
        head = self._read_head()
        if head.queue_not_empty and not self.leads and self.queued is not None:
            return NotAlone()
        if (earlier := self._landed_earlier(head)) is not None:
            return earlier
        members = self._members()
        files = AttemptFiles(self.context.storage)
        built = self._built(head, members, files)
        if isinstance(built, Refused):
            return Conflicting(head, built.conflicts)
        if not built.updates:
            return self._nothing_to_do(head)
        prepared = self._prepared(built, files)
        resolution = self._swapped(prepared, built, files)
        self.progress.reached(Phase.SWAPPED)
        return self._concluded(resolution, prepared, built, files)

    # The head

    def _read_head(self) -> Head:
        head = self.context.catalog.load(self.table.ident)
        self.progress.found_head(self.table.ident, head.metadata)
        self.progress.reached(Phase.HEAD_READ)
        return head

    def _landed_earlier(self, head: Head) -> Landed | None:
        """An earlier attempt, or an earlier call with the same commit id, has landed."""
        if self.table.has_landed_in(head.metadata):
            self.progress.lands()
            return Landed(found_commit(self.unit, self.table, self.progress, head.metadata))
        return self.recorded_in(head) if self.unit.identity.given else None

    def recorded_in(self, head: Head) -> Landed | None:
        """The commit that is recorded under this commit id."""
        identity = self.unit.identity
        found = find_commit(self.context.catalog, head.metadata, identity, self.table.branch)
        if found is None:
            return None
        queued = self.queued
        if queued is not None and queued.ticket is not None and not queued.has_reservation:
            # A leader may have committed this call's own ticket just now: then these very files are in the table.
            status = queued.take_back()
            if status.state is QueueState.COMMITTED:
                return self.committed_by_leader(TicketOutcome.decode(status.outcome))
        if found.snapshot_id not in self.table.snapshot_ids:
            self.unit.remove_everything()
        self.progress.lands()
        return Landed(replace(found, attempts=self.progress.attempts, elapsed=self.progress.elapsed))

    def committed_by_leader(self, outcome: TicketOutcome) -> Landed:
        """A leader committed the ticket. It was this writer, if its own swap landed and the response was lost."""
        queued, progress = self.queued, self.progress
        assert queued is not None
        progress.lands()
        sent = progress.sent.get(self.table.ident)
        if sent is not None and progress.sent_files is not None and outcome.group_index == 0:
            # The leader comes first in its group.
            progress.sent_files.delete_unused()
            return self._success(sent, None)
        queued.saw_group(outcome.group_size)
        self.table.keep_rows()
        self.table.remove_unused()
        assert queued.delegated is not None
        return Landed(commit_by_leader(self.unit, progress, queued.delegated, outcome))

    # Check, rebase and build (``proposal.py``)

    def _members(self) -> GroupMembers | None:
        """The queued commits, read after the head (rule P2)."""
        if not self.leads or self.queued is None:
            return None
        entries = self.queued.other_entries()
        return GroupMembers(entries, is_first_attempt=self.progress.lost == 0) if entries else None

    def build(self, head: Head, members: GroupMembers | None, files: AttemptFiles) -> Built | Refused:
        """For a commit to several tables: what it proposes for this one."""
        return self._built(head, members, files)

    def _built(self, head: Head, members: GroupMembers | None, files: AttemptFiles) -> Built | Refused:
        if head.metadata.format_version != WRITTEN_VERSION and not self.table.upgrades_format:
            raise Unsupported(
                f"The table {self.table.ident} has format version {head.metadata.format_version}; only version 2 "
                "is written",
                advice=UPGRADE,
            )
        context, identity = self.context, self.unit.identity
        scope = Scope(
            context.catalog,
            context.storage,
            context.runtime,
            identity,
            self.progress.attempts,
            files,
            leads=members is not None,
        )
        try:
            return proposed(self.table, head, scope, members, identity)
        except CorruptMetadata as error:
            if context.catalog.load(self.table.ident).location == head.location:
                raise
            # Files of this head expired while it was being read; the next attempt finds the new head.
            raise StorageError(f"The table {self.table.ident} moved on while it was being read") from error

    def _nothing_to_do(self, head: Head) -> Landed:
        if self.unit.identity.given:
            record = self.commit_record(None, head.metadata.last_sequence_number)
            self.context.catalog.record_commit(self.table.ident, head, record)
        self.unit.remove_everything()
        return Landed(unchanged_commit(self.unit, self.table, self.progress, head))

    # Prepare and swap

    def _prepared(self, built: Built, files: AttemptFiles) -> Prepared:
        catalog = self.context.catalog
        prepared: Prepared | None = None
        ticket = None if self.queued is None or self.queued.ticket is None else self.queued.ticket.key
        try:
            proposal = built.proposal(
                self._record(built),
                queue_update_of(built, ticket),
                keeps_changes=catalog.changes is not None,
            )
            prepared = catalog.prepare(self.table.ident, built.head, proposal)
            # Every file is durable before the swap (rule P6).
            self.context.storage.sync_writes()
            self.progress.reached(Phase.PREPARED)
        except BaseException:
            if prepared is not None:
                catalog.discard(prepared)
            files.delete()
            raise
        return prepared

    def _record(self, built: Built) -> CommitRecord | None:
        """What is kept beside the pointer: without a snapshot it is the only trace of the commit (rule P12)."""
        if built.snapshot_id is not None and not self.unit.identity.given:
            return None
        return self.record_of(built)

    def record_of(self, built: Built) -> CommitRecord:
        return self.commit_record(built.snapshot_id or self.table.moves_ref_to, built.sequence_number, built)

    def commit_record(self, snapshot_id: int | None, number: int, built: Built | None = None) -> CommitRecord:
        identity = self.unit.identity
        summary = {} if built is None else built.counts
        return CommitRecord(self.table.table_uuid, identity.commit_id, identity.digest, snapshot_id, number, summary)

    def _swapped(self, prepared: Prepared, built: Built, files: AttemptFiles) -> Resolution:
        """Send the swap, resolve its outcome, and update the queue."""
        context = self.context
        resolver = Resolver(
            context.catalog, context.runtime, self.table, self.unit.identity, self.unit.retry, prepared, built
        )
        outcome: Outcome = Unknown("the leader was interrupted")
        try:
            resolution = resolver.resolve(self._answer(prepared, built, files))
            outcome = resolution.outcome
        except FrazilError:
            outcome = Stale(None) if self.progress.state is SwapState.SETTLED else outcome
            raise
        finally:
            queue_update, queue = prepared.proposal.queue_update, context.catalog.queue
            if queue_update is not None and queue is not None and queue.claims is not None:
                queue.claims.conclude(queue_update, outcome)
        return resolution

    def _answer(self, prepared: Prepared, built: Built, files: AttemptFiles) -> Outcome:
        catalog, queue_update = self.context.catalog, prepared.proposal.queue_update
        if self.queued is not None:
            self.queued.sign_of_life()
        claims = None if catalog.queue is None else catalog.queue.claims
        if queue_update is not None and claims is not None and not claims.claim(queue_update):
            return Stale(prepared.head.location)
        self.progress.sends({self.table.ident: built}, files)
        try:
            return catalog.swap(prepared)
        except FrazilError:
            # By contract: the swap was definitely not sent, or was refused outright.
            self.progress.settles()
            self._withdraw(prepared, files)
            raise

    def _withdraw(self, prepared: Prepared, files: AttemptFiles) -> None:
        self.context.catalog.discard(prepared)
        files.delete()

    # The outcome

    def _concluded(
        self, resolution: Resolution, prepared: Prepared, built: Built, files: AttemptFiles
    ) -> Landed | Lost:
        match resolution.outcome:
            case Committed():
                self.progress.lands()
                self.progress.attempt_ended("committed")
                files.delete_unused()
                return self._success(built, resolution.seen_in)
            case Stale():
                self.progress.settles()
                self.progress.attempt_ended("stale")
                self._withdraw(prepared, files)
                return Lost()
            case Unknown(cause):
                self.progress.attempt_ended("unknown", cause)
                raise unknown_error(self.unit, cause)
            case _:
                assert_never(resolution.outcome)

    def _success(self, built: Built, seen_in: TableMetadata | None) -> Landed:
        group = built.group
        self.table.remove_unused()
        done = own_commit(self.unit, self.table, self.progress, built, seen_in)
        if self.queued is not None:
            newest = built.head.metadata.head_snapshot(self.table.branch)
            is_foreign = newest is not None and not is_ours(newest)
            self.queued.landed(done.group_size, after_lost_race=self.progress.lost > 0, after_foreign=is_foreign)
        observe.grouped(self.unit.name, done.group_size)
        observe.returned(0 if group is None else len(group.returned))
        return Landed(done, () if built.merge_due is None else ((self.table.ident, built.merge_due),))

"""One attempt of a commit to several tables, from their heads to the outcome of one swap of all.

    read the heads ─▶ landed already? ─▶ check, rebase and build each table ─▶ prepare each ─▶ swap all ─▶ resolve
                                           └─ Conflicting: names the table                         └─ Landed | Lost

A table with nothing to change is guarded: it must not have moved either when the swap is committed (rule P40).
Where the writer holds the commit locks, it also leads: queued commits of its tables are committed with its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

from frazil import observe
from frazil.catalog.base import (
    CommitRecord,
    Committed,
    Guard,
    Head,
    Outcome,
    Prepared,
    Proposal,
    QueueClaims,
    QueueUpdate,
    Stale,
    Unknown,
)
from frazil.commit.attempt import Attempt, Conflicting, Lost
from frazil.commit.build import AttemptFiles
from frazil.commit.checks import Check
from frazil.commit.context import CommitContext, Phase
from frazil.commit.group import GroupMembers, queue_update_of
from frazil.commit.halves import check_whole, half_error
from frazil.commit.progress import Progress, SwapState
from frazil.commit.queued_writer import QueuedWriter
from frazil.commit.resolution import MultiResolution, MultiResolver
from frazil.commit.results import (
    Landed,
    find_commit,
    found_commit,
    own_commit,
    several,
    unchanged_commit,
    unknown_error,
)
from frazil.commit.snapshot_layout import distinct, write_requirements
from frazil.commit.stages import Built, Refused
from frazil.commit.unit import CommitUnit, TableUnit
from frazil.errors import FrazilError, NoSuchTable, TableExists
from frazil.format.metadata import TableMetadata
from frazil.model import Commit, Conflict, Ident


@dataclass(frozen=True, slots=True)
class _Sent:
    """The swap of one attempt."""

    prepared: tuple[Prepared, ...]
    guards: tuple[Guard, ...]

    @property
    def queue_update(self) -> QueueUpdate | None:
        return QueueUpdate.of_all(each.proposal.queue_update for each in self.prepared)


@dataclass(frozen=True, slots=True, eq=False)
class MultiAttempt:
    """One attempt for all tables of a unit. ``queues``: those of the tables whose commit locks this writer holds."""

    context: CommitContext
    unit: CommitUnit
    progress: Progress
    queues: Mapping[Ident, QueuedWriter]

    def run(self) -> Landed | Lost | Conflicting:
        heads = {table.ident: self._head(table) for table in self.unit.tables}
        self.progress.reached(Phase.HEAD_READ)
        if (earlier := self.landed_in(heads)) is not None:
            return earlier
        files = AttemptFiles(self.context.storage)
        built = self._built(heads, files)
        if isinstance(built, Conflicting):
            return built
        sent = self._prepared(built, files)
        resolution = self._swapped(sent, built, files)
        self.progress.reached(Phase.SWAPPED)
        return self._concluded(resolution, sent, built, files)

    # The heads

    def _head(self, table: TableUnit) -> Head:
        if table.made is None:
            head = self.context.catalog.load(table.ident)
            self.progress.found_head(table.ident, head.metadata)
            return head
        try:
            found = self.context.catalog.load(table.ident)
        except NoSuchTable:
            return Head("", table.made, self.context.runtime.now_ms())
        is_own = found.metadata.uuid == table.table_uuid or self._is_recorded_in(found.metadata)
        if not is_own:
            raise TableExists(f"The table {table.ident} was created while this transaction was open")
        return found

    def _is_recorded_in(self, metadata: TableMetadata) -> bool:
        """An earlier call with the same commit id made this table."""
        identity = self.unit.identity
        return identity.given and self.context.catalog.find_commit(metadata, identity.commit_id) is not None

    def landed_in(self, heads: Mapping[Ident, Head]) -> Landed | None:
        """An earlier attempt, or an earlier call with the same commit id: its record is with every table it wrote.

        Raises InvalidInput if that one wrote to other tables than this one.
        """
        unit, identity = self.unit, self.unit.identity
        if not (identity.given or any(each.has_landed_in(heads[each.ident].metadata) for each in unit.written)):
            return None
        done = self._recorded_in(heads)
        if not done:
            return None
        if len(done) < len(unit.written):
            # It landed while the records were read one by one: now they are all there.
            heads = {each.ident: heads[each.ident] if each.is_dropped else self._head(each) for each in unit.tables}
            done = self._recorded_in(heads)
        check_whole(self.context.catalog, unit, heads, done)
        for table in unit.written:
            found = done.get(table.ident)
            if found is not None and found.snapshot_id not in table.snapshot_ids:
                table.remove_everything()
        self.progress.lands()
        return Landed(several(unit, self.progress, done))

    def _recorded_in(self, heads: Mapping[Ident, Head]) -> dict[Ident, Commit]:
        catalog, progress = self.context.catalog, self.progress
        done: dict[Ident, Commit] = {}
        for table in self.unit.tables:
            head = heads[table.ident].metadata
            found = find_commit(catalog, head, self.unit.identity, table.branch, table.ident)
            if found is not None:
                done[table.ident] = replace(found, attempts=progress.attempts, elapsed=progress.elapsed)
            elif table.has_landed_in(head):
                done[table.ident] = found_commit(self.unit, table, progress, head)
        return done

    # Check, rebase and build (``proposal.py``)

    def _built(self, heads: Mapping[Ident, Head], files: AttemptFiles) -> dict[Ident, Built] | Conflicting:
        built: dict[Ident, Built] = {}
        # Tables that were only read first: nothing is written for them.
        for table in sorted(self.unit.tables, key=lambda each: not each.is_only_read):
            head = heads[table.ident]
            try:
                found = self._built_table(table, head, files)
            except BaseException:
                # Also what was written for the tables before.
                files.delete()
                raise
            if isinstance(found, Refused):
                files.delete()
                conflicts = tuple(replace(each, table=str(table.ident)) for each in found.conflicts)
                return Conflicting(head, conflicts)
            built[table.ident] = found
        return built

    def _built_table(self, table: TableUnit, head: Head, files: AttemptFiles) -> Built | Refused:
        if table.is_dropped and head.metadata.uuid != table.table_uuid:
            return Refused((Conflict(Check.SAME_TABLE, "the name belongs to another table now"),))
        return self._of(table).build(head, self._members(table), files)

    def _members(self, table: TableUnit) -> GroupMembers | None:
        """The queued commits of other writers, read after all heads (rule P2)."""
        queued = self.queues.get(table.ident)
        if queued is None or table.is_only_read or table.is_dropped:
            return None
        entries = queued.other_entries()
        return GroupMembers(entries, is_first_attempt=self.progress.lost == 0) if entries else None

    def _of(self, table: TableUnit) -> Attempt:
        return Attempt(self.context, self.unit, table, self.progress, None)

    # Prepare and swap

    def _prepared(self, built: Mapping[Ident, Built], files: AttemptFiles) -> _Sent:
        catalog = self.context.catalog
        prepared: list[Prepared] = []
        try:
            for table in self.unit.tables:
                if self._is_sent(table, built[table.ident]):
                    prepared.append(self._prepared_table(table, built[table.ident]))
                    self.progress.reached(Phase.TABLE_PREPARED)
            # Every file is durable before the swap (rule P6).
            self.context.storage.sync_writes()
            self.progress.reached(Phase.PREPARED)
        except BaseException:
            for each in prepared:
                catalog.discard(each)
            files.delete()
            raise
        guards = [
            self._guard(each, built[each.ident])
            for each in self.unit.tables
            if not self._is_sent(each, built[each.ident])
        ]
        return _Sent(tuple(prepared), tuple(guards))

    def _is_sent(self, table: TableUnit, built: Built) -> bool:
        """Whether the swap changes the table. Where commit ids are kept in the metadata, writing one is a change."""
        keeps_ids = self.context.catalog.capabilities.records_commit_ids
        return _changes(table, built) or not (keeps_ids or table.is_only_read)

    def _prepared_table(self, table: TableUnit, built: Built) -> Prepared:
        catalog = self.context.catalog
        record = self._of(table).record_of(built)
        if table.is_dropped:
            return Prepared(table.ident, built.head, Proposal((), (), record), drops=True)
        queue_update = queue_update_of(built, None)
        proposal = built.proposal(record, queue_update, keeps_changes=catalog.changes is not None)
        if not _changes(table, built):
            proposal = replace(proposal, requirements=_requirements(table, built))
        return catalog.prepare(table.ident, built.head, proposal)

    def _guard(self, table: TableUnit, built: Built) -> Guard:
        record: CommitRecord | None = None
        if not table.is_only_read:
            record = self._of(table).commit_record(None, built.head.metadata.last_sequence_number)
        return Guard(table.ident, built.head.location, record, _requirements(table, built))

    def _swapped(self, sent: _Sent, built: Mapping[Ident, Built], files: AttemptFiles) -> MultiResolution:
        """Send the swap, resolve its outcome, and update the queue."""
        context, unit, queue_update = self.context, self.unit, sent.queue_update
        resolver = MultiResolver(context.catalog, context.runtime, unit.retry, sent.prepared, sent.guards)
        claims = None if context.catalog.queue is None else context.catalog.queue.claims
        if queue_update is None or claims is None:
            return resolver.resolve(self._answer(sent, built, files))
        if not claims.claim(queue_update):
            return MultiResolution(Stale(None))
        return self._claimed(resolver, claims, queue_update, sent, built, files)

    def _claimed(
        self,
        resolver: MultiResolver,
        claims: QueueClaims,
        queue_update: QueueUpdate,
        sent: _Sent,
        built: Mapping[Ident, Built],
        files: AttemptFiles,
    ) -> MultiResolution:
        outcome: Outcome = Unknown("the leader was interrupted")
        try:
            resolution = resolver.resolve(self._answer(sent, built, files))
            outcome = resolution.outcome
        except FrazilError:
            outcome = Stale(None) if self.progress.state is SwapState.SETTLED else outcome
            raise
        finally:
            claims.conclude(queue_update, outcome)
        return resolution

    def _answer(self, sent: _Sent, built: Mapping[Ident, Built], files: AttemptFiles) -> Outcome:
        self.progress.sends(built, files)
        try:
            return self.context.catalog.swap(*sent.prepared, guards=sent.guards)
        except FrazilError:
            # By contract: the swap was definitely not sent, or was refused outright.
            self.progress.settles()
            self._withdraw(sent, files)
            raise

    def _withdraw(self, sent: _Sent, files: AttemptFiles) -> None:
        for each in sent.prepared:
            self.context.catalog.discard(each)
        files.delete()

    # The outcome

    def _concluded(
        self, resolution: MultiResolution, sent: _Sent, built: Mapping[Ident, Built], files: AttemptFiles
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
                self._withdraw(sent, files)
                return Lost()
            case Unknown(cause, landed, missing):
                self.progress.attempt_ended("unknown", cause)
                if landed:
                    raise half_error(self.unit.identity.commit_id, landed, missing, cause)
                raise unknown_error(self.unit, cause)
            case _:
                assert_never(resolution.outcome)

    def _success(self, built: Mapping[Ident, Built], seen_in: Mapping[Ident, TableMetadata]) -> Landed:
        done: dict[Ident, Commit] = {}
        for table in self.unit.written:
            found = built[table.ident]
            if _changes(table, found):
                table.remove_unused()
                done[table.ident] = own_commit(self.unit, table, self.progress, found, seen_in.get(table.ident))
                observe.grouped(self.unit.name, done[table.ident].group_size)
                observe.returned(0 if found.group is None else len(found.group.returned))
            else:
                table.remove_everything()
                done[table.ident] = unchanged_commit(self.unit, table, self.progress, found.head)
            if table.is_dropped and (log := self.context.catalog.changes) is not None:
                # What is left of it is harmless, and so is a failure to delete it.
                with contextlib.suppress(FrazilError):
                    log.forget(table.table_uuid)
        merges = ((ident, each.merge_due) for ident, each in built.items() if each.merge_due is not None)
        return Landed(several(self.unit, self.progress, done), tuple(merges))


def _requirements(table: TableUnit, built: Built) -> tuple[dict[str, Any], ...]:
    """What must hold of a table that is left as it is: what was looked for there is still not there."""
    head = built.head.metadata
    found = [each for step in table.writes for each in write_requirements(step.write, head)]
    return distinct([*built.requirements, *found])


def _changes(table: TableUnit, built: Built) -> bool:
    """Whether the commit moves the table's pointer."""
    return bool(built.updates) or table.made is not None or table.is_dropped

"""The commit loop.

    operation ──▶ ┌ attempt ──────────────────────────────────────────────────────┐ ──▶ Commit
                  │ read head → landed already? → checks → build → prepare → swap │
                  └─ Stale: wait, again   Unknown: find out   conflict: stop ─────┘

Who meets other writers of a table stands in line with them (``line.py``), and whoever has the turn commits for all
(``group.py``).

Rows are staged before the loop and never rewritten by it. Everything an attempt computes from a head dies with the
attempt, except the operation's own manifests, which depend on no head.
"""

from __future__ import annotations

import contextlib
import enum
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from frazil import observe
from frazil.catalog.base import (
    Catalog,
    CommitRecord,
    Committed,
    Head,
    Outcome,
    Prepared,
    QueueState,
    QueueStatus,
    Stale,
    Unknown,
)
from frazil.catalog.records import COMMIT_ID, find_record
from frazil.catalog.requirements import is_fenced_off
from frazil.commit.chain import Chain, Draft, Refused, TicketOutcome
from frazil.commit.delegation import delegable
from frazil.commit.group import (
    GROUP_SIZE,
    MOST_TICKETS,
    Group,
    counts_of,
    old_ones,
    queue_update_of,
    summary_identity,
)
from frazil.commit.manifest_merge import merged
from frazil.commit.operations import Identity, Operation, Write
from frazil.commit.queued_writer import QueuedWriter
from frazil.commit.retry import Retry
from frazil.errors import (
    CatalogUnavailable,
    CommitUnknown,
    ConflictError,
    CorruptMetadata,
    DiskFull,
    FrazilError,
    InvalidInput,
    NoSuchTable,
    RetriesExhausted,
    StorageError,
    Unsupported,
)
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.storage import Storage
from frazil.model import Commit, Conflict, Ident, Snapshot
from frazil.runtime import SYSTEM, Runtime


class Phase(enum.StrEnum):
    """Named moments of an attempt, so that a test can hold one writer there and let another one go first."""

    HEAD_READ = "head read"
    PREPARED = "prepared"
    SWAPPED = "swapped"
    WAITING = "waiting"
    QUEUED = "queued"
    """Its ticket is in the queue."""


_TURN_PATIENCE_S = 10.0
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SHOWN = 10
"""Conflicts spelled out in a message; all of them are in the error's list."""

OnPhase = Callable[[Phase, int], None]


def _no_phase(_phase: Phase, _attempt: int) -> None:
    """Nobody holds this one anywhere."""


@dataclass(frozen=True, slots=True)
class CommitContext:
    """Where to commit."""

    catalog: Catalog
    storage: Storage
    ident: Ident
    runtime: Runtime = SYSTEM
    on_phase: OnPhase = field(default=_no_phase)


@dataclass(frozen=True, slots=True)
class Request:
    """What to commit: one operation, or the chain of a transaction's, all or nothing."""

    operations: tuple[Operation, ...]
    identity: Identity
    retry: Retry
    name: str

    @property
    def table_uuid(self) -> str:
        return self.operations[0].table_uuid


def commit(
    context: CommitContext, operations: Operation | Sequence[Operation], identity: Identity, retry: Retry
) -> Commit:
    """Commit an operation, or several as one, or raise an error that says what is known about their fate."""
    chain = tuple(operations) if isinstance(operations, Sequence) else (operations,)
    writes = [each.name for each in chain if isinstance(each, Write) and not each.is_empty]
    name = chain[0].name if len(chain) == 1 else writes[0] if len(writes) == 1 else "transaction"
    loop = _Loop(context, Request(chain, identity, retry, name))
    return observe.committing(context, chain, identity, loop.run)


def find_commit(catalog: Catalog, metadata: TableMetadata, identity: Identity, branch: str = MAIN) -> Commit | None:
    """The earlier commit with this id, if there is one. The same id with another operation is the caller's mistake."""
    record = catalog.find_commit(metadata, identity.commit_id) or find_record(metadata, identity.commit_id)
    if record is None:
        return None
    if record.digest and record.digest != identity.digest:
        raise InvalidInput(
            f"The commit id {identity.commit_id!r} was already used on this table for another operation",
            advice="A commit id names one write; repeat it only to repeat that write",
        )
    rolled_back = record.snapshot_id is not None and _is_rolled_back(metadata, record.snapshot_id, branch)
    observe.log.warning(
        "commit id %s was already committed%s; nothing is sent again",
        identity.commit_id,
        " and has been rolled back since" if rolled_back else "",
        extra={"event": "commit.already", "commit_id": identity.commit_id, "rolled_back": rolled_back},
    )
    earlier = Commit(
        snapshot_id=record.snapshot_id,
        sequence_number=record.sequence_number,
        commit_id=identity.commit_id,
        attempts=0,
        already_committed=True,
        rolled_back=rolled_back,
    )
    counts: dict[str, Any] = dict(record.summary)
    changed = bool(counts.pop("changed", record.snapshot_id is not None))
    return replace(earlier, changed=changed, **counts)


def _is_rolled_back(metadata: TableMetadata, snapshot_id: int, branch: str) -> bool:
    # A snapshot that has expired cannot be told from a rolled back one; only a kept one outside history is evidence.
    return metadata.has_snapshot(snapshot_id) and not metadata.is_ancestor(
        snapshot_id, of=metadata.ref_snapshot_id(branch)
    )


class _Fate(enum.Enum):
    """What is known about the operation at this moment; it decides what an error may delete."""

    OPEN = "nothing that was sent can land"
    IN_DOUBT = "a swap was sent, and its outcome is not known yet"
    LANDED = "it is committed"


class _QueueNotEmpty(Exception):
    """Others stand in line: to go ahead of them would make all of them lose."""


class _Loop:
    """One operation's way to its outcome. Lives for one call."""

    def __init__(self, context: CommitContext, request: Request) -> None:
        self._catalog = context.catalog
        self._context = context
        self._runtime = context.runtime
        self._request = request
        self._name = request.name
        self._identity = request.identity
        self._retry = request.retry
        self._chain = Chain(context.ident, request.operations, context.catalog, context.storage, context.runtime)
        self._started = context.runtime.monotonic()
        self._attempt = 0
        self._lost = 0
        self._faults = 0
        self._base: TableMetadata | None = None
        self._found_in: TableMetadata | None = None
        self._fate = _Fate.OPEN
        self._sent: Draft | None = None
        self._sent_on: TableMetadata | None = None
        self._merge_due: str | None = None
        self._parcel = delegable(request.operations)
        self._line = self._stand_in_line()
        self._is_queued = False
        self._is_alone = False
        """Nobody commits under my id for an earlier call."""

    def _stand_in_line(self) -> QueuedWriter | None:
        queue = self._catalog.queue
        if queue is None or self._retry.tries == 1:
            return None
        return QueuedWriter(
            self._context.ident,
            self._catalog,
            queue,
            self._runtime,
            self._request.table_uuid,
            self._parcel,
            self._identity,
            lambda: self._chain.bundle(self._base or self._catalog.load(self._context.ident).metadata),
        )

    def run(self) -> Commit:
        try:
            while True:
                self._attempt += 1
                began = self._runtime.monotonic()
                try:
                    done = self._attempted(began)
                except (CatalogUnavailable, StorageError) as fault:
                    if isinstance(fault, DiskFull | CorruptMetadata):
                        raise
                    self._log("fault", began, type(fault).__name__)
                    self._repeat_after_fault(fault)
                    continue
                if done is not None:
                    self._give_up_reservation()
                    observe.finished(self._name, self._elapsed())
                    self._merge_if_due()
                    return done
                self._repeat_after_loss()
        except BaseException as error:
            done = self._left_the_line(error) or self._found_late(error)
            if done is not None:
                return done
            self._clean_up_after(error)
            raise

    def _attempted(self, began: float) -> Commit | None:
        line, now = self._line, self._runtime.monotonic()
        if (earlier := self._fence_earlier_ticket()) is not None:
            return earlier
        if line is None:
            with self._turn():
                return self._try_once(began)
        if line.ticket is None and not self._lost and not line.traffic.is_busy(line.place, now):
            with contextlib.suppress(_QueueNotEmpty):
                return self._try_once(began)
            line.traffic.saw_others(line.place, now)
        if line.needs_its_writer:
            self._look_ahead()
        found = line.turn_or_fate(self._check_time)
        if isinstance(found, QueueStatus):
            return self._decided(found, began)
        try:
            line.gather()
            return self._try_once(began, line)
        finally:
            found()
            with contextlib.suppress(FrazilError):
                line.wake_next()

    def _look_ahead(self) -> None:
        """What has to be read for my checks is read while others have the turn; it is remembered (rule P4)."""
        try:
            self._chain.check(self._catalog.load(self._context.ident))
        except (Refused, CorruptMetadata):
            # The attempt finds it, too, and says it properly.
            return

    def _decided(self, status: QueueStatus, began: float) -> Commit | None:
        """Somebody else has decided about my ticket. None: it is mine again."""
        if status.state is QueueState.COMMITTED:
            self._fate = _Fate.LANDED
            self._log("committed", began, "with others")
            return self._told(status)
        # It needs a look at files, or conflicts; both are for me to find out, and nobody else gets it now.
        return None

    def _told(self, status: QueueStatus) -> Commit:
        """By my ticket: another writer committed it, with others; or my own swap did, whose answer was lost."""
        assert self._line is not None
        told = TicketOutcome.decode(status.outcome)
        # Who commits for others comes first in its group.
        if self._sent is not None and told.group_index == 0:
            return self._success_after_lost_response(self._sent)
        self._line.traffic.saw_others(self._line.place, self._runtime.monotonic(), told.group_size)
        self._chain.keep_rows()
        self._chain.remove_unused()
        assert self._parcel is not None
        done = Commit(
            snapshot_id=told.snapshot_id,
            sequence_number=told.sequence_number,
            commit_id=self._identity.commit_id,
            attempts=self._attempt,
            rebased_over=told.rebased_over,
            group_size=told.group_size,
            group_index=told.group_index,
            shared=told.shared,
            elapsed=self._elapsed(),
        )
        counts: dict[str, Any] = counts_of(self._parcel)
        counts.pop("changed", None)
        return replace(done, **counts)

    def _left_the_line(self, error: BaseException) -> Commit | None:
        """On the way out with an error: nobody may commit the operation any more, or it is known what they did (P3)."""
        line = self._line
        if line is None or line.ticket is None:
            return None
        if line.has_reservation and self._fate is not _Fate.IN_DOUBT:
            self._give_up_reservation()
            return None
        self._fate = _Fate.IN_DOUBT
        try:
            status = line.take_back()
        except FrazilError as unknown:
            if isinstance(error, Exception) and not isinstance(error, CommitUnknown):
                raise CommitUnknown(
                    f"Nobody can say whether this {self._name} on {self._context.ident} was committed",
                    commit_id=self._identity.commit_id,
                    evidence=unknown.problem,
                ) from error
            return None
        if status.state is QueueState.COMMITTED:
            self._fate = _Fate.LANDED
            done = self._told(status)
            if isinstance(error, Exception):
                return done
            error.add_note(f"commit id {self._identity.commit_id} was committed all the same")
            return None
        self._fate = _Fate.OPEN
        if isinstance(error, CommitUnknown):
            # My own swap would have taken the ticket with it: it has not landed and never will.
            self._chain.remove_everything()
            raise CatalogUnavailable(
                f"The {self._name} on {self._context.ident} was not committed: the catalog did not answer",
                evidence=error.evidence,
                advice="Call again",
            ) from error
        return None

    def _found_late(self, error: BaseException) -> Commit | None:
        """An earlier call with my id may have landed while I lost: "nothing was committed" would be untrue (P9)."""
        if not isinstance(error, RetriesExhausted) or not self._identity.given or self._fate is not _Fate.OPEN:
            return None
        with contextlib.suppress(FrazilError):
            return self._done_before(self._catalog.load(self._context.ident))
        return None

    def _merge_if_due(self) -> None:
        """While others go on. The commit has landed, whatever becomes of this."""
        if self._merge_due is None:
            return
        context = replace(self._context, on_phase=_no_phase)
        try:
            head = self._catalog.load(context.ident).metadata
            merge = merged(context.storage, self._runtime, head, self._merge_due)
            if merge is not None:
                commit(context, merge, Identity(str(self._runtime.new_uuid()), "", given=False), Retry(tries=4))
        except FrazilError as error:
            observe.log.debug("manifests of %s were not merged: %s", context.ident, error)
        except BaseException as error:
            error.add_note(f"commit id {self._identity.commit_id} was committed all the same")
            raise

    def _give_up_reservation(self) -> None:
        """So that nobody leaves me a turn that I do not need. Nothing else hangs on it."""
        if self._line is not None and self._line.has_reservation:
            with contextlib.suppress(FrazilError):
                self._line.take_back()

    def _success_after_lost_response(self, sent: Draft) -> Commit:
        """My own swap, whose answer was lost, took my ticket with it: what it names is in use."""
        assert self._sent_on is not None
        self._context.storage.delete(sent.unused)
        return self._success(self._sent_on, sent)

    def _turn(self) -> AbstractContextManager[None]:
        # The first attempt goes ahead at once. Who has lost a race takes turns with the others who have: attempts that
        # overlap are attempts that lose, and the more so the busier the machine is.
        if not self._lost:
            return nullcontext()
        left = _TURN_PATIENCE_S if self._retry.total_s is None else self._retry.total_s - self._elapsed()
        return self._catalog.commit_lock(self._context.ident, max(0.0, min(left, _TURN_PATIENCE_S)))

    def _try_once(self, began: float, line: QueuedWriter | None = None) -> Commit | None:
        """One attempt. None: the race was lost, for certain, and nothing of the attempt is left.

        ``line``: I have the turn, and take along who stands in line.
        """
        head = self._catalog.load(self._context.ident)
        if self._base is None:
            self._base = head.metadata
        self._phase(Phase.HEAD_READ)
        if head.queue_not_empty and line is None and self._line is not None:
            raise _QueueNotEmpty
        if self._landed(head.metadata):
            self._fate = _Fate.LANDED
            self._found_in = head.metadata
            return self._success(head.metadata)
        if self._identity.given and (earlier := self._done_before(head)) is not None:
            return earlier
        draft = self._build_on(head, began, None if line is None else self._group(line))
        if draft is None:
            return self._nothing_to_do(head)
        prepared = self._prepare(head, draft)
        outcome = self._sent_and_settled(prepared, draft)
        self._phase(Phase.SWAPPED)
        return self._conclude(outcome, prepared, draft, began)

    def _group(self, line: QueuedWriter) -> Group | None:
        """Those who stand in line, read after the head (rule P2)."""
        queue = self._catalog.queue
        assert queue is not None
        mine = None if line.ticket is None else line.ticket.key
        waiting = [each for each in queue.waiting(line.place, MOST_TICKETS) if each.ticket.key != mine]
        if not waiting:
            return None
        if old := old_ones(waiting):
            queue.tried(old)
        context = self._context
        return Group(
            context.ident,
            self._catalog,
            context.storage,
            self._runtime,
            self._identity,
            waiting,
            is_first=self._lost == 0,
        )

    def _done_before(self, head: Head) -> Commit | None:
        """The commit that has my id already."""
        found = find_commit(self._catalog, head.metadata, self._identity, self._branch)
        if found is None:
            return None
        if self._line is not None and self._line.ticket is not None and not self._line.has_reservation:
            # Since I last looked, somebody may have committed my own ticket: then these very files are in the table.
            status = self._line.take_back()
            if status.state is QueueState.COMMITTED:
                self._fate = _Fate.LANDED
                return self._told(status)
        if found.snapshot_id not in self._chain.snapshot_ids:
            self._chain.remove_everything()
        self._fate = _Fate.LANDED
        return replace(found, attempts=self._attempt, elapsed=self._elapsed())

    def _fence_earlier_ticket(self) -> Commit | None:
        """An id that nobody chose names a ticket, too, of a writer that was cut off: it may wait, or not have arrived.

        Before I put one of my own, nobody may commit that one any more (rule P9).
        """
        queue, commit_id = self._catalog.queue, self._identity.commit_id
        if queue is None or self._is_alone or not self._identity.given or not _UUID.fullmatch(commit_id):
            return None
        status = queue.fence(commit_id)
        if status is not None and status.state in (QueueState.COMMITTED, QueueState.UNKNOWN):
            if (earlier := self._done_before(self._catalog.load(self._context.ident))) is not None:
                return earlier
            if status.state is QueueState.UNKNOWN and (
                not status.outcome or TicketOutcome.decode(status.outcome).shared
            ):
                # A snapshot of several names none of them.
                raise CommitUnknown(
                    f"Nobody can say whether an earlier {self._name} with this commit id has landed",
                    commit_id=commit_id,
                    evidence="Whoever committed it with others got no answer",
                )
        self._is_alone = True
        return None

    def _prepare(self, head: Head, draft: Draft) -> Prepared:
        prepared: Prepared | None = None
        try:
            proposal = draft.proposal(self._record(draft), queue_update_of(draft, self._own_ticket()))
            prepared = self._catalog.prepare(self._context.ident, head, proposal)
            self._phase(Phase.PREPARED)
        except BaseException:
            if prepared is not None:
                self._catalog.discard(prepared)
            self._context.storage.delete(draft.written)
            raise
        return prepared

    def _sent_and_settled(self, prepared: Prepared, draft: Draft) -> Outcome:
        """Send the swap, find out what came of it, and let those know whose tickets went with it."""
        outcome: Outcome = Unknown("whoever committed it was interrupted")
        try:
            outcome = self._settled(self._swap(prepared, draft), prepared, draft)
        except FrazilError:
            outcome = Stale(None) if self._fate is _Fate.OPEN else outcome
            raise
        finally:
            queue_update, queue = prepared.proposal.queue_update, self._catalog.queue
            if queue_update is not None and queue is not None:
                queue.conclude(queue_update, outcome)
        return outcome

    def _own_ticket(self) -> str | None:
        return None if self._line is None or self._line.ticket is None else self._line.ticket.key

    def _swap(self, prepared: Prepared, draft: Draft) -> Outcome:
        queue_update, queue = prepared.proposal.queue_update, self._catalog.queue
        if self._line is not None:
            self._line.sign_of_life()
        if queue_update is not None and queue is not None and not queue.claim(queue_update):
            return Stale(prepared.head.location)
        self._fate = _Fate.IN_DOUBT
        self._sent, self._sent_on = draft, prepared.head.metadata
        try:
            return self._catalog.swap(prepared)
        except FrazilError:
            # By contract: it was definitely not sent, or refused outright.
            self._fate = _Fate.OPEN
            self._withdraw(prepared, draft)
            raise

    def _withdraw(self, prepared: Prepared, draft: Draft) -> None:
        self._catalog.discard(prepared)
        self._context.storage.delete(draft.written)

    def _conclude(self, outcome: Outcome, prepared: Prepared, draft: Draft, began: float) -> Commit | None:
        match outcome:
            case Committed():
                self._fate = _Fate.LANDED
                self._log("committed", began)
                self._context.storage.delete(draft.unused)
                return self._success(prepared.head.metadata, draft)
            case Stale():
                self._fate = _Fate.OPEN
                self._log("stale", began)
                self._withdraw(prepared, draft)
                return None
            case Unknown():
                self._log("unknown", began, outcome.cause)
                raise CommitUnknown(
                    f"Nobody can say whether this {self._name} on {self._context.ident} was committed",
                    commit_id=self._identity.commit_id,
                    evidence=outcome.cause,
                )
            case _:
                assert_never(outcome)

    # Building

    def _build_on(self, head: Head, began: float, group: Group | None) -> Draft | None:
        if head.metadata.format_version != 2:
            raise Unsupported(
                f"The table {self._context.ident} has format version {head.metadata.format_version}; only version 2 "
                "is written",
                advice="Upgrade the table with an engine of your choice (ALTER TABLE … SET ('format-version'='2'))",
            )
        try:
            return self._chain.draft(head, summary_identity(self._identity), self._attempt, group)
        except Refused as refused:
            found = refused.conflicts
            self._log("conflict", began, ", ".join(str(each.check) for each in found))
            observe.refused(self._name, found)
            raise conflict_error(self._name, self._context.ident, found) from None
        except CorruptMetadata as error:
            if self._catalog.load(self._context.ident).location == head.location:
                raise
            # Others expired what this head names while it was being read; the next attempt finds the new head.
            raise StorageError(f"The table {self._context.ident} moved on while it was being read") from error

    def _record(self, draft: Draft) -> CommitRecord | None:
        """What is kept beside the pointer: without a snapshot it is the commit's only trace (rule P12)."""
        if draft.snapshot_id is not None and not self._identity.given:
            return None
        return CommitRecord(
            table_uuid=self._request.table_uuid,
            commit_id=self._identity.commit_id,
            digest=self._identity.digest,
            snapshot_id=draft.snapshot_id,
            sequence_number=draft.sequence_number,
            summary=draft.counts,
        )

    # Outcomes

    def _settled(self, outcome: Outcome, prepared: Prepared, draft: Draft) -> Outcome:
        """Turn an answer that proves nothing into one that does, where that is possible (rules P9 and P30)."""
        if isinstance(outcome, Stale) and not self._catalog.capabilities.stale_is_certain:
            return self._search(prepared, draft)
        repeats = 0
        while isinstance(outcome, Unknown) and repeats <= max(self._retry.fault_tries, 1):
            if repeats:
                self._sleep(repeats - 1)
            repeats += 1
            outcome = self._send_again(prepared, draft)
        return outcome

    def _send_again(self, prepared: Prepared, draft: Draft) -> Outcome:
        # The identical swap: harmless if the first one landed, and if it is still under way this one fences it off.
        try:
            if prepared.location is None and draft.snapshot_id is None:
                # But not where it names nothing that it replaces: it would be done over what others have done since.
                head, is_there = self._looked_for(prepared)
                if is_there:
                    return Committed(head.location)
            outcome = self._catalog.swap(prepared)
            return self._search(prepared, draft, is_under_way=True) if isinstance(outcome, Stale) else outcome
        except FrazilError as error:
            # Whatever kept the second one from being sent says nothing about the first.
            return Unknown(error.problem)

    def _search(self, prepared: Prepared, draft: Draft, *, is_under_way: bool = False) -> Outcome:
        """Look for my commit in a fresh head. Absence is believed only where history is whole.

        ``is_under_way``: a copy of the swap may still arrive, whatever was answered to the last one.
        """
        try:
            head, is_there = self._looked_for(prepared)
        except NoSuchTable:
            return Unknown("the table is gone, and with it every trace of the commit")
        except FrazilError as error:
            return Unknown(error.problem)
        if head.metadata.uuid != self._request.table_uuid:
            return Unknown("the name belongs to another table now, and where this one went is not known")
        if is_there:
            return Committed(head.location)
        if head.location == prepared.head.location:
            return Unknown("the head has not moved since the swap was sent, so it may still land")
        # Where the pointer itself is compared, a head that has moved keeps every late copy out.
        is_compared = prepared.location is not None
        if is_under_way and not is_compared and not is_fenced_off(prepared.proposal.requirements, head.metadata):
            return Unknown("the table has moved on, but nothing in it keeps the swap from landing later")
        if not self._history_is_whole(head.metadata, prepared, draft):
            return Unknown("history between the base and the head is broken, so absence proves nothing")
        return Stale(head.location)

    def _looked_for(self, prepared: Prepared) -> tuple[Head, bool]:
        """A fresh head, and whether my commit is in it."""
        head = self._catalog.load(self._context.ident)
        record = self._catalog.find_commit(head.metadata, self._identity.commit_id)
        mine = record is not None and self._is_mine(record)
        is_there = head.metadata.uuid == self._request.table_uuid and (
            self._landed(head.metadata) or self._names(head, prepared) or mine
        )
        if is_there:
            self._found_in = head.metadata
        return head, is_there

    def _is_mine(self, record: CommitRecord) -> bool:
        mine = self._chain.snapshot_ids or (None,)
        return record.digest == self._identity.digest and record.snapshot_id in mine

    def _landed(self, head: TableMetadata) -> bool:
        return any(head.has_snapshot(each) for each in self._chain.snapshot_ids)

    @staticmethod
    def _names(head: Head, prepared: Prepared) -> bool:
        if prepared.location is None:
            return False
        log = {entry["metadata-file"] for entry in head.metadata.raw.get("metadata-log") or ()}
        return prepared.location == head.location or prepared.location in log

    def _history_is_whole(self, head: TableMetadata, prepared: Prepared, draft: Draft) -> bool:
        if draft.snapshot_id is None:
            # A change without a snapshot leaves its trace in the log of metadata files only.
            return any(entry["metadata-file"] == prepared.head.location for entry in head.raw.get("metadata-log") or ())
        if prepared.location is None and not _is_gapless(prepared.head.metadata, head):
            # It may have landed, been rolled back and expired; here no log of metadata files would tell.
            return False
        base = prepared.head.metadata.ref_snapshot_id(self._branch)
        chain = list(head.ancestors(head.ref_snapshot_id(self._branch)))
        if base is None:
            # Expiry may clear the parent of the oldest snapshot kept, so "no parent" alone proves nothing.
            first = prepared.head.metadata.last_sequence_number + 1
            if not chain:
                return not any(head.snapshots())
            return chain[-1].parent_snapshot_id is None and chain[-1].sequence_number == first
        return any(each.snapshot_id == base for each in chain)

    def _success(self, head: TableMetadata, draft: Draft | None = None) -> Commit:
        """``head``: what the commit landed on (with ``draft``), or a later head that has it."""
        size = 1
        if draft is not None:
            self._merge_due = draft.merge_due
            self._chain.remove_unused()
            size += 0 if draft.boarded is None else len(draft.boarded.outcomes)
            self._note_traffic(head, size)
            observe.grouped(self._name, size)
            observe.returned(0 if draft.boarded is None else len(draft.boarded.returned))
            snapshot_id, number = draft.snapshot_id, draft.sequence_number
            newest = head.ref_snapshot_id(self._branch)
        else:
            landed = [found for each in self._chain.snapshot_ids if (found := head.snapshot(each)) is not None]
            snapshot_id, number = landed[-1].snapshot_id, landed[-1].sequence_number
            newest = landed[0].parent_snapshot_id
        done = Commit(
            snapshot_id=snapshot_id if snapshot_id is not None else head.ref_snapshot_id(MAIN),
            sequence_number=number,
            commit_id=self._identity.commit_id,
            attempts=self._attempt,
            rebased_over=self._rebased_over(head, newest),
            group_size=size,
            shared=draft is not None and draft.is_shared,
            elapsed=self._elapsed(),
            rolled_back=self._found_in is not None
            and snapshot_id is not None
            and _is_rolled_back(self._found_in, snapshot_id, self._branch),
        )
        counts: dict[str, Any] = dict(self._sent.counts) if self._sent is not None else {}
        counts.pop("changed", None)
        return replace(done, **counts)

    def _note_traffic(self, found: TableMetadata, size: int) -> None:
        if self._line is None:
            return
        now, place = self._runtime.monotonic(), self._line.place
        self._line.leave()
        if size > 1 or self._lost:
            self._line.traffic.saw_others(place, now, size)
        newest = found.head_snapshot(self._branch)
        if newest is not None and not is_ours(newest):
            self._line.traffic.saw_foreign_commit(place, now)

    def _rebased_over(self, head: TableMetadata, newest: int | None) -> int:
        base = self._chain.base_id or self._base_id()
        count = 0
        for each in head.ancestors(newest):
            if each.snapshot_id == base:
                break
            count += 1
        return count

    def _base_id(self) -> int | None:
        return self._base.ref_snapshot_id(self._branch) if self._base is not None else None

    def _nothing_to_do(self, head: Head) -> Commit:
        if self._identity.given:
            record = CommitRecord(
                table_uuid=self._request.table_uuid,
                commit_id=self._identity.commit_id,
                digest=self._identity.digest,
                snapshot_id=None,
                sequence_number=head.metadata.last_sequence_number,
            )
            self._catalog.record_commit(self._context.ident, head, record)
        self._chain.remove_everything()
        return Commit(
            snapshot_id=head.metadata.ref_snapshot_id(self._branch),
            sequence_number=head.metadata.last_sequence_number,
            commit_id=self._identity.commit_id,
            attempts=self._attempt,
            elapsed=self._elapsed(),
            changed=False,
        )

    # QueueEntry

    def _repeat_after_loss(self) -> None:
        self._lost += 1
        if self._lost >= self._retry.tries:
            raise RetriesExhausted(
                f"The {self._name} on {self._context.ident} lost {self._lost} races in a row and gave up",
                attempts=self._attempt,
                evidence=f"It tried for {self._elapsed():.1f} s; each time another writer committed first",
                advice="Nothing was committed and nothing conflicts: call again, or allow more with "
                "retry=frazil.Retry(tries=…) or the table property commit.retry.num-retries",
            )
        observe.retried("lost race")
        self._wait(self._lost - 1)

    def _repeat_after_fault(self, fault: FrazilError) -> None:
        self._faults += 1
        if self._faults > self._retry.fault_tries:
            raise fault
        observe.retried("fault")
        self._wait(self._faults - 1)

    def _check_time(self) -> None:
        """While others have the turn."""
        if self._line is not None and self._line.ticket is not None and not self._is_queued:
            self._is_queued = True
            self._phase(Phase.QUEUED)
        if self._retry.total_s is not None and self._elapsed() > self._retry.total_s:
            raise self._out_of_time()

    def _wait(self, n: int) -> None:
        wait = self._retry.wait_s(n, self._runtime.random())
        if self._retry.total_s is not None and self._elapsed() + wait > self._retry.total_s:
            raise self._out_of_time()
        self._phase(Phase.WAITING)
        if self._line is None:
            self._runtime.sleep(wait)
        else:
            self._line.pause(wait)

    def _out_of_time(self) -> RetriesExhausted:
        return RetriesExhausted(
            f"The {self._name} on {self._context.ident} used up its time of {self._retry.total_s:g} s",
            attempts=self._attempt,
            evidence=f"{self._lost} races were lost and {self._faults} faults met",
            advice="Nothing was committed: call again, or allow more with retry=frazil.Retry(total_s=…) "
            "or the table property commit.retry.total-timeout-ms",
        )

    def _sleep(self, n: int) -> None:
        self._runtime.sleep(self._retry.wait_s(n, self._runtime.random()))

    # Small things

    @property
    def _branch(self) -> str:
        return self._chain.branch

    def _elapsed(self) -> float:
        return self._runtime.monotonic() - self._started

    def _phase(self, phase: Phase) -> None:
        self._context.on_phase(phase, self._attempt)

    def _log(self, outcome: str, began: float, detail: str = "") -> None:
        observe.attempt(
            table=str(self._context.ident),
            operation=self._name,
            outcome=outcome,
            number=self._attempt,
            commit_id=self._identity.commit_id,
            seconds=self._runtime.monotonic() - began,
            detail=detail,
        )

    def _clean_up_after(self, error: BaseException) -> None:
        if self._fate is _Fate.LANDED:
            return
        if self._fate is _Fate.IN_DOUBT or (isinstance(error, FrazilError) and not error.safe_to_delete_staged):
            error.add_note(f"commit id {self._identity.commit_id}: the outcome is not known, so no file was deleted")
            return
        self._chain.remove_everything()


def _is_gapless(base: TableMetadata, head: TableMetadata) -> bool:
    """Whether every snapshot that was made since is kept: each has taken the next sequence number."""
    kept = {snapshot.sequence_number for snapshot in head.snapshots()}
    return kept.issuperset(range(base.last_sequence_number + 1, head.last_sequence_number + 1))


def is_ours(snapshot: Snapshot) -> bool:
    return COMMIT_ID in snapshot.summary or GROUP_SIZE in snapshot.summary


def conflict_error(name: str, ident: Ident, found: tuple[Conflict, ...]) -> ConflictError:
    """The error for a list of conflicts; on a terminal each has a line of its own."""
    lines = [f"\n  {each}." for each in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"\n  … and {len(found) - _SHOWN} more.")
    advice = " ".join(dict.fromkeys(f"{each.advice}." for each in found if each.advice))
    return ConflictError(
        f"The {name} on {ident} conflicts with what others committed meanwhile, and was not committed",
        conflicts=found,
        evidence="".join(lines),
        advice=f"\n  {advice}" if advice else None,
    )

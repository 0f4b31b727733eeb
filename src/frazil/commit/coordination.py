"""How a writer gets to make an attempt: alone, as the leader of a group, or not at all, because a leader committed it.

no other writer seen ──▶ attempt at once
other writers seen ────▶ queue the commit ─▶ committed by a leader
└▶ lead: gather, attempt for all, notify the next
a service ─────────────▶ wait until no writer waits, for so long ─▶ lead
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from frazil.catalog.base import QueueState, QueueStatus, Release
from frazil.catalog.commit_lock import commit_lock
from frazil.commit.attempt import Attempt, AttemptResult, Conflicting, Lost, NotAlone
from frazil.commit.checking import refused_at
from frazil.commit.context import CommitContext, Phase
from frazil.commit.delegation import delegable
from frazil.commit.progress import Progress, SwapState
from frazil.commit.queued_writer import QueuedWriter
from frazil.commit.redo import redone
from frazil.commit.results import Landed, unknown_error
from frazil.commit.stages import TicketOutcome
from frazil.commit.unit import CommitUnit
from frazil.errors import CatalogUnavailable, CommitUnknown, CorruptMetadata, FrazilError

LOCK_PATIENCE_S = 10.0
_SHORT_S = 0.2
"""A redo that took longer is followed by another one before the commit lock is taken, while each takes at most half as
long as the one before."""
YIELD_S = 5.0
"""How long the commit of a service waits, at most, for a moment in which no writer waits. For each attempt."""
_MOST_LOST_YIELDING = 2
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Redone:
    """The statement was evaluated again: the next attempt is made in the queue, under the commit lock."""


class Coordination:
    """One commit among those of other writers. Made for one call."""

    def __init__(self, context: CommitContext, unit: CommitUnit, progress: Progress) -> None:
        self._context = context
        self._catalog = context.catalog
        self._unit = unit
        (self._table,) = unit.tables
        self._progress = progress
        self._queued = self._queued_writer()
        self._is_fenced = False
        """No leader commits an earlier call with this commit id any more."""

    def _queued_writer(self) -> QueuedWriter | None:
        queue, context, table = self._catalog.queue, self._context, self._table
        if queue is None or self._unit.retry.tries == 1:
            return None
        return QueuedWriter(
            table.ident,
            self._catalog,
            queue,
            context.runtime,
            table.table_uuid,
            delegable(table.operations),
            self._unit.identity,
            lambda: table.bundle(
                self._progress.first_heads.get(table.ident) or self._catalog.load(table.ident).metadata
            ),
        )

    @property
    def is_queued(self) -> bool:
        return self._queued is not None and self._queued.ticket is not None

    @property
    def unit(self) -> CommitUnit:
        """With its statement as it was evaluated last."""
        return self._unit

    @property
    def queues_next(self) -> bool:
        """The next attempt begins with waiting in the queue. A leader that lost to a foreign writer is still in it."""
        return self._queued is not None and self._queued.ticket is None

    # One attempt, by this writer or by a leader

    def attempt(self, check_time: Callable[[], None]) -> AttemptResult | Redone:
        """``check_time`` is called while another writer leads, and raises when the commit's time is up."""
        queued, now = self._queued, self._context.runtime.monotonic()
        if (earlier := self._fence_earlier_ticket()) is not None:
            return earlier
        if queued is None:
            with self._commit_lock():
                return self._attempt_or_redo(has_lock=self._has_met_others)
        if queued.ticket is None and not self._has_met_others and not queued.is_busy(now):
            found = self._attempt_or_redo()
            if not isinstance(found, NotAlone):
                return found
            queued.saw_others(now)
        if queued.must_lead:
            self._read_ahead()
        after_others = self._lock_after_others(queued, check_time)
        release = after_others or queued.lock_or_status(check_time)
        if isinstance(release, QueueStatus):
            return self._decided(release)
        try:
            if after_others is None:
                queued.gather()
            return self._attempt_or_redo(leads=True, has_lock=True)
        finally:
            release()
            with contextlib.suppress(FrazilError):
                queued.notify_next()

    def _lock_after_others(self, queued: QueuedWriter, check_time: Callable[[], None]) -> Release | None:
        """The commit lock of a service, once no writer waits for it (rule P44); None: it queues like any writer.

        That is so for every other commit; and for this one when writers came without a pause for so long, or when
        writers that do not queue were faster too often: then only a place in the queue makes them wait for it.
        """
        if not self._table.is_of_service or self._progress.lost > _MOST_LOST_YIELDING:
            return None
        total_s = self._unit.retry.total_s
        left = YIELD_S if total_s is None else max(0.0, total_s - self._progress.elapsed) / 2
        self._progress.reached(Phase.YIELDING)
        return queued.lock_after_others(min(left, YIELD_S), check_time)

    def _attempt(self, *, leads: bool = False) -> Attempt:
        return Attempt(self._context, self._unit, self._table, self._progress, self._queued, leads)

    def _attempt_or_redo(self, *, leads: bool = False, has_lock: bool = False) -> AttemptResult | Redone:
        """One attempt. With the commit lock, another one follows a redo at once: little has arrived since."""
        while True:
            found = self._attempt(leads=leads).run()
            if not isinstance(found, Conflicting) or not self._redo(found):
                return found
            if not has_lock:
                return Redone()
            self._progress.begin_attempt()

    def _redo(self, found: Conflicting) -> bool:
        """Evaluate the statement on the head that it conflicts with."""
        unit = redone(self._context, self._unit, found.head, found.conflicts, self._progress)
        if unit is None:
            return False
        self._unit = unit
        (self._table,) = unit.tables
        return True

    @property
    def _has_met_others(self) -> bool:
        return bool(self._progress.lost or self._progress.redone)

    def _commit_lock(self) -> AbstractContextManager[object]:
        # The first attempt goes ahead at once. Writers that have lost a race take the commit lock in turn: attempts
        # that overlap are attempts that lose, and the more so the busier the machine is.
        if not self._has_met_others:
            return nullcontext()
        total_s = self._unit.retry.total_s
        left = LOCK_PATIENCE_S if total_s is None else total_s - self._progress.elapsed
        patience_s = max(0.0, min(left, LOCK_PATIENCE_S))
        return commit_lock(self._catalog, self._table.ident, patience_s, self._context.runtime)

    def _read_ahead(self) -> None:
        """Read what the checks need while another writer leads; it is remembered (rule P4).

        A statement is evaluated again for as long as that takes less and less time: an engine has its own least time.
        """
        with contextlib.suppress(CorruptMetadata):
            # The attempt reports what this finds.
            took, shrinks = math.inf, True
            while took >= _SHORT_S and shrinks:
                head, now = self._catalog.load(self._table.ident), self._context.runtime.monotonic()
                conflicts = refused_at(self._table, head, self._catalog)
                if not conflicts or not self._redo(Conflicting(head, conflicts)):
                    return
                before, took = took, self._context.runtime.monotonic() - now
                # Beside steady writers a redo is never shorter than its fixed cost and what arrives meanwhile.
                shrinks = took <= before / 2

    def _decided(self, status: QueueStatus) -> AttemptResult:
        """Another writer has decided about the queued commit."""
        if status.state is QueueState.COMMITTED:
            self._progress.lands()
            self._progress.attempt_ended("committed", "by a leader")
            return self._attempt().committed_by_leader(TicketOutcome.decode(status.outcome))
        # It needs file access, or conflicts: this writer finds out, and no leader gets it again.
        return Lost()

    def _fence_earlier_ticket(self) -> Landed | None:
        """A generated commit id also names the ticket of an earlier call that was cut off, which may still arrive.

        Before this call queues a ticket of its own, no leader may commit that one any more (rule P9).
        """
        queue, commit_id = self._catalog.queue, self._unit.identity.commit_id
        if queue is None or self._is_fenced or not self._unit.identity.given or not _UUID.fullmatch(commit_id):
            return None
        status = queue.fence(commit_id)
        if status is not None and status.state in (QueueState.COMMITTED, QueueState.UNKNOWN):
            earlier = self._attempt().recorded_in(self._catalog.load(self._table.ident))
            if earlier is not None:
                return earlier
            is_shared = not status.outcome or TicketOutcome.decode(status.outcome).shared
            if status.state is QueueState.UNKNOWN and is_shared:
                # A shared snapshot does not name the commits that it holds.
                raise CommitUnknown(
                    f"It is not known whether an earlier {self._unit.name} with this commit id has landed",
                    commit_id=commit_id,
                    evidence="The leader that committed it got no response",
                )
        self._is_fenced = True
        return None

    def pause(self, seconds: float) -> None:
        """Between two attempts: so long, or until the queue notifies this writer."""
        if self._queued is None:
            self._context.runtime.sleep(seconds)
        else:
            self._queued.pause(seconds)

    # On the way out

    def give_up_reservation(self) -> None:
        """So that no writer yields to this one any more. Nothing else depends on it."""
        if self._queued is not None and self._queued.has_reservation:
            with contextlib.suppress(FrazilError):
                self._queued.take_back()

    def leave(self, error: BaseException) -> Landed | None:
        """After an error: no leader may commit the operation any more, or it is known that one did (rule P3)."""
        queued, progress = self._queued, self._progress
        if queued is None or queued.ticket is None:
            return None
        if queued.has_reservation and progress.state is not SwapState.IN_DOUBT:
            self.give_up_reservation()
            return None
        progress.doubts()
        try:
            status = queued.take_back()
        except FrazilError as unknown:
            if isinstance(error, Exception) and not isinstance(error, CommitUnknown):
                raise unknown_error(self._unit, unknown.problem) from error
            return None
        if status.state is QueueState.COMMITTED:
            found = self._attempt().committed_by_leader(TicketOutcome.decode(status.outcome))
            if isinstance(error, Exception):
                return found
            error.add_note(f"commit id {self._unit.identity.commit_id} was committed nevertheless")
            return None
        progress.settles()
        if isinstance(error, CommitUnknown):
            # This writer's own swap would also have settled the ticket: it has not landed and never will.
            self._unit.remove_everything()
            raise CatalogUnavailable(
                f"The {self._unit.name} on {self._table.ident} was not committed: the catalog did not answer",
                evidence=error.evidence,
                advice="Call again",
            ) from error
        return None

    def found_late(self) -> Landed | None:
        """An earlier call with this commit id may have landed while this one lost (rule P9)."""
        with contextlib.suppress(FrazilError):
            return self._attempt().recorded_in(self._catalog.load(self._table.ident))
        return None

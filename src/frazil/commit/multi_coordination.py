"""How a writer of several tables gets to make an attempt.

first attempt ──────────▶ at once
after a lost race ──────▶ with the commit locks of all tables, taken in the order of their names
after several of them ──▶ the same, reserved in each table's queue, so that group leaders leave the locks to it

With the locks it leads each table's group: commits that wait there are committed by the same swap.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from frazil.catalog.base import QueueStatus
from frazil.catalog.commit_lock import commit_lock
from frazil.commit.attempt import AttemptResult, Conflicting
from frazil.commit.context import CommitContext
from frazil.commit.coordination import LOCK_PATIENCE_S, Redone
from frazil.commit.multi import MultiAttempt
from frazil.commit.progress import Progress
from frazil.commit.queued_writer import QueuedWriter
from frazil.commit.redo import redone
from frazil.commit.results import Landed
from frazil.commit.unit import CommitUnit, TableUnit
from frazil.errors import FrazilError
from frazil.model import Ident

_RESERVES_AFTER = 3
"""Lost races."""


class MultiCoordination:
    """One commit to several tables among those of other writers. Made for one call."""

    is_queued = queues_next = False

    def __init__(self, context: CommitContext, unit: CommitUnit, progress: Progress) -> None:
        self._context = context
        self._progress = progress
        self.unit = unit

    def attempt(self, check_time: Callable[[], None]) -> AttemptResult | Redone:
        has_locks = bool(self._progress.lost or self._progress.redone)
        with ExitStack() as locks:
            queues = self._take_locks(locks, check_time) if has_locks else {}
            while True:
                found = self._attempt(queues).run()
                if not isinstance(found, Conflicting) or not self._redo(found):
                    return found
                if not has_locks:
                    return Redone()
                self._progress.begin_attempt()

    def _redo(self, found: Conflicting) -> bool:
        """Evaluate the statement on the head that it conflicts with. What it read in other tables must still hold."""
        if any(each.table != self.unit.subject for each in found.conflicts):
            return False
        unit = redone(self._context, self.unit, found.head, found.conflicts, self._progress)
        if unit is None:
            return False
        self.unit = unit
        return True

    def _attempt(self, queues: Mapping[Ident, QueuedWriter]) -> MultiAttempt:
        return MultiAttempt(self._context, self.unit, self._progress, queues)

    def _take_locks(self, locks: ExitStack, check_time: Callable[[], None]) -> dict[Ident, QueuedWriter]:
        """Hints, as for one table (rules P2 and P3). All writers take them in one order: there is no deadlock.

        Returns this writer's place in the queue of each table.
        """
        context, queues, patience_s = self._context, dict[Ident, QueuedWriter](), self._patience_s
        for table in self.unit.tables:
            if table.made is not None:
                continue
            writer = self._queued_writer(table)
            if writer is not None:
                queues[table.ident] = writer
                locks.callback(_leave, writer)
            if writer is not None and self._progress.lost >= _RESERVES_AFTER:
                release = writer.lock_or_status(check_time)
                assert not isinstance(release, QueueStatus), "only its own writer decides about a reservation"
                locks.callback(release)
            else:
                lock = commit_lock(context.catalog, table.ident, min(patience_s, self._patience_s), context.runtime)
                if not locks.enter_context(lock):
                    # Without one of them, others are not worth waiting for: their holder may be the same dead writer.
                    patience_s = 0.0
            check_time()
        return queues

    def _queued_writer(self, table: TableUnit) -> QueuedWriter | None:
        queue, context = self._context.catalog.queue, self._context
        if queue is None:
            return None
        return QueuedWriter(
            table.ident, context.catalog, queue, context.runtime, table.table_uuid, None, self.unit.identity, tuple
        )

    @property
    def _patience_s(self) -> float:
        total_s = self.unit.retry.total_s
        left = LOCK_PATIENCE_S if total_s is None else total_s - self._progress.elapsed
        return max(0.0, min(left, LOCK_PATIENCE_S))

    def pause(self, seconds: float) -> None:
        self._context.runtime.sleep(seconds)

    def give_up_reservation(self) -> None:
        """Each attempt gives up its own."""

    def leave(self, error: BaseException) -> Landed | None:  # noqa: ARG002 - no leader commits for this writer
        return None

    def found_late(self) -> Landed | None:
        """An earlier call with this commit id may have landed while this one lost (rule P9)."""
        with contextlib.suppress(FrazilError):
            load = self._context.catalog.load
            return self._attempt({}).landed_in({each.ident: load(each.ident) for each in self.unit.tables})
        return None


def _leave(writer: QueuedWriter) -> None:
    """So that no writer yields to this one any more, and the next one knows that the lock is free."""
    with contextlib.suppress(FrazilError):
        if writer.ticket is not None:
            writer.take_back()
        writer.notify_next()

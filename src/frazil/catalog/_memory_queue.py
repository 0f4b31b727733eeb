"""A commit queue in this process's memory: for threads, on any catalog."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from frazil import _fork
from frazil.catalog.base import (
    Committed,
    Outcome,
    QueuedCommit,
    QueueEntry,
    QueueState,
    QueueStatus,
    QueueUpdate,
    Unknown,
)
from frazil.runtime import SYSTEM, Runtime

_PATIENCE_S = 30.0
_MOST_SETTLED = 10_000
_UNDECIDED = QueueStatus(QueueState.WAITING)


@dataclass(slots=True)
class _Row:
    ticket: QueuedCommit
    since_ms: int
    deadline_ms: int
    tries: int = 0
    is_claimed: bool = False
    """A leader is committing it: its state is open until that swap is concluded."""
    status: QueueStatus = _UNDECIDED


class MemoryQueue:
    """A CommitQueue, with its Notifier and its QueueClaims: all three share one condition variable.

    A group is claimed before its swap is sent and settled when the outcome is known.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._changed = threading.Condition()
        self._rows: dict[str, _Row] = {}
        self._open: dict[str, _Row] = {}
        """Those that wait, claimed ones included."""
        _fork.watch(self)

    @property
    def notifier(self) -> MemoryQueue:
        return self

    @property
    def claims(self) -> MemoryQueue:
        return self

    @property
    def queue_not_empty(self) -> bool:
        with self._changed:
            return any(row.deadline_ms > self._runtime.now_ms() for row in self._open.values())

    # The writer's part

    def put(self, ticket: QueuedCommit, lives_ms: int) -> bool:
        now = self._runtime.now_ms()
        with self._changed:
            has_company = any(row.ticket.key != ticket.key for row in self._waiting(ticket.queue_key))
            if ticket.key not in self._rows:
                self._rows[ticket.key] = self._open[ticket.key] = _Row(ticket, now, now + lives_ms)
            return has_company

    def status(self, key: str) -> QueueStatus | None:
        with self._changed:
            row = self._rows.get(key)
            return None if row is None else row.status

    def withdraw(self, key: str) -> QueueStatus | None:
        with self._changed:
            row = self._rows.get(key)
            if row is None:
                return None
            # The leader that has claimed it concludes soon.
            self._changed.wait_for(lambda: not row.is_claimed, _PATIENCE_S)
            if row.status.state is QueueState.WAITING:
                row.status = QueueStatus(QueueState.UNKNOWN if row.is_claimed else QueueState.WITHDRAWN)
                self._open.pop(key, None)
            return row.status

    def fence(self, key: str) -> QueueStatus | None:
        # In memory no commit is still on its way to the queue.
        return self.withdraw(key)

    def extend(self, key: str, lives_ms: int) -> None:
        with self._changed:
            if key in self._rows:
                self._rows[key].deadline_ms = self._runtime.now_ms() + lives_ms

    # The leader's part

    def waiting(self, queue_key: str, most: int) -> list[QueueEntry]:
        now = self._runtime.now_ms()
        with self._changed:
            found = (row for row in self._waiting(queue_key) if not row.ticket.is_reservation)
            return [QueueEntry(row.ticket, now - row.since_ms, row.tries) for row in found][:most]

    def count(self, queue_key: str) -> int:
        with self._changed:
            return sum(1 for row in self._waiting(queue_key) if not row.ticket.is_reservation)

    def undecided(self, table_uuid: str) -> list[QueuedCommit]:
        now, unsettled = self._runtime.now_ms(), (QueueState.RETURNED, QueueState.UNKNOWN)
        with self._changed:
            return [
                row.ticket
                for row in self._rows.values()
                if row.ticket.table_uuid == table_uuid
                and not row.ticket.is_reservation
                and (
                    row.status.state in unsettled or (row.status.state is QueueState.WAITING and row.deadline_ms > now)
                )
            ]

    def first(self, queue_key: str) -> QueueEntry | None:
        now = self._runtime.now_ms()
        with self._changed:
            # The oldest is first among reservations and among the others: min() takes the first of equals.
            row = min(self._waiting(queue_key), key=lambda each: not each.ticket.is_reservation, default=None)
            return None if row is None else QueueEntry(row.ticket, now - row.since_ms, row.tries)

    def _waiting(self, queue_key: str) -> Iterable[_Row]:
        now = self._runtime.now_ms()
        return (
            row
            for row in self._open.values()
            if not row.is_claimed and row.ticket.queue_key == queue_key and row.deadline_ms > now
        )

    def tried(self, keys: Sequence[str]) -> None:
        with self._changed:
            for key in keys:
                self._rows[key].tries += 1

    # Notifier

    def address(self) -> str:
        return "memory"

    def sleep(self, key: str, seconds: float) -> bool:
        if self._runtime is not SYSTEM:
            # A simulated clock: no other thread runs while this one waits on a condition variable.
            self._runtime.sleep(seconds)
            return False
        with self._changed:
            row = self._rows.get(key)
            if row is not None and row.status.state is QueueState.WAITING:
                self._changed.wait(seconds)
        # One condition variable wakes all threads.
        return False

    def notify(self, to_notify: Sequence[tuple[str, str]]) -> None:
        if to_notify:
            with self._changed:
                self._changed.notify_all()

    # QueueClaims

    def claim(self, queue_update: QueueUpdate) -> bool:
        now = self._runtime.now_ms()
        with self._changed:
            rows = [self._rows.get(key) for key in queue_update.committed]
            free = [
                row
                for row in rows
                if row is not None
                and row.status.state is QueueState.WAITING
                and not row.is_claimed
                and row.deadline_ms > now
            ]
            if len(free) < len(rows):
                return False
            for row in free:
                row.is_claimed = True
            return True

    def conclude(self, queue_update: QueueUpdate, outcome: Outcome) -> None:
        with self._changed:
            if isinstance(outcome, Committed):
                self._decide(
                    {key: QueueStatus(QueueState.COMMITTED, each) for key, each in queue_update.committed.items()}
                )
                self._decide({key: QueueStatus(QueueState.RETURNED) for key in queue_update.returned})
                return
            if isinstance(outcome, Unknown):
                self._decide(
                    {key: QueueStatus(QueueState.UNKNOWN, each) for key, each in queue_update.committed.items()}
                )
            for key in queue_update.committed:
                self._rows[key].is_claimed = False
            self._changed.notify_all()

    def _decide(self, statuses: dict[str, QueueStatus]) -> None:
        for key, status in statuses.items():
            row = self._rows[key]
            row.is_claimed = False
            if row.status.state is QueueState.WAITING:
                row.status = status
                del self._open[key]
        self._forget()
        self._changed.notify_all()

    def _forget(self) -> None:
        while len(self._rows) > _MOST_SETTLED:
            oldest = next(iter(self._rows))
            if self._rows[oldest].status.state is QueueState.WAITING:
                return
            del self._rows[oldest]

    # The child of a fork has none of the threads that wait

    def before_fork(self) -> None:
        self._changed.acquire()

    def after_fork_in_parent(self) -> None:
        self._changed.release()

    def after_fork_in_child(self) -> None:
        self._changed = threading.Condition()
        self._rows = {}
        self._open = {}

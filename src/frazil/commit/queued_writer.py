"""A writer in the queue of a table: from its queued commit to the outcome, or to its own turn as the leader.

For speed alone. A writer without competition commits at once, without this module; a writer that has waited a second
without seeing the table move goes ahead without the commit lock (rules P2 and P3).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from frazil import observe
from frazil.catalog.base import (
    RESERVATION,
    Catalog,
    CommitQueue,
    QueuedCommit,
    QueueEntry,
    QueueState,
    QueueStatus,
    Release,
)
from frazil.catalog.commit_lock import no_lock, try_lock
from frazil.commit import delegation
from frazil.commit.group import MOST_TICKETS, old_ones
from frazil.commit.operations import Identity
from frazil.errors import CommitUnknown, FrazilError
from frazil.model import Ident
from frazil.runtime import Runtime

LIVES_MS = 60_000
"""A queued commit expires so long after its writer's last sign of life (rule P3)."""
_BEAT_S = 20.0
_STANDSTILL_S = 1.0
_SLEEP_S = 0.25
_SHORT_SLEEP_S = 0.1
_BUSY_S = 1.5
"""How long a writer that has seen other writers goes straight to the queue."""
_FOREIGN_S = 60.0
WINDOW_S = 0.04
"""How long a leader waits, at most, for twenty writers of the group before; longer for more of them."""
_LONGEST_WINDOW_S = 0.2
_POLL_S = 0.003
GAP_S = 0.2
"""A pause left open for writers that do not use the queue: longer than an attempt of theirs takes (rule P8)."""
_GAPS_WITH_FOREIGN, _GAPS_WITHOUT = 1 / 4, 1 / 128
_MAX_YIELDS = 2
"""How often the commit lock is left to a writer that has reserved it and does not take it (rule P3)."""


@dataclass(slots=True)
class _Seen:
    busy_until: float = 0.0
    group_size: int = 1
    foreign_until: float = 0.0


def place_of(catalog: str, ident: Ident, table_uuid: str) -> str:
    """The key of a queue: that of a name, and of the table that has it now."""
    return hashlib.sha256("\x1f".join((catalog, *ident.namespace, ident.name, table_uuid)).encode()).hexdigest()[:40]


class Contention:
    """What this process has seen of other writers lately, by queue."""

    def __init__(self) -> None:
        self._places: dict[str, _Seen] = {}

    def of(self, place: str) -> _Seen:
        return self._places.setdefault(place, _Seen())

    def is_busy(self, place: str, now: float) -> bool:
        return place in self._places and now < self._places[place].busy_until

    def saw_others(self, place: str, now: float, group_size: int | None = None) -> None:
        seen = self.of(place)
        seen.busy_until = now + _BUSY_S
        if group_size is not None:
            seen.group_size = group_size

    def saw_foreign_commit(self, place: str, now: float) -> None:
        self.of(place).foreign_until = now + _FOREIGN_S


_contention: WeakKeyDictionary[CommitQueue, Contention] = WeakKeyDictionary()


def contention_of(queue: CommitQueue) -> Contention:
    return _contention.setdefault(queue, Contention())


class QueuedWriter:
    """One writer's use of a table's queue."""

    def __init__(
        self,
        ident: Ident,
        catalog: Catalog,
        queue: CommitQueue,
        runtime: Runtime,
        table_uuid: str,
        delegated: delegation.DelegatedCommit | None,
        identity: Identity,
        make_bundles: delegation.MakeBundles,
    ) -> None:
        self._ident = ident
        self._catalog = catalog
        self._queue = queue
        self._runtime = runtime
        self._table_uuid = table_uuid
        self.place = place_of(catalog.name, ident, table_uuid)
        self.delegated = delegated
        """What a leader may commit for this writer; None: this writer has to commit it itself."""
        self._delegates = delegated is not None
        self._identity = identity
        self._make_bundles = make_bundles
        self._beat = self._joined = 0.0
        self._has_company = False
        self._contention = contention_of(queue)
        self.ticket: QueuedCommit | None = None

    # Waiting for the outcome, or for the commit lock

    def lock_or_status(self, until: Callable[[], None]) -> Release | QueueStatus:
        """Wait until this writer leads, or until its commit is decided. ``until`` raises when time is up."""
        if self.ticket is not None and self.has_reservation:
            # It was of no use. A new one is behind all others, and other writers yield to it again.
            self._queue.withdraw(self.ticket.key)
            self.leave()
        if self.ticket is None:
            # Straight to the queue: where there are other writers, the lock is taken more often than not.
            self._join()
        elif (status := self._status()).state is not QueueState.WAITING:
            return status
        return self._wait(until)

    def _join(self) -> None:
        self._contention.saw_others(self.place, self._runtime.monotonic())
        delegated = self.delegated if self._delegates else None
        body = None if delegated is None else delegation.encode(delegated, self._identity, self._make_bundles)
        # A generated id is as good as random, and the commit is found again under it (rule P9).
        is_named = body is not None and not self._identity.given
        ticket = QueuedCommit(
            key=self._identity.commit_id if is_named else self._runtime.new_hex(),
            table_uuid=self._table_uuid,
            commit_id=self._identity.commit_id,
            version=RESERVATION if body is None else delegation.VERSION,
            body=body or b"",
            notify_address=self._queue.notifier.address(),
            queue_key=self.place,
        )
        # Set before the commit is sent: from here on only the queue knows what becomes of it.
        self.ticket, self._joined = ticket, self._runtime.monotonic()
        try:
            self._has_company = self._queue.put(ticket, LIVES_MS)
        except FrazilError as error:
            if not isinstance(error, CommitUnknown):
                # By contract it is not in the queue, and never will be.
                self.ticket = None
            raise
        self._beat = self._runtime.monotonic()

    def _wait(self, until: Callable[[], None]) -> Release | QueueStatus:
        location, since = "", self._runtime.monotonic()
        # The first in the queue is notified when the lock is free. A writer with company only polls, later.
        is_first = not self._has_company or self.has_reservation
        is_next = False
        while True:
            # The ticket is in the queue: either the leader sees it, or this writer sees that the lock is free.
            release = try_lock(self._catalog, self._ident) if is_first else None
            if release is not None and (is_next or not self._yields(release)):
                return release
            now = self._runtime.monotonic()
            # The first read only records where the table is.
            if now - since > (_STANDSTILL_S if location else _SLEEP_S / 2):
                found = self._catalog.load(self._ident).location
                if found == location:
                    return no_lock
                location, since = found, now
            until()
            self.sign_of_life()
            # The leader before found this commit first in the queue if it notified its writer, and it still waits.
            is_next = self.pause((_SLEEP_S if is_first else _SHORT_SLEEP_S) * (0.5 + self._runtime.random()))
            is_first = True
            # Only this writer decides about its reservation.
            if not self.has_reservation and (status := self._status()).state is not QueueState.WAITING:
                return status

    def _yields(self, release: Release) -> bool:
        """Leave the lock to a writer that has reserved it: all others may be committed by another leader."""
        try:
            first = self._queue.first(self.place)
            is_own = self.ticket is not None and first is not None and first.ticket.key == self.ticket.key
            if first is None or is_own or not first.ticket.is_reservation or first.tries >= _MAX_YIELDS:
                return False
            self._queue.tried([first.ticket.key])
        except BaseException:
            release()
            raise
        release()
        self._queue.notifier.notify([(first.ticket.notify_address, first.ticket.key)])
        return True

    def lock_after_others(self, seconds: float, until: Callable[[], None]) -> Release | None:
        """The commit lock at a moment in which no other writer waits for it; None: there was none for so long.

        Without a place in the queue, so that no writer yields to this one.
        """
        end = self._runtime.monotonic() + seconds
        while self._runtime.monotonic() < end:
            release = None if self._queue.first(self.place) else try_lock(self._catalog, self._ident)
            if release is not None and not self._is_awaited(release):
                return release
            until()
            self._runtime.sleep(_SHORT_SLEEP_S * (0.5 + self._runtime.random()))
        return None

    def _is_awaited(self, release: Release) -> bool:
        """Give the lock back if a writer has come to wait for it."""
        try:
            first = self._queue.first(self.place)
        except BaseException:
            release()
            raise
        if first is None:
            return False
        release()
        self._queue.notifier.notify([(first.ticket.notify_address, first.ticket.key)])
        return True

    def pause(self, seconds: float) -> bool:
        """So long, or until this writer is notified (True)."""
        if self.ticket is None:
            self._runtime.sleep(seconds)
            return False
        return self._queue.notifier.sleep(self.ticket.key, seconds)

    @property
    def must_lead(self) -> bool:
        """No leader can commit the operation for this writer."""
        return not self._delegates

    @property
    def has_reservation(self) -> bool:
        return self.ticket is not None and self.ticket.is_reservation

    def sign_of_life(self) -> None:
        """Now and then, so that the queued commit does not expire."""
        now = self._runtime.monotonic()
        if self.ticket is not None and now - self._beat > _BEAT_S:
            self._queue.extend(self.ticket.key, LIVES_MS)
            self._beat = now

    def _status(self) -> QueueStatus:
        assert self.ticket is not None
        status = self._queue.status(self.ticket.key)
        if status is None or status.state is QueueState.UNKNOWN:
            raise CommitUnknown(
                f"It is not known whether the commit to {self._ident} has landed",
                commit_id=self._identity.commit_id,
                evidence="Its ticket is gone from the queue"
                if status is None
                else "The leader that committed it got no response",
            )
        if status.state is not QueueState.WAITING:
            self.leave()
            # A commit that came back from the queue once is not queued again.
            self._delegates = False
        return status

    def leave(self) -> None:
        """The ticket no longer waits."""
        if self.ticket is not None:
            observe.waited(self._runtime.monotonic() - self._joined)
        self.ticket = None

    def take_back(self) -> QueueStatus:
        """Leave the queue: WITHDRAWN, or what had become of the commit before. Raises CommitUnknown and others."""
        status = QueueStatus(QueueState.WAITING)
        # More than once if the ticket itself arrives late, between the withdrawal and the query.
        while status.state is QueueState.WAITING:
            assert self.ticket is not None
            self._queue.withdraw(self.ticket.key)
            status = self._status()
        return status

    # While this writer leads

    def gather(self) -> None:
        """Give the writers of the last group time to queue again, and foreign writers a chance to be first."""
        seen = self._contention.of(self.place)
        now = self._runtime.monotonic()
        gaps = _GAPS_WITH_FOREIGN if now < seen.foreign_until else _GAPS_WITHOUT
        if self._runtime.random() < gaps:
            self._runtime.sleep(GAP_S)
        if self.has_reservation:
            # Other writers may wait for the lock with reservations of their own, and each has to lead itself.
            return
        others = seen.group_size - (self.ticket is None)
        end = now + min(WINDOW_S * max(1.0, others / 20), _LONGEST_WINDOW_S)
        while others > 0 and self._runtime.monotonic() < end:
            missing = others - self._queue.count(self.place)
            if missing <= 0:
                return
            # The more writers are missing, the longer it takes until the last of them is queued.
            self._runtime.sleep(min(_POLL_S * max(1, missing // 4), WINDOW_S / 2))

    def other_entries(self) -> tuple[QueueEntry, ...]:
        """The queued commits of other writers, oldest first. Old ones count one more try."""
        own = None if self.ticket is None else self.ticket.key
        waiting = [each for each in self._queue.waiting(self.place, MOST_TICKETS) if each.ticket.key != own]
        if old := old_ones(waiting):
            self._queue.tried(old)
        return tuple(waiting)

    def notify_next(self) -> None:
        """Tell the first writer that came too late for the group that the lock is free."""
        first = self._queue.first(self.place)
        if first is not None and first.ticket.notify_address:
            self._queue.notifier.notify([(first.ticket.notify_address, first.ticket.key)])

    # What this process has seen of other writers

    def is_busy(self, now: float) -> bool:
        return self._contention.is_busy(self.place, now)

    def saw_others(self, now: float) -> None:
        self._contention.saw_others(self.place, now)

    def saw_group(self, size: int) -> None:
        self._contention.saw_others(self.place, self._runtime.monotonic(), size)

    def landed(self, group_size: int, *, after_lost_race: bool, after_foreign: bool) -> None:
        """This writer's own swap landed."""
        now = self._runtime.monotonic()
        self.leave()
        if group_size > 1 or after_lost_race:
            self._contention.saw_others(self.place, now, group_size)
        if after_foreign:
            self._contention.saw_foreign_commit(self.place, now)

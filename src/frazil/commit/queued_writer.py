"""Standing in line: a writer's place in a table's queue, from its ticket to its fate or its own turn.

For speed alone. Whoever meets nobody commits at once and never comes here; whoever has waited a second without seeing
the table move goes ahead without the turn (rules P2 and P3).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from frazil import observe
from frazil.catalog.base import RESERVATION, Catalog, CommitQueue, QueuedCommit, QueueState, QueueStatus
from frazil.commit import delegation
from frazil.commit.operations import Identity
from frazil.errors import CommitUnknown, FrazilError
from frazil.model import Ident
from frazil.runtime import Runtime

LIVES_MS = 60_000
"""A ticket expires so long after its writer's last sign of life (rule P3)."""
_BEAT_S = 20.0
_STANDSTILL_S = 1.0
_SLEEP_S = 0.25
_SHORT_SLEEP_S = 0.1
_BUSY_S = 1.5
"""How long a writer that has met others goes straight to the queue."""
_FOREIGN_S = 60.0
WINDOW_S = 0.04
"""How long a group of twenty waits, at most, for those who were in the one before; it takes more of them longer."""
_LONGEST_WINDOW_S = 0.2
_LOOK_S = 0.003
GAP_S = 0.2
"""Left open for writers who do not know the queue: longer than an attempt of theirs takes (rule P8)."""
_GAPS_WITH_FOREIGN, _GAPS_WITHOUT = 1 / 4, 1 / 128
_MAX_YIELDS = 2
"""How often the turn is left to one who has reserved it and does not come (rule P3)."""

Release = Callable[[], None]


@dataclass(slots=True)
class _Seen:
    busy_until: float = 0.0
    group_size: int = 1
    foreign_until: float = 0.0


def place_of(catalog: str, ident: Ident, table_uuid: str) -> str:
    """Which queue it is: that of a name, and of the table that has it now."""
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


_traffic: WeakKeyDictionary[CommitQueue, Contention] = WeakKeyDictionary()


def contention_of(queue: CommitQueue) -> Contention:
    return _traffic.setdefault(queue, Contention())


def _no_lock() -> None:
    """Given back by who went ahead without the turn."""


class QueuedWriter:
    """One writer's way through the queue of a table."""

    def __init__(
        self,
        ident: Ident,
        catalog: Catalog,
        queue: CommitQueue,
        runtime: Runtime,
        table_uuid: str,
        parcel: delegation.DelegatedCommit | None,
        identity: Identity,
        bundling: delegation.MakeBundles,
    ) -> None:
        self._ident = ident
        self._catalog = catalog
        self._queue = queue
        self._runtime = runtime
        self._table_uuid = table_uuid
        self.place = place_of(catalog.name, ident, table_uuid)
        self._parcel = parcel
        """What others may commit for me; None: I do it myself, and take them along."""
        self._identity = identity
        self._bundling = bundling
        self._beat = self._joined = 0.0
        self._has_company = False
        self.traffic = contention_of(queue)
        self.ticket: QueuedCommit | None = None

    def turn_or_fate(self, until: Callable[[], None]) -> Release | QueueStatus:
        """Wait for the turn, or until somebody has decided about my ticket. ``until`` raises when time is up."""
        if self.ticket is not None and self.has_reservation:
            # It was of no use. A new one stands behind all others, and is given the same courtesy again.
            self._queue.withdraw(self.ticket.key)
            self.leave()
        if self.ticket is None:
            # Straight to the queue: where there are others, the turn is taken more often than not.
            self._join()
        elif (status := self._status()).state is not QueueState.WAITING:
            return status
        return self._wait(until)

    def _join(self) -> None:
        self.traffic.saw_others(self.place, self._runtime.monotonic())
        body = None if self._parcel is None else delegation.encode(self._parcel, self._identity, self._bundling)
        # An id that nobody chose is as good as random, and under it the commit is found again (rule P9).
        is_named = body is not None and not self._identity.given
        ticket = QueuedCommit(
            key=self._identity.commit_id if is_named else self._runtime.new_hex(),
            table_uuid=self._table_uuid,
            commit_id=self._identity.commit_id,
            version=RESERVATION if body is None else delegation.VERSION,
            body=body or b"",
            wake=self._queue.address(),
            place=self.place,
        )
        # Before it is sent: from here on only the queue knows what becomes of the operation.
        self.ticket, self._joined = ticket, self._runtime.monotonic()
        try:
            self._has_company = self._queue.put(ticket, LIVES_MS)
        except FrazilError as error:
            if not isinstance(error, CommitUnknown):
                # By contract it is not there, and never will be.
                self.ticket = None
            raise
        self._beat = self._runtime.monotonic()

    def _wait(self, until: Callable[[], None]) -> Release | QueueStatus:
        place, since = "", self._runtime.monotonic()
        # The first of those who wait is told when the turn is free. Who finds others there only makes sure, later.
        is_first = not self._has_company or self.has_reservation
        while True:
            # With my ticket in the queue: who has the turn sees it, or I do not miss that it has become free.
            release = self._catalog.try_commit_lock(self._ident) if is_first else None
            if release is not None and not self._yields(release):
                return release
            now = self._runtime.monotonic()
            # The first look only tells where the table stands.
            if now - since > (_STANDSTILL_S if place else _SLEEP_S / 2):
                found = self._catalog.load(self._ident).location
                if found == place:
                    return _no_lock
                place, since = found, now
            until()
            self.sign_of_life()
            self.pause((_SLEEP_S if is_first else _SHORT_SLEEP_S) * (0.5 + self._runtime.random()))
            is_first = True
            # Nobody but me decides about a reservation.
            if not self.has_reservation and (status := self._status()).state is not QueueState.WAITING:
                return status

    def _yields(self, release: Release) -> bool:
        """Leave the turn to who has reserved it: everybody else may be committed by others, and by that one, too."""
        try:
            first = self._queue.first(self.place)
            mine = self.ticket is not None and first is not None and first.ticket.key == self.ticket.key
            if first is None or mine or not first.ticket.is_reservation or first.tries >= _MAX_YIELDS:
                return False
            self._queue.tried([first.ticket.key])
        except BaseException:
            release()
            raise
        release()
        self._queue.wake([(first.ticket.wake, first.ticket.key)])
        return True

    def pause(self, seconds: float) -> None:
        """So long, or until there is news of my ticket."""
        if self.ticket is None:
            self._runtime.sleep(seconds)
        else:
            self._queue.sleep(self.ticket.key, seconds)

    @property
    def needs_its_writer(self) -> bool:
        """Nobody else commits it."""
        return self._parcel is None

    @property
    def has_reservation(self) -> bool:
        return self.ticket is not None and self.ticket.is_reservation

    def sign_of_life(self) -> None:
        """Now and then, so that my ticket does not expire."""
        now = self._runtime.monotonic()
        if self.ticket is not None and now - self._beat > _BEAT_S:
            self._queue.extend(self.ticket.key, LIVES_MS)
            self._beat = now

    def _status(self) -> QueueStatus:
        assert self.ticket is not None
        status = self._queue.status(self.ticket.key)
        if status is None or status.state is QueueState.UNKNOWN:
            raise CommitUnknown(
                f"Nobody can say whether the commit to {self._ident} has landed",
                commit_id=self._identity.commit_id,
                evidence="Its ticket is gone from the queue"
                if status is None
                else "Whoever committed it with others got no answer",
            )
        if status.state is not QueueState.WAITING:
            self.leave()
            # Who comes back from the queue once does not go there again.
            self._parcel = None
        return status

    def leave(self) -> None:
        """My ticket waits no longer."""
        if self.ticket is not None:
            observe.waited(self._runtime.monotonic() - self._joined)
        self.ticket = None

    def take_back(self) -> QueueStatus:
        """Leave the queue: WITHDRAWN, or what had become of the ticket before. Raises CommitUnknown and others."""
        status = QueueStatus(QueueState.WAITING)
        # More than once where the ticket itself comes late, after it was asked back and before I look.
        while status.state is QueueState.WAITING:
            assert self.ticket is not None
            self._queue.withdraw(self.ticket.key)
            status = self._status()
        return status

    # While I have the turn

    def gather(self) -> None:
        """Give those who were in the last group the time to come again, and strangers a chance to be first."""
        seen = self.traffic.of(self.place)
        now = self._runtime.monotonic()
        gaps = _GAPS_WITH_FOREIGN if now < seen.foreign_until else _GAPS_WITHOUT
        if self._runtime.random() < gaps:
            self._runtime.sleep(GAP_S)
        if self.has_reservation:
            # Others may wait for the turn as I did, and each of them needs it for itself.
            return
        others = seen.group_size - (self.ticket is None)
        end = now + min(WINDOW_S * max(1.0, others / 20), _LONGEST_WINDOW_S)
        while others > 0 and self._runtime.monotonic() < end:
            missing = others - self._queue.count(self.place)
            if missing <= 0:
                return
            # The more are missing, the longer it takes until the last of them is there.
            self._runtime.sleep(min(_LOOK_S * max(1, missing // 4), WINDOW_S / 2))

    def wake_next(self) -> None:
        """Tell the first of those who came too late for my group that the turn is free."""
        first = self._queue.first(self.place)
        if first is not None and first.ticket.wake:
            self._queue.wake([(first.ticket.wake, first.ticket.key)])

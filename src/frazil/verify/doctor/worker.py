"""One process of the race: opens the catalog, and executes the coordinator's orders one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

from frazil.catalog.base import Head, OpenedCatalog, Prepared
from frazil.errors import FrazilError
from frazil.runtime import SYSTEM
from frazil.verify.doctor.model import Answer, Observation, Refused
from frazil.verify.probe import Scratch, empty_snapshot
from frazil.verify.processes import adopt_environment

Opener = Callable[[], OpenedCatalog]


@dataclass(frozen=True, slots=True)
class Observe:
    """Load the head, and keep it as the base of the next swap."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Prepare a swap from the head loaded last, and keep it under its snapshot's id."""

    snapshot_id: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a prepared swap; ``together``: at the same moment as the other processes."""

    snapshot_id: int
    together: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    pass


@dataclass(frozen=True, slots=True)
class Made:
    expected: int | None
    location: str | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The order raised an error; the coordinator raises it again."""

    error: FrazilError


Order = Observe | Prepare | Send | Stop
Reply = Observation | Made | Answer | Failed


@dataclass(slots=True)
class _Worker:
    number: int
    opened: OpenedCatalog
    scratch: Scratch
    barrier: Barrier
    patience_s: float
    head: Head | None = None
    kept: dict[int, Prepared] = field(default_factory=dict)

    def obey(self, order: Order) -> Reply:
        match order:
            case Observe():
                return self._observe()
            case Prepare(snapshot_id):
                return self._prepare(snapshot_id)
            case Send(snapshot_id, together):
                return self._send(snapshot_id, together)
            case Stop():
                raise AssertionError("Stop is handled by the loop")

    def _observe(self) -> Observation:
        asked = SYSTEM.now_ms()
        self.head = self.opened.catalog.load(self.scratch.ident)
        answered = SYSTEM.now_ms()
        seen = self.head.metadata.ref_snapshot_id()
        return Observation(self.number, self.head.location, seen, self.head.now_ms, asked, answered)

    def _prepare(self, snapshot_id: int) -> Made:
        assert self.head is not None, "the coordinator sends Observe before Prepare"
        proposal = empty_snapshot(self.head, self.scratch, snapshot_id, f"process {self.number}")
        prepared = self.opened.catalog.prepare(self.scratch.ident, self.head, proposal)
        self.kept[snapshot_id] = prepared
        return Made(self.head.metadata.ref_snapshot_id(), prepared.location)

    def _send(self, snapshot_id: int, together: bool) -> Answer:
        if together:
            self.barrier.wait(self.patience_s)
        try:
            return self.opened.catalog.swap(self.kept[snapshot_id])
        except FrazilError as error:
            return Refused(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - a foreign catalog may raise anything, and its text may hold secrets
            return Refused(type(error).__name__)


def work(
    number: int,
    opener: Opener,
    scratch: Scratch,
    orders: Connection,
    barrier: Barrier,
    patience_s: float,
    environment: Mapping[str, str],
) -> None:
    """The process's main function: open the catalog, then execute orders until Stop or the coordinator's end."""
    adopt_environment(environment)
    try:
        worker = _Worker(number, opener(), scratch, barrier, patience_s)
        reply: Reply = worker._observe()
    except Exception as error:  # noqa: BLE001 - every error is reported, or the coordinator would wait for ever
        orders.send(Failed(_as_ours(error)))
        return
    orders.send(reply)
    try:
        _obey_all(worker, orders)
    finally:
        worker.opened.catalog.close()


def _obey_all(worker: _Worker, orders: Connection) -> None:
    while True:
        try:
            order: Order = orders.recv()
        except EOFError:
            return
        if isinstance(order, Stop):
            return
        try:
            reply = worker.obey(order)
        except Exception as error:  # noqa: BLE001 - as above
            reply = Failed(_as_ours(error))
        orders.send(reply)


def _as_ours(error: Exception) -> FrazilError:
    if isinstance(error, FrazilError):
        return error
    return FrazilError(f"A process of the race stopped with {type(error).__name__}", evidence=str(error))

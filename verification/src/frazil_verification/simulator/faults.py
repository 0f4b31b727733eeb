"""The faults of a run, and their rates."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from frazil.runtime import RandomStream


class Fault(enum.StrEnum):
    LOST_REQUEST = "lost request"
    """A transaction does not reach the database, and its sender gets an error that says so."""
    LOST_ANSWER = "lost answer"
    """A transaction is committed, and its sender gets no answer."""
    DUPLICATE = "duplicate"
    """A transaction arrives once more, later."""
    DELAY = "delay"
    """A transaction arrives after its sender has given up on it, and after later ones."""
    CUT_OFF = "cut off"
    """A process loses its network during a transaction, for a while."""
    SERIALIZATION = "serialization failure"
    CRASH = "crash"
    """A process is killed."""
    ORPHANED_LOCK = "ghost turn"
    """A killed process keeps the commit lock for minutes."""
    STALL = "stall"
    """A process pauses for up to minutes."""
    SKEW = "clock skew"
    """A process's clock is off by seconds or hours."""
    CLOCK_STEP = "clock step"
    """The database's clock jumps."""
    DATABASE_RESTART = "database restart"
    """The database is unreachable for a while, and all commit locks are released."""
    POWER_LOSS = "power loss"
    """All processes die; files that were not synced and transactions that were not durable are lost."""
    PARTIAL_WRITE = "partial write"
    """A process dies while it writes a file."""
    STALE_LISTING = "stale listing"
    """A folder's listing is out of date."""
    STORAGE_ERROR = "storage error"
    SLOW_STORAGE = "slow storage"
    LOST_NOTIFICATION = "lost bell"
    """A waiting writer is not notified."""
    FREEZE = "frozen host"
    """A process dies, and all others are frozen for up to minutes."""
    DOUBLE = "taken for dead"
    """A live process is believed dead, and another process repeats its write."""


class Point(enum.Enum):
    """The points at which a fault can strike."""

    READ = "a read of the database"
    WRITE = "a transaction"
    MOMENT = "any moment at which others may run"
    PHASE = "a named moment of a commit"
    FILE = "a file is read or written"
    LISTING = "a folder is listed"
    NOTIFICATION = "a sleeper is woken"
    DEATH = "a process dies"


_RATES: Mapping[Point, Mapping[Fault, float]] = {
    Point.READ: {Fault.LOST_REQUEST: 0.004},
    Point.WRITE: {
        Fault.LOST_REQUEST: 0.008,
        Fault.LOST_ANSWER: 0.020,
        Fault.DUPLICATE: 0.015,
        Fault.DELAY: 0.015,
        Fault.SERIALIZATION: 0.015,
        Fault.CUT_OFF: 0.012,
    },
    Point.MOMENT: {
        Fault.CRASH: 0.0008,
        Fault.STALL: 0.002,
        Fault.POWER_LOSS: 0.00005,
        Fault.DATABASE_RESTART: 0.0001,
        Fault.CLOCK_STEP: 0.0003,
    },
    Point.PHASE: {Fault.CRASH: 0.008, Fault.STALL: 0.008, Fault.DOUBLE: 0.03},
    Point.FILE: {Fault.STORAGE_ERROR: 0.001, Fault.SLOW_STORAGE: 0.002, Fault.PARTIAL_WRITE: 0.001},
    Point.LISTING: {Fault.STALE_LISTING: 0.5},
    Point.NOTIFICATION: {Fault.LOST_NOTIFICATION: 0.05},
    Point.DEATH: {Fault.ORPHANED_LOCK: 0.3, Fault.FREEZE: 0.1},
}
_STRENGTHS = (0.0, 0.3, 1.0, 1.0, 3.0)


@dataclass(frozen=True, slots=True)
class Weather:
    """The faults of one run. The strength of each kind is drawn, so that runs differ in their main difficulty."""

    faults: frozenset[Fault]
    strengths: Mapping[Fault, float]
    _tables: Mapping[Point, tuple[tuple[float, Fault], ...]] = field(default_factory=dict)

    @staticmethod
    def drawn(chance: RandomStream, faults: Collection[Fault], severity: float) -> Weather:
        strengths = {fault: chance.choice(_STRENGTHS) for fault in Fault}
        tables = {}
        for point, rates in _RATES.items():
            edge, table = 0.0, []
            for fault, rate in rates.items():
                # A fault that is switched off keeps its share of the range, so that the other faults do not move.
                edge += min(rate * strengths[fault] * severity, 0.5)
                table.append((edge, fault))
            tables[point] = tuple(table)
        return Weather(frozenset(faults), strengths, tables)

    def strikes(self, point: Point, number: float) -> Fault | None:
        """The fault at this point for a number in [0, 1)."""
        table = self._tables[point]
        if number >= table[-1][0]:
            return None
        for edge, fault in table:
            if number < edge:
                return fault if fault in self.faults else None
        return None

    def has(self, fault: Fault) -> bool:
        """Whether a fault that applies to a whole run applies to this one."""
        return fault in self.faults and self.strengths[fault] > 0


def parse_faults(text: str) -> frozenset[Fault]:
    """``all``, ``none``, or comma-separated names. Raises ValueError."""
    if text == "all":
        return frozenset(Fault)
    if text == "none":
        return frozenset()
    return frozenset(Fault(each.strip().replace("_", " ").replace("-", " ")) for each in text.split(","))

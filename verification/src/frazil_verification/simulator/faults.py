"""What can go wrong, and how often it does in one run."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from frazil.runtime import RandomStream


class Fault(enum.StrEnum):
    LOST_REQUEST = "lost request"
    """A transaction never reaches the database, and its sender knows."""
    LOST_ANSWER = "lost answer"
    """A transaction is committed, and its sender is not told."""
    DUPLICATE = "duplicate"
    """A transaction arrives once more, later."""
    DELAY = "delay"
    """A transaction arrives after its sender has given up on it, and after later ones."""
    CUT_OFF = "cut off"
    """A process loses its network in the middle of a transaction, and stays without it for a while."""
    SERIALIZATION = "serialization failure"
    CRASH = "crash"
    """A process is killed."""
    GHOST_TURN = "ghost turn"
    """A killed process keeps its turn for minutes."""
    STALL = "stall"
    """A process stands still for up to minutes."""
    SKEW = "clock skew"
    """A process's clock is seconds or hours wrong."""
    CLOCK_STEP = "clock step"
    """The database's clock jumps."""
    DATABASE_RESTART = "database restart"
    """The database is out of reach for a while, and all commit locks are free again."""
    POWER_LOSS = "power loss"
    """All processes die; files that were not synced, and transactions that were not durable, are gone."""
    PARTIAL_WRITE = "partial write"
    """A process dies in the middle of a file."""
    STALE_LISTING = "stale listing"
    """A folder's listing is that of some time ago."""
    STORAGE_ERROR = "storage error"
    SLOW_STORAGE = "slow storage"
    LOST_BELL = "lost bell"
    """A sleeper is not woken."""
    FREEZE = "frozen host"
    """A process dies, and all others are frozen for up to minutes."""
    DOUBLE = "taken for dead"
    """A process that lives is thought to be dead, and another one sends again what it is about to write."""


class Point(enum.Enum):
    """Where a fault can strike."""

    READ = "a read of the database"
    WRITE = "a transaction"
    MOMENT = "any moment at which others may run"
    PHASE = "a named moment of a commit"
    FILE = "a file is read or written"
    LISTING = "a folder is listed"
    BELL = "a sleeper is woken"
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
    Point.BELL: {Fault.LOST_BELL: 0.05},
    Point.DEATH: {Fault.GHOST_TURN: 0.3, Fault.FREEZE: 0.1},
}
_STRENGTHS = (0.0, 0.3, 1.0, 1.0, 3.0)


@dataclass(frozen=True, slots=True)
class Weather:
    """The faults of one run. Each kind has a strength of its own, so that every run is hard in another way."""

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
                # A fault that is switched off still draws its numbers, so the other faults strike where they did.
                edge += min(rate * strengths[fault] * severity, 0.5)
                table.append((edge, fault))
            tables[point] = tuple(table)
        return Weather(frozenset(faults), strengths, tables)

    def strikes(self, point: Point, number: float) -> Fault | None:
        """What a number of [0, 1) means here."""
        table = self._tables[point]
        if number >= table[-1][0]:
            return None
        for edge, fault in table:
            if number < edge:
                return fault if fault in self.faults else None
        return None

    def has(self, fault: Fault) -> bool:
        """For what is so during a whole run, or not at all."""
        return fault in self.faults and self.strengths[fault] > 0


def parse_faults(text: str) -> frozenset[Fault]:
    """``all``, ``none``, or names with commas between them. Raises ValueError."""
    if text == "all":
        return frozenset(Fault)
    if text == "none":
        return frozenset()
    return frozenset(Fault(each.strip().replace("_", " ").replace("-", " ")) for each in text.split(","))

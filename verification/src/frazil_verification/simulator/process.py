"""One process of the simulated world: its own clock, caches and connections over the shared database and files."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from frazil.commit.context import Phase
from frazil.runtime import RandomStream, Runtime
from frazil_verification.simulator.faults import Fault, Point
from frazil_verification.simulator.schedule import Killed, Task

if TYPE_CHECKING:
    from frazil_verification.simulator.world import World

BEGINNING_MS = 1_700_000_000_000
"""When every run begins."""
_LONG_S = (0.05, 0.3, 1.2, 3.0, 25.0, 70.0)
"""Stalls: from shorter than the wait for progress to longer than the lifetime of a queue entry."""


@dataclass(slots=True, eq=False)
class Process:
    """``skew_ms``: the error of its clock."""

    name: str
    world: World
    chance: RandomStream
    skew_ms: int = 0
    is_alive: bool = True
    is_faultless: bool = False
    """For callers outside the simulated world."""
    cut_off_until: float = 0.0
    """It has no network until then."""
    task: Task | None = None
    troubles: int = 0
    """The number of faults that have affected it."""
    phase: tuple[int, int] = (0, 0)
    """The event of its last commit phase, and ``troubles`` at that time."""
    redone: int = 0
    """How often it has evaluated a statement again."""
    locks: set[str] = field(default_factory=set)
    """The commit locks that it holds."""
    double: Callable[[], bool] = lambda: False
    """Starts another process that repeats its current write; False: there is no write to repeat."""

    def runtime(self) -> Runtime:
        schedule = self.world.schedule
        return Runtime(
            now_ms=lambda: BEGINNING_MS + self.skew_ms + int(schedule.now * 1000),
            monotonic=lambda: schedule.now,
            sleep=self.sleep,
            random=self.chance.random,
            new_uuid=lambda: uuid.UUID(int=self.chance.getrandbits(128), version=4),
        )

    # Time

    def sleep(self, seconds: float) -> None:
        self.check_alive()
        self._pause(seconds)
        self.check_alive()

    def take(self, seconds: float, point: Point = Point.MOMENT) -> None:
        """Spend about so much time; other processes run concurrently, and this one may die."""
        self.check_alive()
        if self.is_faultless:
            return
        fault = self.strikes(point)
        self._pause(seconds * (0.2 + 1.6 * self.chance.random()))
        self.check_alive()
        if fault is not None:
            self._suffer(fault, point.value)

    def _pause(self, seconds: float) -> None:
        world = self.world
        world.schedule.pause(seconds)
        while self.is_alive and not self.is_faultless and world.schedule.now < world.frozen_until:
            world.schedule.pause(world.frozen_until - world.schedule.now)

    def strikes(self, point: Point) -> Fault | None:
        """The fault that strikes here, if any."""
        return None if self.is_faultless else self.world.weather.strikes(point, self.chance.random())

    def struck(self, fault: Fault, detail: str = "") -> None:
        self.troubles += 1
        self.world.journal.struck(self.name, fault, detail)

    def note(self, what: str) -> int:
        return self.world.journal.note(self.name, what)

    def at_phase(self, phase: str) -> None:
        """The process is at a named moment of a commit."""
        self.check_alive()
        if self.is_faultless:
            return
        self.phase = self.note(f"at {phase}"), self.troubles
        self.redone += phase == Phase.REDONE
        # Computation takes time as well, and other writers commit during it.
        self.take(self.world.thinking_s)
        fault = self.strikes(Point.PHASE)
        if fault is Fault.DOUBLE:
            if self.double():
                self.struck(fault, f"at {phase}")
        elif fault is not None:
            self.world.journal.faults[f"{fault.value} when {phase}"] += 1
            self._suffer(fault, phase)

    # Life

    def check_alive(self) -> None:
        if not self.is_alive:
            raise Killed

    def _suffer(self, fault: Fault, where: str) -> None:
        suffering: dict[Fault, Callable[[], None]] = {
            Fault.CRASH: self.die,
            Fault.STALL: lambda: self.sleep(self.chance.choice(_LONG_S) * (0.5 + self.chance.random())),
            Fault.POWER_LOSS: self.world.lose_power,
            Fault.DATABASE_RESTART: self.world.database.restart,
            Fault.CLOCK_STEP: self.world.database.step_clock,
        }
        held = ", with the turn" if self.locks else ""
        self.struck(fault, f"at {where}{held}")
        if fault is Fault.STALL and self.locks:
            self.world.journal.faults["combiner stall"] += 1
        suffering[fault]()

    def die(self) -> None:
        """Kill this process from inside: its stack unwinds without further effects."""
        self.bury()
        raise Killed

    def bury(self) -> None:
        self.is_alive = False
        self.world.records.deaths[self.name] = self.world.schedule.now
        self.note("is dead")
        fault = self.strikes(Point.DEATH)
        if fault is Fault.FREEZE:
            self.struck(fault)
            self.world.freeze(self.chance.choice(_LONG_S))
        if self.locks and fault is Fault.ORPHANED_LOCK:
            # The lock outlives its owner: the server does not notice the broken connection.
            self.struck(Fault.ORPHANED_LOCK)
            locks = sorted(self.locks)
            self.world.schedule.call(lambda: self.world.database.release(self, locks), 200.0)
        else:
            self.world.database.release(self, sorted(self.locks))

"""Writers on a virtual clock: thousands of commits in seconds, the same for the same seed.

Each writer thinks, then repeats (read the head, prepare, swap) until its swap finds the head it read. Attempts that run
at once share ``Load.slots`` equally. That is kept as a second clock of *work*, which slows down while more attempts
run than there are slots: a phase ends when the work clock has advanced by the phase's duration.
"""

from __future__ import annotations

import enum
import heapq
import math
from dataclasses import dataclass

from frazil.commit.retry import Retry
from frazil.runtime import RandomStream, seeded
from frazil_verification.lab.model import Load, Policy, Sample


class _Phase(enum.Enum):
    THINKING = 0
    READING = 1
    PREPARING = 2
    SWAPPING = 3


@dataclass(slots=True)
class _Writer:
    """The mutable state of a writer."""

    phase: _Phase = _Phase.THINKING
    started: float = 0.0
    tick: float = 0.0
    retries: int = 0
    head: int = 0


@dataclass(slots=True)
class _Clock:
    """Real (virtual) seconds, and the work clock that the running attempts share."""

    slots: float | None
    now: float = 0.0
    work: float = 0.0
    running: int = 0

    def speed(self) -> float:
        return 1.0 if self.slots is None or self.running <= self.slots else self.slots / self.running

    def advance(self, to: float) -> None:
        self.work += (to - self.now) * self.speed()
        self.now = to


def simulate(policy: Policy, load: Load, retry: Retry, seed: int) -> tuple[list[Sample], float]:
    """The commits of all writers in the order they ended, and the elapsed virtual seconds."""
    return _Simulation(policy, load, retry, seeded(f"{seed}/{policy}/{load.arrivals}/{load.think_s}")).run()


class _Simulation:
    def __init__(self, policy: Policy, load: Load, retry: Retry, random: RandomStream) -> None:
        self.policy, self.load, self.retry, self.random = policy, load, retry, random
        self.clock = _Clock(load.slots)
        self.writers = [_Writer() for _ in range(load.writers)]
        self.head = 0
        self.samples: list[Sample] = []
        self.order = 0
        # (when, order, writer): in seconds for waiting writers, by the work clock for running ones.
        self.waiting: list[tuple[float, int, int]] = []
        self.running: list[tuple[float, int, int]] = []

    def run(self) -> tuple[list[Sample], float]:
        for index in range(self.load.writers):
            self._wait(index, self._first_start())
        while len(self.samples) < self.load.commits:
            self._step()
        return self.samples, self.clock.now

    def _step(self) -> None:
        wakes = self.waiting[0][0] if self.waiting else math.inf
        ends = math.inf
        if self.running:
            ends = self.clock.now + (self.running[0][0] - self.clock.work) / self.clock.speed()
        if wakes <= ends:
            _, _, index = heapq.heappop(self.waiting)
            self.clock.advance(wakes)
            self._wake(index)
        else:
            _, _, index = heapq.heappop(self.running)
            self.clock.advance(ends)
            self.clock.running -= 1
            self._phase_ended(index)

    def _wake(self, index: int) -> None:
        writer = self.writers[index]
        if writer.phase is _Phase.THINKING:
            writer.started, writer.retries = self.clock.now, 0
        self._work(index, _Phase.READING, self.load.read_ms)

    def _phase_ended(self, index: int) -> None:
        writer = self.writers[index]
        if writer.phase is _Phase.READING:
            writer.head = self.head
            self._work(index, _Phase.PREPARING, self.load.prepare_ms)
        elif writer.phase is _Phase.PREPARING:
            self._work(index, _Phase.SWAPPING, self.load.swap_ms)
        elif writer.head == self.head:
            self.head += 1
            self._commit_ended(index, landed=True)
        elif writer.retries + 1 >= self.retry.tries:
            self._commit_ended(index, landed=False)
        else:
            wait = self.policy.wait_s(writer.retries, self.random.random(), self.retry)
            writer.retries += 1
            self._wait(index, self.clock.now + wait)

    def _commit_ended(self, index: int, *, landed: bool) -> None:
        writer = self.writers[index]
        self.samples.append(Sample(writer.retries, self.clock.now - writer.started, landed))
        writer.phase = _Phase.THINKING
        self._wait(index, self._next_start(writer))

    def _work(self, index: int, phase: _Phase, mean_ms: float) -> None:
        self.writers[index].phase = phase
        self.clock.running += 1
        self._push(self.running, self.clock.work + self._duration(mean_ms), index)

    def _wait(self, index: int, until: float) -> None:
        self._push(self.waiting, until, index)

    def _push(self, heap: list[tuple[float, int, int]], when: float, index: int) -> None:
        # The order of pushing breaks ties, so that equal times do not depend on the writers' numbers.
        self.order += 1
        heapq.heappush(heap, (when, self.order, index))

    def _duration(self, mean_ms: float) -> float:
        if self.load.variation == 0:
            return mean_ms / 1000
        return max(0.0, self.random.gauss(1.0, self.load.variation)) * mean_ms / 1000

    def _first_start(self) -> float:
        match self.load.arrivals:
            case "independent":
                return self._random_think()
            case "clockwork":
                return 0.0
            case "trigger":
                return self.random.random() * self.load.spread_s

    def _next_start(self, writer: _Writer) -> float:
        match self.load.arrivals:
            case "independent":
                return self.clock.now + self._random_think()
            case "clockwork":
                return self.clock.now + self.load.think_s
            case "trigger":
                return self._next_tick(writer)

    def _next_tick(self, writer: _Writer) -> float:
        # Ticks missed while the writer was busy are made up for by one immediate run, as by Spark's trigger.
        period = self.load.think_s
        writer.tick = max(writer.tick + period, math.floor(self.clock.now / period) * period)
        return max(self.clock.now, writer.tick + self.random.random() * self.load.spread_s)

    def _random_think(self) -> float:
        return self.random.expovariate(1 / self.load.think_s) if self.load.think_s else 0.0

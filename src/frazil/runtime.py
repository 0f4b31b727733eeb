"""The only access to clock, randomness, ids and sleep, so that a simulation can replace all of them at once."""

from __future__ import annotations

import contextlib
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

# Reads os.urandom each time: two forked children never draw the same numbers.
_SYSTEM_RANDOM = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Runtime:
    """The source of time, randomness and ids."""

    now_ms: Callable[[], int]
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]
    random: Callable[[], float]
    """Uniform in [0, 1)."""
    new_uuid: Callable[[], uuid.UUID]

    def new_snapshot_id(self) -> int:
        """A positive 63-bit number, as Iceberg requires."""
        return self.new_uuid().int >> 65 or 1

    def new_hex(self) -> str:
        return self.new_uuid().hex


SYSTEM = Runtime(
    now_ms=lambda: time.time_ns() // 1_000_000,
    monotonic=time.monotonic,
    sleep=time.sleep,
    random=_SYSTEM_RANDOM.random,
    new_uuid=uuid.uuid4,
)


_LAST_REQUEST_S = 1.0
"""What a request gets when the time is up: the caller still has to learn what became of its commit."""

_deadline: ContextVar[tuple[Runtime, float] | None] = ContextVar("deadline", default=None)


@contextlib.contextmanager
def within(runtime: Runtime, seconds: float | None) -> Iterator[None]:
    """Bound the waits inside that ask for ``patience``; None: they are not bounded."""
    before = _deadline.set(None if seconds is None else (runtime, runtime.monotonic() + seconds))
    try:
        yield
    finally:
        _deadline.reset(before)


def patience(seconds: float) -> float:
    """How long one request may wait: so long, or what is left of the time that its caller has."""
    found = _deadline.get()
    if found is None:
        return seconds
    runtime, end = found
    return min(seconds, max(_LAST_REQUEST_S, end - runtime.monotonic()))


RandomStream = random.Random


def seeded(seed: int | str) -> RandomStream:
    """A repeatable stream of random numbers for simulations: a seed gives the same numbers on every machine."""
    return random.Random(seed)

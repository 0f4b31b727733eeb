"""The only access to clock, randomness, ids and sleep, so that a simulation can replace all of them at once."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
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


RandomStream = random.Random


def seeded(seed: int | str) -> RandomStream:
    """A repeatable stream of random numbers for simulations: a seed gives the same numbers on every machine."""
    return random.Random(seed)

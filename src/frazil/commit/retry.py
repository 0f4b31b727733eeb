"""How long and how often a commit is retried. Lost races and transient faults have separate budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from frazil.errors import InvalidInput

_PROPERTIES = {
    "tries": "commit.retry.num-retries",
    "base_ms": "commit.retry.min-wait-ms",
    "cap_ms": "commit.retry.max-wait-ms",
    "total_s": "commit.retry.total-timeout-ms",
}


@dataclass(frozen=True, slots=True)
class Retry:
    """At most ``tries`` attempts, and ``fault_tries`` repeats after transient faults, within ``total_s`` seconds."""

    tries: int = 16
    base_ms: float = 50
    cap_ms: float = 2000
    total_s: float | None = None
    """None: no limit on the total time."""
    fault_tries: int = 5

    def __post_init__(self) -> None:
        whole = (self.tries, self.fault_tries)
        waits = (self.base_ms, self.cap_ms, 1 if self.total_s is None else self.total_s)
        if not all(type(each) is int for each in whole) or not all(_is_number(each) for each in waits):
            raise InvalidInput(f"Retry takes numbers, and integers for tries and fault_tries, not {self!r}")
        if self.tries < 1 or self.fault_tries < 0:
            raise InvalidInput(f"Retry needs at least one try, not tries={self.tries}, fault_tries={self.fault_tries}")
        if self.base_ms < 0 or self.cap_ms < 0 or (self.total_s is not None and self.total_s <= 0):
            raise InvalidInput("Retry's waits must not be negative, and total_s must be positive or None")

    @staticmethod
    def streaming() -> Retry:
        """Short waits: a micro-batch is small, and the next one follows soon."""
        return Retry(tries=8, base_ms=50, cap_ms=50)

    @staticmethod
    def backfill() -> Retry:
        """Many tries, as a failure would waste hours of work. Each wait is capped, the total time is not."""
        return Retry(tries=32, base_ms=50, cap_ms=60_000, total_s=None)

    @staticmethod
    def none() -> Retry:
        """One attempt. An unknown outcome is still resolved."""
        return Retry(tries=1, base_ms=0, cap_ms=0, fault_tries=0)

    def wait_s(self, n: int, random: float) -> float:
        """The wait before retry ``n`` (from 0), with ``random`` in [0, 1): min(base · 2^n, cap) · (0.5 + random)."""
        return min(self.base_ms * 2.0 ** min(n, 64), self.cap_ms) * (0.5 + random) / 1000


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def from_properties(properties: Mapping[str, str]) -> Retry:
    """The table's ``commit.retry.*`` over the defaults."""
    found: dict[str, float] = {}
    for field, key in _PROPERTIES.items():
        if (text := properties.get(key)) is None:
            continue
        try:
            found[field] = int(text)
        except ValueError:
            raise InvalidInput(f"The table property {key} must be a whole number, not {text!r}") from None
    default = Retry()
    return Retry(
        tries=int(found["tries"]) + 1 if "tries" in found else default.tries,
        base_ms=found.get("base_ms", default.base_ms),
        cap_ms=found.get("cap_ms", default.cap_ms),
        total_s=found["total_s"] / 1000 if "total_s" in found else default.total_s,
    )

"""The values of the backoff lab: how writers wait, how they load a table, and the results."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import orjson

from frazil.commit.retry import Retry
from frazil.errors import InvalidInput

Mode = Literal["virtual", "processes"]
Arrivals = Literal["independent", "clockwork", "trigger"]
ARRIVALS: tuple[Arrivals, ...] = ("independent", "clockwork", "trigger")


class Policy(enum.StrEnum):
    """How long the loser of a race waits before its next attempt."""

    LINEAR = "linear"
    EXPONENTIAL = "exponential"
    JITTER = "jitter"
    """Exponential with jitter: what Frazil does."""

    def wait_s(self, n: int, random: float, retry: Retry) -> float:
        """The wait before repeat ``n`` (from 0), with ``random`` in [0, 1)."""
        match self:
            case Policy.LINEAR:
                return min(retry.base_ms * (n + 1), retry.cap_ms) / 1000
            case Policy.EXPONENTIAL:
                # Retry's own formula at the middle of its jitter, so that both policies wait equally long on average.
                return retry.wait_s(n, 0.5)
            case Policy.JITTER:
                return retry.wait_s(n, random)


@dataclass(frozen=True, slots=True)
class Load:
    """The writers' times between and during attempts: means, in milliseconds unless the name ends in _s."""

    writers: int = 30
    commits: int = 6000
    """Of all writers together, per policy."""
    think_s: float = 1.4
    """From one commit's end to the next one's start (writing data files, waiting for input)."""
    arrivals: Arrivals = "clockwork"
    """``independent``: think times are random (exponential), as of unrelated writers.
    ``clockwork``: every think time is the same and all writers begin at once, so that only waiting separates them.
    ``trigger``: all writers start on one clock every ``think_s``, each within ``spread_s`` of the tick."""
    spread_s: float = 0.25
    read_ms: float = 4.0
    prepare_ms: float = 36.0
    swap_ms: float = 6.0
    variation: float = 0.02
    """Standard deviation of the three durations, as a share of their mean."""
    slots: float | None = None
    """How many attempts the machine serves at full speed; more share it equally. None: no limit."""

    def __post_init__(self) -> None:
        if self.writers < 1 or self.commits < 1:
            raise InvalidInput(f"The lab needs writers and commits, not {self.writers} and {self.commits}")
        durations = (self.think_s, self.spread_s, self.read_ms, self.prepare_ms, self.swap_ms, self.variation)
        if min(durations) < 0 or (self.slots is not None and self.slots <= 0):
            raise InvalidInput("The lab's times must not be negative, and slots must be positive or None")
        if self.arrivals not in ARRIVALS:
            raise InvalidInput(f"Arrivals are {', '.join(ARRIVALS)}, not {self.arrivals!r}")
        if self.arrivals == "trigger" and self.think_s == 0:
            raise InvalidInput("Writers on a trigger need a period: give think_s above 0")


@dataclass(frozen=True, slots=True)
class Sample:
    """One commit, as its writer measured it."""

    retries: int
    seconds: float
    landed: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One policy under one load. Shares are of all commits tried, between 0 and 1."""

    policy: str
    arrivals: str
    think_s: float
    commits: int
    failures: int
    retry_rate: float
    """Commits that needed at least one retry."""
    mean_retries: float
    """Per commit, those without a retry included."""
    mean_retries_of_retried: float
    """Per commit that was retried at all: what the published figures count (docs/lab-backoff.md)."""
    over_4: float
    at_least_8: float
    max_retries: int
    lost_attempts: float
    """Share of all attempts that lost."""
    p50_ms: float
    p99_ms: float
    per_second: float


@dataclass(frozen=True, slots=True)
class Published:
    """The published figures of the experiment that the lab repeats. None: not stated."""

    retry_rate: float
    mean_retries_of_retried: float | None
    at_least_8: float | None
    over_4: float | None

    def text(self) -> str:
        parts = [f"{self.retry_rate:.0%} retried"]
        if self.mean_retries_of_retried is not None:
            parts.append(f"{self.mean_retries_of_retried:g} retries each")
        if self.at_least_8 is not None:
            parts.append(f"{self.at_least_8:.1%} with 8 or more")
        return ", ".join(parts)


def _text(row: Row) -> str:
    return (
        f"{row.retry_rate:.0%} retried, {row.mean_retries_of_retried:.2f} retries each, "
        f"{row.at_least_8:.1%} with 8 or more"
    )


PUBLISHED: dict[str, Published] = {
    Policy.LINEAR: Published(0.35, 4.1, None, None),
    Policy.EXPONENTIAL: Published(0.22, None, 0.012, None),
    Policy.JITTER: Published(0.06, 1.04, 0.0, 0.0),
}


@dataclass(frozen=True, slots=True)
class LabReport:
    """``rows``: each policy under the load asked for.

    ``sweep``: each under every pattern of arrivals and several think times, to show which load gives which figures
    (virtual mode only).
    """

    mode: Mode
    seed: int
    load: Load
    retry: Retry
    rows: tuple[Row, ...]
    sweep: tuple[Row, ...] = ()
    histograms: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Per policy, how many commits of ``rows`` needed 0, 1, 2, … retries."""

    def row(self, policy: str) -> Row:
        return next(row for row in self.rows if row.policy == policy)

    def closest(self, policy: str, arrivals: str) -> Row | None:
        """The row of the sweep whose retry rate is nearest to the published one; None without a sweep."""
        wanted = PUBLISHED[policy].retry_rate
        rows = [row for row in self.sweep if row.policy == policy and row.arrivals == arrivals]
        return min(rows, key=lambda row: abs(row.retry_rate - wanted), default=None)

    def comparison(self) -> tuple[str, ...]:
        """A sentence for each policy that was run: published, found here, and under which load the rate is found."""
        return tuple(self._compared(row) for row in self.rows)

    def _compared(self, row: Row) -> str:
        published = PUBLISHED[row.policy]
        parts = [f"{row.policy}: published {published.text()}; here {_text(row)}"]
        for arrivals in ARRIVALS:
            near = self.closest(row.policy, arrivals)
            if near is not None:
                parts.append(f"nearest with {arrivals} arrivals, think time {near.think_s:g} s: {_text(near)}")
        return "; ".join(parts)

    def to_json(self) -> str:
        plain: dict[str, Any] = asdict(self)
        plain["published"] = {str(policy): asdict(figures) for policy, figures in PUBLISHED.items()}
        return orjson.dumps(plain, option=orjson.OPT_INDENT_2).decode()


def summarise(policy: str, load: Load, samples: Sequence[Sample], elapsed_s: float) -> Row:
    """The figures of one run."""
    if not samples:
        raise InvalidInput(f"No commit was tried under {policy}: there is nothing to report")
    total = len(samples)
    retries = sum(sample.retries for sample in samples)
    retried = sum(sample.retries > 0 for sample in samples)
    landed = [sample for sample in samples if sample.landed]
    lost = retries + (total - len(landed))
    latencies = sorted(sample.seconds * 1000 for sample in landed)
    return Row(
        policy=str(policy),
        arrivals=load.arrivals,
        think_s=load.think_s,
        commits=total,
        failures=total - len(landed),
        retry_rate=retried / total,
        mean_retries=retries / total,
        mean_retries_of_retried=retries / retried if retried else 0.0,
        over_4=sum(sample.retries > 4 for sample in samples) / total,
        at_least_8=sum(sample.retries >= 8 for sample in samples) / total,
        max_retries=max(sample.retries for sample in samples),
        lost_attempts=lost / (retries + total),
        p50_ms=percentile(latencies, 0.50),
        p99_ms=percentile(latencies, 0.99),
        per_second=len(landed) / elapsed_s if elapsed_s > 0 else 0.0,
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of ascending values; 0 when there are none."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def histogram(samples: Sequence[Sample]) -> tuple[int, ...]:
    counts = [0] * (max((sample.retries for sample in samples), default=0) + 1)
    for sample in samples:
        counts[sample.retries] += 1
    return tuple(counts)

"""Runs many seeds in several processes and reports totals, faults, and every seed that broke a rule."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from frazil.runtime import SYSTEM
from frazil_verification.simulator.actors import of_the_bank
from frazil_verification.simulator.lake import CatalogKind
from frazil_verification.simulator.run import REDONE, Result, simulate
from frazil_verification.simulator.world import Case

OnProgress = Callable[[int, int, str], None]
_CHUNK = 10
_MOST_FAILURES = 20
"""A campaign stops after so many failed seeds."""

_UPKEEP = (
    "appender",
    "undoer",
    "janitor",
    "updater",
    "deleter",
    "transactor",
    "overwriter",
    "ledger keeper",
    "compactor",
)
SCENES: Mapping[str, Case] = {
    "usual": Case(0),
    "storm": Case(0, severity=4.0),
    "rush": Case(0, severity=5.0, actors=("appender",)),
    "rest": Case(0, catalog=CatalogKind.REST),
    "glue": Case(0, catalog=CatalogKind.GLUE),
    "siege": Case(0, severity=5.0, actors=("schema changer", "appender"), catalog=CatalogKind.REST),
    "upkeep": Case(0, steps=150, actors=(*_UPKEEP, "streamer", "upserter", "pinned reader", "foreign writer")),
    "undo": Case(0, actors=("updater", "undoer", "deleter", "appender")),
    "oblivion": Case(0, severity=2.0, actors=_UPKEEP, catalog=CatalogKind.REST),
    "bank": Case(0, steps=60, actors=of_the_bank()),
    "bank in a storm": Case(0, steps=60, severity=4.0, actors=of_the_bank()),
}
"""Kinds of runs: as usual; more faults; appends that share snapshots while everything breaks; on third-party catalogs;
then with streams, rollbacks and snapshot expiry, also on third-party catalogs; transactions over several tables."""


@dataclass(frozen=True, slots=True)
class Report:
    """``digest``: of the histories of all seeds; the same for the same arguments, whatever the number of jobs."""

    seeds: int
    commits: int
    snapshots: int
    reads: int
    elapsed_s: float
    digest: str
    faults: Counter[str]
    outcomes: Counter[str]
    failures: tuple[Result, ...] = ()

    @property
    def redone(self) -> int:
        """How many statements landed as they were evaluated again."""
        return sum(count for name, count in self.outcomes.items() if name.endswith(f" {REDONE}"))

    @property
    def seeds_per_s(self) -> float:
        return self.seeds / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def commits_per_s(self) -> float:
        return self.commits / self.elapsed_s if self.elapsed_s else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "commits": self.commits,
            "snapshots": self.snapshots,
            "reads": self.reads,
            "redone": self.redone,
            "elapsed_s": round(self.elapsed_s, 1),
            "seeds_per_s": round(self.seeds_per_s, 2),
            "commits_per_s": round(self.commits_per_s, 1),
            "digest": self.digest,
            "faults": dict(self.faults.most_common()),
            "outcomes": dict(sorted(self.outcomes.items())),
            "violations": [failure_json(each) for each in self.failures],
        }


@dataclass(slots=True)
class _Sum:
    seeds: int = 0
    commits: int = 0
    snapshots: int = 0
    reads: int = 0
    digests: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.commits += result.commits
        self.snapshots += result.snapshots
        self.reads += result.reads
        self.digests.append(result.digest)
        self.faults += result.faults
        self.outcomes += result.outcomes
        if result.violations:
            self.failures.append(result)

    def join(self, other: _Sum) -> None:
        self.seeds += other.seeds
        self.commits += other.commits
        self.snapshots += other.snapshots
        self.reads += other.reads
        self.digests += other.digests
        self.faults += other.faults
        self.outcomes += other.outcomes
        self.failures += other.failures


def campaign(first: Case, seeds: int, jobs: int = 1, on_progress: OnProgress | None = None) -> Report:
    """Run the case with its seed and the ``seeds - 1`` that follow."""
    began = SYSTEM.monotonic()
    total = _Sum()
    for part in _parts(first, seeds, jobs):
        total.join(part)
        if on_progress is not None:
            on_progress(total.seeds, seeds, f"{total.commits} commits, {len(total.failures)} seeds with a violation")
        if len(total.failures) >= _MOST_FAILURES:
            break
    return Report(
        seeds=total.seeds,
        commits=total.commits,
        snapshots=total.snapshots,
        reads=total.reads,
        elapsed_s=SYSTEM.monotonic() - began,
        digest=hashlib.sha256("".join(total.digests).encode()).hexdigest(),
        faults=total.faults,
        outcomes=total.outcomes,
        failures=tuple(total.failures),
    )


def _parts(first: Case, seeds: int, jobs: int) -> Iterator[_Sum]:
    chunks = [
        (replace(first, seed=start), min(_CHUNK, first.seed + seeds - start))
        for start in range(first.seed, first.seed + seeds, _CHUNK)
    ]
    if jobs <= 1:
        yield from (_chunk(*each) for each in chunks)
        return
    # Spawned: workers must not inherit open resources of this process.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        try:
            yield from pool.map(_chunk, *zip(*chunks, strict=True))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _chunk(first: Case, seeds: int) -> _Sum:
    # A table of three rows is read faster without threads.
    pa.set_cpu_count(1)
    found = _Sum()
    for seed in range(first.seed, first.seed + seeds):
        found.add(simulate(replace(first, seed=seed)))
    return found


def failure_json(failure: Result) -> dict[str, Any]:
    return {
        "case": failure.case.to_json(),
        "rules": sorted({each.rule for each in failure.violations}),
        "what": [str(each) for each in failure.violations],
        "last_events": list(failure.last_events),
    }

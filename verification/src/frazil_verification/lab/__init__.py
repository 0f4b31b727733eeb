"""``frazil lab backoff``: many writers on one table, one backoff policy after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from frazil.commit.retry import Retry
from frazil.errors import InvalidInput
from frazil_verification.lab.model import (
    ARRIVALS,
    PUBLISHED,
    Arrivals,
    LabReport,
    Load,
    Mode,
    Policy,
    Published,
    Row,
    Sample,
    histogram,
    percentile,
    summarise,
)
from frazil_verification.lab.plots import plot
from frazil_verification.lab.virtual import simulate

__all__ = [
    "ARRIVALS",
    "PUBLISHED",
    "SWEEP_THINK_S",
    "Arrivals",
    "LabReport",
    "Load",
    "Policy",
    "Published",
    "Row",
    "Sample",
    "backoff",
    "histogram",
    "percentile",
    "plot",
    "simulate",
    "summarise",
]

Progress = Callable[[int, int, str], None]

SWEEP_THINK_S = (0.0, 0.1, 0.25, 0.5, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0)
_SWEEP_COMMITS = 3000
_PROCESS_COMMITS = 300


def backoff(
    writers: int = 30,
    commits: int | None = None,
    policies: Sequence[str] = tuple(Policy),
    mode: Mode = "virtual",
    seed: int = 1,
    on_progress: Progress | None = None,
    *,
    load: Load | None = None,
    retry: Retry | None = None,
    sweep: bool = True,
) -> LabReport:
    """Race ``writers`` under each policy until ``commits`` commits were tried (6000 virtual, 300 by real processes).

    ``mode="virtual"`` runs on a virtual clock, the same for the same seed. ``mode="processes"`` starts real processes
    on a SQLite lake in a temporary folder. ``load`` gives everything else: think time, arrivals, durations; ``writers``
    and ``commits`` replace its own. ``on_progress(done, total, what)`` is called after each step.
    """
    chosen = _policies(policies)
    if mode not in ("virtual", "processes"):
        raise InvalidInput(f"The lab's mode is virtual or processes, not {mode!r}")
    base = load or Load(think_s=0.5, arrivals="clockwork") if mode == "processes" else load or Load()
    default_commits = _PROCESS_COMMITS if mode == "processes" else base.commits
    base = replace(base, writers=writers, commits=default_commits if commits is None else commits)
    tell = on_progress or (lambda _done, _total, _what: None)
    if mode == "processes":
        return _with_processes(chosen, base, retry or Retry(), seed, tell)
    return _on_virtual_clock(chosen, base, retry or Retry(), seed, tell, sweep)


def _policies(names: Sequence[str]) -> tuple[Policy, ...]:
    known = {str(policy) for policy in Policy}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise InvalidInput(
            f"{unknown[0]!r} is not a backoff policy" if unknown else "The lab needs at least one policy",
            advice=f"Choose among {', '.join(Policy)}",
        )
    return tuple(Policy(name) for name in names)


def _on_virtual_clock(
    policies: tuple[Policy, ...], load: Load, retry: Retry, seed: int, tell: Progress, sweep: bool
) -> LabReport:
    points = _sweep_loads(load) if sweep else []
    total = len(policies) * (1 + len(points))
    rows, swept, histograms = [], [], {}
    for policy in policies:
        samples, elapsed = simulate(policy, load, retry, seed)
        rows.append(summarise(policy, load, samples, elapsed))
        histograms[str(policy)] = histogram(samples)
        tell(len(rows), total, f"{policy}: {load.commits} commits")
    for point in points:
        for policy in policies:
            swept.append(summarise(policy, point, *simulate(policy, point, retry, seed)))
            tell(len(rows) + len(swept), total, f"{policy}, {point.arrivals}, think time {point.think_s:g} s")
    return LabReport("virtual", seed, load, retry, tuple(rows), tuple(swept), histograms)


def _sweep_loads(load: Load) -> list[Load]:
    """Every pattern of arrivals under every think time; a trigger cannot have a period of zero."""
    return [
        replace(load, arrivals=arrivals, think_s=think_s, commits=min(load.commits, _SWEEP_COMMITS))
        for arrivals in ARRIVALS
        for think_s in SWEEP_THINK_S
        if think_s or arrivals != "trigger"
    ]


def _with_processes(policies: tuple[Policy, ...], load: Load, retry: Retry, seed: int, tell: Progress) -> LabReport:
    # Opens catalogs and starts processes, which the virtual clock does not need.
    from frazil_verification.lab.processes import race

    rows, histograms = [], {}
    for policy in policies:
        samples, elapsed = race(policy, load, retry, seed)
        rows.append(summarise(policy, load, samples, elapsed))
        histograms[str(policy)] = histogram(samples)
        tell(len(rows), len(policies), f"{policy}: {len(samples)} commits by {load.writers} processes")
    return LabReport("processes", seed, load, retry, tuple(rows), (), histograms)

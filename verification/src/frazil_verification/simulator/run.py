"""One seed: run it, check it, and report the result."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from frazil_verification.simulator.across import judge
from frazil_verification.simulator.oracle import Violation
from frazil_verification.simulator.records import Records
from frazil_verification.simulator.world import Case, World

LINES_SHOWN = 60
REDONE = "redone"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run. Equal cases have equal digests, in every process and at any time."""

    case: Case
    digest: str
    commits: int
    snapshots: int
    reads: int
    switches: int
    virtual_s: float
    faults: Counter[str]
    outcomes: Counter[str]
    """How often each verb had each outcome, and how often it committed what it had evaluated again."""
    violations: tuple[Violation, ...] = ()
    last_events: tuple[str, ...] = field(default=(), repr=False)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Lost races and conflicts are normal in a run; its result has what matters."""
    loggers = [logging.getLogger(name) for name in ("frazil", "frazil.commit")]
    before = [each.disabled for each in loggers]
    for each in loggers:
        each.disabled = True
    try:
        yield
    finally:
        for each, was in zip(loggers, before, strict=True):
            each.disabled = was


def _outcomes(records: Records) -> Counter[str]:
    found = Counter(f"{each.step.verb} {each.outcome.value}" for each in records.writes)
    found.update(f"{each.step.verb} {REDONE}" for each in records.writes if each.is_redone)
    found.update(f"{each.kind} {each.outcome.value}" for each in records.joint)
    return found


def simulate(case: Case) -> Result:
    """Run one case."""
    with _quiet():
        world = World(case)
        try:
            world.run()
            last = world.files.there.get(world.database.moves[-1].location)
            world.journal.seal(b"" if last is None else last.data)
            found = judge(world)
        finally:
            world.database.close()
    return Result(
        case=case,
        digest=world.journal.digest,
        commits=found.commits,
        snapshots=found.snapshots,
        reads=found.reads,
        switches=world.schedule.switches,
        virtual_s=world.schedule.now,
        faults=world.journal.faults,
        outcomes=_outcomes(world.records),
        violations=tuple(found.violations),
        last_events=tuple(world.journal.lines)[-LINES_SHOWN:] if found.violations else (),
    )

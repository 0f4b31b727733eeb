"""One process, many open transactions: a seed decides which takes the next step, so every run can be repeated.

A schedule is a list of session names; each mention takes that session one step further. A history that the model
refuses is shrunk: sessions are left out as long as the rest still goes wrong in the same way.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import frazil
from concurrency.histories.model import LAYOUTS, Layout
from concurrency.histories.records import Record
from concurrency.histories.replay import Verdict, replay
from concurrency.histories.sessions import Session, create_table, remains

OPEN = 6
"""How many sessions are under way at once."""
LONGEST = 8
"""More steps than any program has. Naming a session that has finished does nothing."""

Schedule = Sequence[str]
OpenLake = Callable[[], AbstractContextManager[frazil.Lake]]
"""A fresh, empty lake for each run."""


@dataclass(frozen=True)
class Run:
    """What a schedule came to."""

    schedule: Schedule
    """As far as it was followed."""
    records: tuple[Record, ...]
    verdict: Verdict
    trace: tuple[str, ...]
    """What happened, line by line."""


def layout_of(seed: int) -> Layout:
    return LAYOUTS[seed % len(LAYOUTS)]


def schedule_of(seed: int, sessions: int) -> list[str]:
    """Steps of the sessions are interleaved; then each session is named often enough to finish."""
    chance = random.Random(f"schedule-{seed}")
    waiting = [f"{seed}-{number}" for number in reversed(range(sessions))]
    under_way: dict[str, int] = {}
    schedule: list[str] = []
    while waiting or under_way:
        if waiting and len(under_way) < OPEN:
            under_way[waiting.pop()] = chance.choice((1, 2, 3, 4, 6))
        name = chance.choice(list(under_way))
        under_way[name] -= 1
        schedule.append(name)
        if under_way[name] == 0:
            del under_way[name]
            schedule += [name] * LONGEST
    return schedule


def run(schedule: Sequence[str], layout: Layout, open_lake: OpenLake, *, every: int = 1) -> Run:
    """Follow a schedule to its end, or to a crash, and replay what happened."""
    with open_lake() as lake:
        create_table(lake, layout)
        play = _Play(lake, layout)
        followed = [name for name in itertools.takewhile(lambda _: not play.crashed, schedule) if play.advance(name)]
        play.close()
        verdict = replay(play.records, remains(lake), layout, every=every)
        return Run(followed, tuple(play.records), verdict, tuple(play.trace))


class _Play:
    def __init__(self, lake: frazil.Lake, layout: Layout) -> None:
        self.records: list[Record] = []
        self.trace: list[str] = []
        self.crashed = False
        self._lake = lake
        self._layout = layout
        self._sessions: dict[str, Session | None] = {}
        """None: finished."""
        self._ticks = itertools.count()

    def advance(self, name: str) -> bool:
        """False: that session has finished before."""
        if name not in self._sessions:
            clock = lambda: float(next(self._ticks))  # noqa: E731
            self._sessions[name] = Session(self._lake, self._layout, name, clock, delays=True)
        session = self._sessions[name]
        if session is None:
            return False
        record = session.advance()
        if record is None:
            self.trace.append(f"{name:>8} {session.steps[-1]}")
            return True
        step = "commit" if record.transaction else str(record.steps[0])
        self.trace.append(f"{name:>8} {step} => {record.outcome} {record.snapshot_id or ''}".rstrip())
        if record.checks or record.outcome == "crashed":
            self.trace.append(f"{'':>8} {record.detail}")
        self.records.append(record)
        self._sessions[name] = None
        self.crashed = record.outcome == "crashed"
        return True

    def close(self) -> None:
        for session in self._sessions.values():
            if session is not None:
                session.abandon()


def shrunk(found: Run, layout: Layout, open_lake: OpenLake, *, tries: int = 200) -> Run:
    """The shortest run found that fails in the same way: later steps are cut off, then sessions are left out."""
    attempts = itertools.count()

    def still_wrong(schedule: Schedule) -> Run | None:
        if next(attempts) >= tries or not schedule:
            return None
        again = run(schedule, layout, open_lake)
        return again if _kind(again) == _kind(found) else None

    found = still_wrong(_until_culprit(found)) or found
    size = max(1, len(set(found.schedule)) // 2)
    while size:
        names = list(dict.fromkeys(found.schedule))
        for start in range(0, len(names), size):
            left_out = set(names[start : start + size])
            found = still_wrong([name for name in found.schedule if name not in left_out]) or found
        size //= 2
    return found


def _kind(run_: Run) -> str | None:
    return run_.verdict.divergence.kind if run_.verdict.divergence is not None else None


def _until_culprit(found: Run) -> Schedule:
    """The schedule up to the last step of the session whose record diverged."""
    divergence = found.verdict.divergence
    if divergence is None or divergence.record is None or divergence.record.id not in found.schedule:
        return found.schedule
    last = len(found.schedule) - 1 - list(reversed(found.schedule)).index(divergence.record.id)
    return found.schedule[: last + 1]

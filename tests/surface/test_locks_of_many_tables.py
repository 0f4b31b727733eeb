"""The commit locks of a transaction over several tables are hints: one that is never released does not stop it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

import frazil
from frazil.commit.context import Phase
from frazil.model import Ident
from frazil.transaction import Course, Transaction

NAMES = ("s.a", "s.b", "s.c")


@dataclass(slots=True)
class Clock:
    """Time that passes only where a writer sleeps."""

    now: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def lake() -> Iterator[frazil.Lake]:
    with frazil.connect("memory://") as lake:
        lake.create_namespace("s")
        for name in NAMES:
            lake.create_table(name, "id bigint not null").append([{"id": 1}])
        yield lake


def committed_after_a_lost_race(lake: frazil.Lake) -> Clock:
    """A transaction over all tables that has lost a race, and so asks for their locks; the time that it waited."""
    clock, elsewhere = Clock(), [lake.table("s.a")]

    def on_phase(phase: Phase, _attempt: int) -> None:
        if phase is Phase.PREPARED and elsewhere:
            elsewhere.pop().append([{"id": 2}])

    course = Course(before_pin=lambda _ident: None, on_phase=on_phase, is_named=True)
    lake.runtime = replace(lake.runtime, monotonic=lambda: clock.now, sleep=clock.sleep)
    transaction = Transaction(lake, isolation="serializable", retry=None, commit_id=None, course=course)
    for name in NAMES:
        transaction.table(name).append([{"id": 3}])
    transaction.commit()
    for name in NAMES:
        assert 3 in lake.table(name).scan().to_arrow()["id"].to_pylist()
    return clock


def test_p40_locks_that_a_dead_writer_holds_are_waited_for_once(lake: frazil.Lake) -> None:
    locks = lake.catalog.locks
    assert locks is not None
    releases = [locks.try_lock(Ident.parse(name)) for name in NAMES]
    assert all(releases)
    clock = committed_after_a_lost_race(lake)
    assert 1.0 < clock.now < 3.0


def test_p40_free_locks_are_not_waited_for(lake: frazil.Lake) -> None:
    assert committed_after_a_lost_race(lake).now < 1.0

"""kill -9 of expiry, orphan removal and erasure at every phase: nothing is lost, nothing comes back, nothing remains.

``make services`` runs it for many rounds: FRAZIL_TEST_ROUNDS.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import frazil
from frazil.services.context import DeletionPhase
from surface.disk import FUTURE, NAME, change_much, files, filled, ids, named, stray

ROUNDS = int(os.environ.get("FRAZIL_TEST_ROUNDS", "1"))
ALIVE = [1, 3, 4, 5]


def killed_in(work: Callable[[], object]) -> bool:
    """Whether a process of its own was killed in the middle of it."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def at(phase: DeletionPhase) -> Callable[[DeletionPhase], None]:
    def kill(reached: DeletionPhase) -> None:
        if reached is phase:
            os.kill(os.getpid(), signal.SIGKILL)

    return kill


@pytest.fixture(params=["sqlite", "postgres"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[frazil.Lake]:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    if request.param == "postgres":
        uri = request.getfixturevalue("postgres_uri")
    with frazil.connect(uri, warehouse=f"file://{tmp_path}/warehouse") as found:
        found.create_namespace("s")
        yield found


def test_services_outlive_kills_at_every_phase(lake: frazil.Lake) -> None:
    chance = random.Random(20_26)
    kills = 0
    for _ in range(ROUNDS):
        phases = list(DeletionPhase)
        chance.shuffle(phases)
        for phase in phases:
            table = filled(lake)
            change_much(table)
            kills += killed_in(lambda: table.expire_snapshots(FUTURE, on_phase=at(phase)))  # noqa: B023
            assert ids(table) == ALIVE
            stray(lake, table)
            kills += killed_in(
                lambda: table.remove_orphans(dt.timedelta(0), dry_run=False, on_phase=at(phase))  # noqa: B023
            )
            assert ids(table) == ALIVE
            table.append([{"id": 9, "v": "later"}])
            table.expire_snapshots(FUTURE)
            table.remove_orphans(dt.timedelta(0), dry_run=False)
            assert ids(table) == [*ALIVE, 9]
            assert files(lake, table) == named(lake)
            log = lake.catalog.deletions
            assert log is not None
            left = {each.path for each in log.noted(table.uuid, "", 1000)}
            assert not any(os.path.exists(path.removeprefix("file://")) for path in left)
            lake.drop_table(NAME, purge=True)
    assert kills >= ROUNDS * len(DeletionPhase), "too few kills to prove anything"

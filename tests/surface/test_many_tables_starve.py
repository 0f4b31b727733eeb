"""Transactions beside a stream of commits to one of their tables: neither keeps the other from committing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import frazil
from surface.three_tables import DATABASES, NAMES, row, three_tables, values


@pytest.fixture(params=DATABASES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[frazil.Lake]:
    with three_tables(request, tmp_path, request.param) as lake:
        yield lake


@contextmanager
def stream(commits: Sequence[Callable[[int], object]]) -> Iterator[list[int]]:
    """Each is called again and again, in a thread of its own, until the block ends. How often, it says afterwards."""
    ends, counts = threading.Event(), [0] * len(commits)
    began = threading.Barrier(len(commits) + 1)

    def work(number: int) -> None:
        commits[number](number)
        counts[number] = 1
        began.wait(120)
        while not ends.is_set():
            commits[number](1_000 * counts[number] + number)
            counts[number] += 1

    with ThreadPoolExecutor(len(commits)) as pool:
        running = [pool.submit(work, number) for number in range(len(commits))]
        try:
            began.wait(120)
            yield counts
        finally:
            ends.set()
        for each in running:
            each.result()


def transact(lake: frazil.Lake, key: int) -> None:
    """Writes to two tables and depends on a third."""
    with lake.transaction() as tx:
        assert tx.table("s.c").scan(where="id = -1").count() == 0
        for name in ("s.a", "s.b"):
            tx.table(name).append([row(-10 - key, 1)])


def append(lake: frazil.Lake, name: str, key: int) -> None:
    lake.table(name).append([row(100 + key, 0)])


@pytest.mark.timeout(300)
def test_p40_appends_to_its_tables_do_not_starve_a_transaction(lake: frazil.Lake) -> None:
    """All tables move all the time, the one that is only read as well; sixteen tries are enough."""
    with stream([partial(append, lake, name) for name in NAMES]) as counts:
        for key in range(4):
            transact(lake, key)
    assert [sum(key < 0 for key in values(lake, name)) for name in NAMES] == [4, 4, 0]
    assert [len(values(lake, name)) for name in NAMES] == [
        2 + each + more for each, more in zip(counts, (4, 4, 0), strict=True)
    ]


@pytest.mark.timeout(300)
def test_p40_transactions_do_not_starve_appends_to_their_tables(lake: frazil.Lake) -> None:
    with stream([partial(transact, lake)] * 3) as counts:
        for key in range(4):
            append(lake, "s.a", key)
            append(lake, "s.c", key)
    assert sum(key >= 100 for key in values(lake, "s.a")) == 4
    assert sum(key >= 100 for key in values(lake, "s.c")) == 4
    assert sum(key < 0 for key in values(lake, "s.b")) == sum(counts)

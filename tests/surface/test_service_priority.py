"""Commits of services yield to every writer, and are not starved (rule P44)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

import frazil
from frazil.catalog.base import RESERVATION, QueuedCommit, Release
from frazil.commit import coordination
from frazil.commit.context import OnPhase, Phase
from frazil.commit.queued_writer import contention_of, place_of
from frazil.model import Ident
from frazil.runtime import SYSTEM

EVENTS = Ident.parse("s.events")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[frazil.Lake]:
    if request.param == "postgres":
        uri, warehouse = request.getfixturevalue("postgres_uri"), str(tmp_path / "warehouse")
    else:
        uri, warehouse = "memory://" if request.param == "memory" else str(tmp_path / "lake"), None
    with frazil.connect(uri, warehouse=warehouse) as lake:
        lake.create_namespace("s")
        table = lake.create_table("s.events", "id bigint not null, v bigint")
        for key in range(3):
            table.append([{"id": key, "v": 0}])
        yield lake


def place(lake: frazil.Lake) -> str:
    return place_of(lake.catalog.name, EVENTS, lake.catalog.load(EVENTS).metadata.uuid)


def lock(lake: frazil.Lake) -> Release:
    """The commit lock, which a leader holds; and this process has seen other writers."""
    locks, queue = lake.catalog.locks, lake.catalog.queue
    assert locks is not None
    assert queue is not None
    contention_of(queue).saw_others(place(lake), SYSTEM.monotonic() + 600)
    release = locks.try_lock(EVENTS)
    assert release is not None
    return release


def reaching(phase: Phase) -> tuple[threading.Event, OnPhase]:
    reached = threading.Event()

    def on_phase(each: Phase, _attempt: int) -> None:
        if each is phase:
            reached.set()

    return reached, on_phase


def compact(lake: frazil.Lake, on_phase: OnPhase) -> frazil.Commit:
    return lake.table("s.events").compact(on_phase=on_phase)


def delete(lake: frazil.Lake, on_phase: OnPhase) -> frazil.Commit:
    """Of rows that the compaction does not have: it waits with a reservation."""
    return lake.table("s.events").delete("id = 10", on_phase=on_phase)


def append(lake: frazil.Lake, key: int, on_phase: OnPhase) -> frazil.Commit:
    return lake.table("s.events").append([{"id": key, "v": 1}], on_phase=on_phase)


def test_p44_the_commit_of_a_service_comes_after_the_writers_that_wait(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "YIELD_S", 600.0)
    writers: list[Callable[[OnPhase], frazil.Commit]] = [partial(append, lake, key) for key in (11, 12)]
    with ThreadPoolExecutor(4) as pool, ExitStack() as stack:
        stack.callback(lock(lake))
        yields, on_yield = reaching(Phase.YIELDING)
        service = pool.submit(compact, lake, on_yield)
        assert yields.wait(60)
        waiting = []
        for writer in writers:
            queued, on_queued = reaching(Phase.QUEUED)
            waiting.append(pool.submit(writer, on_queued))
            assert queued.wait(60)
        assert lake.catalog.queue is not None
        assert lake.catalog.queue.count(place(lake)) == 2, "the service is not in the queue"
        stack.close()
        numbers = [each.result().sequence_number for each in waiting]
        done = service.result()
    assert done.sequence_number > max(numbers)
    assert done.changed
    assert sorted(row["id"] for row in lake.table("s.events").scan().to_arrow().to_pylist()) == [0, 1, 2, 11, 12]


def test_p44_a_writer_that_leads_itself_goes_first_as_well(lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordination, "YIELD_S", 600.0)
    lake.table("s.events").append([{"id": key, "v": 1} for key in (10, 11)])
    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        stack.callback(lock(lake))
        yields, on_yield = reaching(Phase.YIELDING)
        service = pool.submit(compact, lake, on_yield)
        assert yields.wait(60)
        queued, on_queued = reaching(Phase.QUEUED)
        writer = pool.submit(delete, lake, on_queued)
        assert queued.wait(60)
        stack.close()
        assert service.result().sequence_number > writer.result().sequence_number
    assert sorted(row["id"] for row in lake.table("s.events").scan().to_arrow().to_pylist()) == [0, 1, 2, 11]


@pytest.mark.parametrize("verb", ["compact", "expire"])
def test_p44_writers_that_never_pause_do_not_starve_a_service(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(coordination, "YIELD_S", 0.2)
    table, queue = lake.table("s.events"), lake.catalog.queue
    assert queue is not None
    ghost = QueuedCommit("ghost", table.uuid, "c", RESERVATION, b"", "", place(lake))
    queue.put(ghost, 600_000)
    contention_of(queue).saw_others(place(lake), SYSTEM.monotonic() + 600)
    if verb == "compact":
        assert table.compact().files_removed == 3
    else:
        table.expire_snapshots(older_than=SYSTEM.now_ms() + 3_600_000, retain_last=1)
        assert len(table.history()) == 1
    assert queue.first(place(lake)) is not None, "a writer waited all the time"


def test_p44_a_service_with_little_time_does_not_spend_it_all_on_waiting(lake: frazil.Lake) -> None:
    table, queue = lake.table("s.events"), lake.catalog.queue
    assert queue is not None
    queue.put(QueuedCommit("ghost", table.uuid, "c", RESERVATION, b"", "", place(lake)), 600_000)
    contention_of(queue).saw_others(place(lake), SYSTEM.monotonic() + 600)
    assert table.compact(retry=frazil.Retry(total_s=4)).changed


def test_a_writer_is_not_a_service(lake: frazil.Lake) -> None:
    yields, on_phase = reaching(Phase.YIELDING)
    contention_of(lake.catalog.queue).saw_others(place(lake), SYSTEM.monotonic() + 600)  # type: ignore[arg-type]
    lake.table("s.events").update(set={"v": "2"}, where="id = 1", on_phase=on_phase)
    lake.table("s.events").delete("id = 1", on_phase=on_phase)
    append(lake, 20, on_phase)
    assert not yields.is_set()

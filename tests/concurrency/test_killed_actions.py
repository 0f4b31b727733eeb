"""kill -9 of a process that runs services, in each state of its action: the next run goes on, and no row is touched."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import frazil
from frazil.catalog.base import ActionChange, Timeline
from frazil.model import ActionState, TimelineEntry

DIES = ("requested", "inflight", "landed")
_LONG_AGO_MS = 600_000


class DyingTimeline:
    """A timeline whose process is killed at one moment of its first action."""

    def __init__(self, inner: Timeline, at: str) -> None:
        self._inner = inner
        self._at = at

    def request(self, action: TimelineEntry) -> None:
        self._inner.request(action)
        self._die("requested")

    def advance(self, action_id: str, owner: str, change: ActionChange) -> bool:
        if change.state is ActionState.COMPLETED:
            self._die("landed")
        done = self._inner.advance(action_id, owner, change)
        self._die("inflight")
        return done

    def silent(self, table_uuid: str, silent_ms: int) -> list[TimelineEntry]:
        return self._inner.silent(table_uuid, silent_ms)

    def find(self, table_uuid: str, most: int) -> list[TimelineEntry]:
        return self._inner.find(table_uuid, most)

    def _die(self, at: str) -> None:
        if at == self._at:
            os.kill(os.getpid(), signal.SIGKILL)


def serve_and_die(uri: str, warehouse: str, at: str) -> None:
    with frazil.connect(uri, warehouse=warehouse) as lake:
        assert lake.catalog.timeline is not None
        lake.catalog.timeline = DyingTimeline(lake.catalog.timeline, at)  # type: ignore[misc]
        lake.services().run(once=True)
    os._exit(3)


def pass_time(uri: str, folder: Path) -> None:
    """Long after its last sign of life, by the database's clock."""
    changes = (
        f"UPDATE frazil_timeline SET heartbeat_at = heartbeat_at - {_LONG_AGO_MS}",
        f"UPDATE frazil_leases SET deadline = deadline - {_LONG_AGO_MS}",
    )
    if uri.startswith("postgresql"):
        with psycopg.connect(uri, autocommit=True) as server:
            for each in changes:
                server.execute(each.encode())
        return
    with closing(sqlite3.connect(folder / "lake" / "catalog.db", isolation_level=None)) as file:
        for each in changes:
            file.execute(each)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("at", DIES)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_p44_a_service_that_was_killed_is_ended_and_done_by_the_next_run(
    kind: str, at: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    uri = str(tmp_path / "lake") if kind == "sqlite" else request.getfixturevalue("postgres_uri")
    warehouse = str(tmp_path / "warehouse")
    properties = {
        "frazil.services.mode": "service",
        "frazil.services.small-files": "3",
        "frazil.services.rest-ms": "0",
    }
    with frazil.connect(uri, warehouse=warehouse) as lake:
        lake.create_namespace("s")
        table = lake.create_table("s.t", "id bigint", properties=properties)
        for key in range(4):
            table.append([{"id": key}])
        process = multiprocessing.get_context("fork").Process(target=serve_and_die, args=(uri, warehouse, at))
        process.start()
        process.join(120)
        assert process.exitcode == -signal.SIGKILL
        (left,) = table.timeline()
        assert left.state == ("requested" if at == "requested" else "inflight")
        assert lake.services().run(once=True) == [], "its lease has not expired"
        table.append([{"id": 4}])
        pass_time(uri, tmp_path)
        done = lake.services().run(once=True)
        entries = table.timeline()
        assert [str(each.state) for each in entries][-1] == ("completed" if at == "landed" else "failed")
        assert [each.service for each in done] == ([] if at == "landed" else ["compact"])
        assert all(each.is_over for each in entries)
        assert len(table.files()) == (2 if at == "landed" else 1)
        assert sorted(row["id"] for row in table.scan().to_arrow().to_pylist()) == [0, 1, 2, 3, 4]
        assert lake.catalog.leases is not None
        assert lake.catalog.leases.held(table.uuid) == []


@pytest.mark.timeout(300)
def test_p44_two_processes_that_run_services_never_lead_one_table_together(tmp_path: Path) -> None:
    uri = str(tmp_path / "lake")
    properties = {"frazil.services.mode": "service", "frazil.services.small-files": "3"}
    with frazil.connect(uri) as lake:
        lake.create_namespace("s")
        names = [f"s.t{number}" for number in range(4)]
        for name in names:
            table = lake.create_table(name, "id bigint", properties=properties)
            for key in range(4):
                table.append([{"id": key}])
        fork = multiprocessing.get_context("fork")
        crew = [fork.Process(target=serve_once, args=(uri,)) for _ in range(3)]
        for each in crew:
            each.start()
        for each in crew:
            each.join(120)
        assert [each.exitcode for each in crew] == [0, 0, 0]
        for name in names:
            table = lake.table(name)
            assert [(each.service, str(each.state)) for each in table.timeline()] == [("compact", "completed")]
            assert len(table.files()) == 1
            assert table.history()[-1].operation == "replace"


def serve_once(uri: str) -> None:
    with frazil.connect(uri) as lake:
        lake.services().run(once=True)


@pytest.mark.timeout(300)
def test_p44_a_service_that_is_told_to_end_hands_its_tables_over(tmp_path: Path) -> None:
    uri = str(tmp_path / "lake")
    properties = {"frazil.services.mode": "service", "frazil.services.small-files": "3"}
    with frazil.connect(uri) as lake:
        lake.create_namespace("s")
        table = lake.create_table("s.t", "id bigint", properties=properties)
        for key in range(4):
            table.append([{"id": key}])
        command = [sys.executable, "-m", "frazil", "services", "run", uri, "--interval", "0.05"]
        with subprocess.Popen(command) as process:
            while not any(each.is_over for each in table.timeline()):
                assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
        assert lake.catalog.leases is not None
        assert lake.catalog.leases.held(table.uuid) == []
        assert [str(each.state) for each in table.timeline()] == ["completed"]

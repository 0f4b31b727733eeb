"""Commit locks: a hint that saves lost races (rules P2 and P3). Losing one, or never holding one, costs only time."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contract.samples import new_metadata, set_property
from frazil.catalog.base import Committed, Head, Release
from frazil.catalog.commit_lock import commit_lock, try_lock
from frazil.catalog.memory import MemoryStore
from frazil.catalog.pointer import PointerCatalog
from frazil.catalog.postgres import PostgresStore
from frazil.catalog.sqlite import SqliteStore
from frazil.catalog.store import Swap
from frazil.format.storage import Storage
from frazil.model import Ident
from frazil.runtime import SYSTEM, Runtime

EVENTS, OTHER = Ident(("shop",), "events"), Ident(("shop",), "other")

HOLD = """
import sys
from frazil.model import Ident
from frazil.catalog.{module} import {store}
release = {store}(sys.argv[1]).locks.try_lock(Ident(("shop",), "events"))
print("taken" if release else "busy", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        found: Any = MemoryStore()
    elif request.param == "sqlite":
        found = SqliteStore(tmp_path / "catalog.db")
    else:
        found = PostgresStore(request.getfixturevalue("postgres_uri"))
    found.create_namespace(("shop",), {})
    found.insert(EVENTS, "v0")
    yield found
    found.close()


def test_one_writer_holds_the_lock_of_a_table_and_releases_it(store: Any) -> None:
    release = store.locks.try_lock(EVENTS)
    assert release is not None
    assert store.locks.try_lock(EVENTS) is None
    other = store.locks.try_lock(OTHER)
    assert other is not None, "another table has a lock of its own"
    release()
    again = store.locks.try_lock(EVENTS)
    assert again is not None
    again()
    other()


def test_p2_a_swap_needs_no_lock(store: Any) -> None:
    release = store.locks.try_lock(EVENTS)
    assert store.swap(Swap.of_table(EVENTS, "v0", "v1", None)) == Committed("v1")
    release()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_p3_a_killed_process_releases_its_lock(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    place = str(tmp_path / "catalog.db") if kind == "sqlite" else request.getfixturevalue("postgres_uri")
    kinds: dict[str, Any] = {"sqlite": SqliteStore, "postgres": PostgresStore}
    store = kinds[kind](place)
    script = HOLD.format(module=kind, store=kinds[kind].__name__)
    command = [sys.executable, "-c", script, place]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "taken\n"
        assert store.locks.try_lock(EVENTS) is None
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(30)
        release = None
        for _ in range(200):
            if (release := store.locks.try_lock(EVENTS)) is not None:
                break
            SYSTEM.sleep(0.05)  # Postgres notices a dead client when it next touches the socket
        assert release is not None
        release()
    store.close()


@dataclass
class Table:
    """A table on a clock that only sleeping moves."""

    catalog: PointerCatalog
    runtime: Runtime
    slept: list[float]

    def lock(self, patience_s: float) -> AbstractContextManager[object]:
        return commit_lock(self.catalog, EVENTS, patience_s, self.runtime)

    def try_lock(self) -> Release | None:
        assert self.catalog.locks is not None
        return self.catalog.locks.try_lock(EVENTS)

    def commits_whenever_it_is_read(self, monkeypatch: pytest.MonkeyPatch, after: Callable[[int], None]) -> None:
        load, number = self.catalog.load, itertools.count(1)

        def moving(ident: Ident) -> Head:
            n = next(number)
            prepared = self.catalog.prepare(ident, head := load(ident), set_property(head, str(n)))
            assert isinstance(self.catalog.swap(prepared), Committed)
            after(n)
            return load(ident)

        monkeypatch.setattr(self.catalog, "load", moving)


@pytest.fixture
def table() -> Table:
    slept: list[float] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    runtime = Runtime(SYSTEM.now_ms, lambda: now[0], sleep, lambda: 0.5, SYSTEM.new_uuid)
    catalog = PointerCatalog(MemoryStore(), Storage(), runtime)
    catalog.create_namespace(("shop",), {})
    catalog.create(EVENTS, new_metadata(f"memory://{SYSTEM.new_hex()}/events"))
    return Table(catalog, runtime, slept)


def test_p3_a_writer_waits_no_longer_than_a_second_for_one_that_makes_no_progress(table: Table) -> None:
    stuck = table.try_lock()
    with table.lock(10):
        pass
    assert 1.0 < sum(table.slept) < 3.0
    assert table.try_lock() is None, "the stuck writer still holds it"
    assert stuck is not None


def test_a_writer_waits_no_longer_than_its_patience_while_others_make_progress(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert table.try_lock() is not None
    table.commits_whenever_it_is_read(monkeypatch, lambda _: None)
    with table.lock(4):
        pass
    assert 4.0 <= sum(table.slept) < 5.0


def test_a_writer_waits_on_while_others_make_progress(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = table.try_lock()
    assert busy is not None
    table.commits_whenever_it_is_read(monkeypatch, lambda n: busy() if n == 3 else None)
    with table.lock(10):
        assert table.try_lock() is None, "this writer holds it now"
    assert sum(table.slept) > 3.0


def test_a_catalog_without_locks_is_not_waited_for(table: Table) -> None:
    assert table.try_lock() is not None
    table.catalog.locks = None
    with table.lock(10):
        assert table.slept == []
    assert try_lock(table.catalog, EVENTS) is not None


def test_writers_go_ahead_where_locks_cannot_be_had(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "catalog.db")
    (tmp_path / "catalog.db-turns").write_text("a file where a folder should be")
    release = store.locks.try_lock(EVENTS)
    assert release is not None
    release()
    store.close()


def test_a_forked_child_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "catalog.db")
    release = store.locks.try_lock(EVENTS)
    assert release is not None
    (stop, stopping), (up, coming_up) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(coming_up, b"x")
        os.read(stop, 1)
        os._exit(0)
    os.read(up, 1)
    release()
    again = store.locks.try_lock(EVENTS)
    os.write(stopping, b"x")
    os.waitpid(child, 0)
    for each in (stop, stopping, up, coming_up):
        os.close(each)
    assert again is not None, "the child, which still runs, must not hold the lock"
    again()
    store.close()

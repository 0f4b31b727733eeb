"""Turns: a hint that saves lost races (rules P2 and P3). Losing one, or never having one, costs time alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frazil.catalog.base import Committed
from frazil.catalog.memory import MemoryStore
from frazil.catalog.pointer import PointerCatalog
from frazil.catalog.postgres import PostgresStore
from frazil.catalog.sqlite import SqliteStore
from frazil.format.storage import Storage
from frazil.model import Ident
from frazil.runtime import SYSTEM, Runtime

EVENTS, OTHER = Ident(("shop",), "events"), Ident(("shop",), "other")

HOLD = """
import sys
from frazil.model import Ident
from frazil.catalog.{module} import {store}
release = {store}(sys.argv[1]).try_commit_lock(Ident(("shop",), "events"))
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


def test_one_writer_has_the_turn_of_a_table_and_gives_it_back(store: Any) -> None:
    release = store.try_commit_lock(EVENTS)
    assert release is not None
    assert store.try_commit_lock(EVENTS) is None
    other = store.try_commit_lock(OTHER)
    assert other is not None, "another table has a turn of its own"
    release()
    again = store.try_commit_lock(EVENTS)
    assert again is not None
    again()
    other()


def test_p2_a_swap_needs_no_turn(store: Any) -> None:
    release = store.try_commit_lock(EVENTS)
    assert store.swap(EVENTS, "v0", "v1", None) == Committed("v1")
    release()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_p3_a_killed_process_gives_its_turn_back(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    place = str(tmp_path / "catalog.db") if kind == "sqlite" else request.getfixturevalue("postgres_uri")
    kinds: dict[str, Any] = {"sqlite": SqliteStore, "postgres": PostgresStore}
    store = kinds[kind](place)
    script = HOLD.format(module=kind, store=kinds[kind].__name__)
    command = [sys.executable, "-c", script, place]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "taken\n"
        assert store.try_commit_lock(EVENTS) is None
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(30)
        release = None
        for _ in range(200):
            if (release := store.try_commit_lock(EVENTS)) is not None:
                break
            SYSTEM.sleep(0.05)  # Postgres notices a dead client when it next touches the socket
        assert release is not None
        release()
    store.close()


def catalog_with_clock(store: Any) -> tuple[PointerCatalog, list[float]]:
    slept: list[float] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    runtime = Runtime(SYSTEM.now_ms, lambda: now[0], sleep, lambda: 0.5, SYSTEM.new_uuid)
    return PointerCatalog(store, Storage(), runtime), slept


def test_p3_nobody_waits_longer_than_a_second_for_a_writer_that_makes_no_progress() -> None:
    store = MemoryStore()
    store.create_namespace(("shop",), {})
    store.insert(EVENTS, "v0")
    catalog, slept = catalog_with_clock(store)
    stuck = store.try_commit_lock(EVENTS)
    with catalog.commit_lock(EVENTS, 10):
        pass
    assert 1.0 < sum(slept) < 3.0
    assert store.try_commit_lock(EVENTS) is None, "the stuck writer still has it"
    assert stuck is not None


def test_nobody_waits_longer_than_asked_even_while_others_make_progress() -> None:
    store = MemoryStore()
    store.create_namespace(("shop",), {})
    store.insert(EVENTS, "v0")
    catalog, slept = catalog_with_clock(store)
    assert store.try_commit_lock(EVENTS) is not None
    read, number = store.read, iter(range(1, 1000))

    def moving(ident: Ident) -> Any:
        store.swap(EVENTS, read(ident).location, f"v{next(number)}", None)
        return read(ident)

    store.read = moving  # type: ignore[method-assign]
    with catalog.commit_lock(EVENTS, 4):
        pass
    assert 4.0 <= sum(slept) < 5.0


def test_a_writer_waits_on_while_others_make_progress() -> None:
    store = MemoryStore()
    store.create_namespace(("shop",), {})
    store.insert(EVENTS, "v0")
    catalog, slept = catalog_with_clock(store)
    busy = store.try_commit_lock(EVENTS)
    assert busy is not None
    moves = iter(range(1, 4))
    read = store.read

    def moving(ident: Ident) -> Any:
        found = read(ident)
        number = next(moves)
        store.swap(EVENTS, found.location, f"v{number}", None)
        if number == 3:
            busy()
        return read(ident)

    store.read = moving  # type: ignore[method-assign]
    with catalog.commit_lock(EVENTS, 10):
        assert store.try_commit_lock(EVENTS) is None, "it is ours now"
    assert sum(slept) > 3.0


def test_turns_that_cannot_be_had_are_gone_without(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "catalog.db")
    (tmp_path / "catalog.db-turns").write_text("a file where a folder should be")
    release = store.try_commit_lock(EVENTS)
    assert release is not None
    release()
    store.close()


def test_a_forked_child_does_not_keep_its_parents_turn(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "catalog.db")
    release = store.try_commit_lock(EVENTS)
    assert release is not None
    (stop, stopping), (up, coming_up) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(coming_up, b"x")
        os.read(stop, 1)
        os._exit(0)
    os.read(up, 1)
    release()
    again = store.try_commit_lock(EVENTS)
    os.write(stopping, b"x")
    os.waitpid(child, 0)
    for each in (stop, stopping, up, coming_up):
        os.close(each)
    assert again is not None, "the child, which lives on, must not hold the lock"
    again()
    store.close()

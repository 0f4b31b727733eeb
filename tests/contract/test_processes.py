"""Processes that die in the middle of a swap, and processes that fork."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sqlite3
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from frazil.catalog.base import ChangeRecord, CommitRecord, Committed
from frazil.catalog.memory import MemoryStore
from frazil.catalog.postgres import PostgresStore
from frazil.catalog.sqlite import SqliteStore
from frazil.catalog.store import Swap
from frazil.errors import Unsupported
from frazil.model import Ident

# Forking while threads run is what these tests are about; newer Pythons warn of it.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
EVENTS = Ident(("shop",), "events")
RECORD = CommitRecord("table-uuid", "c1", "digest", None, 1, {})
CHANGE = ChangeRecord("table-uuid", 7, 1, b"body")


def new_store(store: Any) -> Any:
    store.create_namespace(("shop",), {})
    store.insert(EVENTS, "v0")
    return store


class Dying(sqlite3.Connection):
    """Kills its process right before, or right after, a statement."""

    statement = ""
    after = False

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        hit = sql.startswith(self.statement)
        if hit and not self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        cursor = super().execute(sql, *parameters)
        if hit:
            os.kill(os.getpid(), signal.SIGKILL)
        return cursor


def die_in_swap(path: str, statement: str, after: bool) -> None:
    Dying.statement, Dying.after = statement, after
    store = SqliteStore(path)
    store.close()
    connect = sqlite3.connect
    sqlite3.connect = lambda *args, **kwargs: connect(*args, **kwargs, factory=Dying)  # type: ignore[assignment]
    SqliteStore(path).swap(Swap.of_table(EVENTS, "v0", "v1", RECORD, [CHANGE]))


@pytest.mark.parametrize(
    ("statement", "after", "lands"),
    [
        ("UPDATE", False, False),
        ("UPDATE", True, False),
        ("INSERT INTO frazil_commits", True, False),
        ("INSERT INTO frazil_changes", True, False),
        ("COMMIT", False, False),
        ("COMMIT", True, True),
    ],
)
def test_a_process_killed_inside_a_swap_leaves_all_of_it_or_nothing(
    tmp_path: Path, statement: str, after: bool, lands: bool
) -> None:
    path = str(tmp_path / "catalog.db")
    new_store(SqliteStore(path)).close()
    assert in_fork(lambda: die_in_swap(path, statement, after)) == -signal.SIGKILL
    store = SqliteStore(path)
    try:
        assert store.read(EVENTS).location == ("v1" if lands else "v0")
        assert store.commits.find("table-uuid", "c1") == (RECORD if lands else None)
        assert store.changes.find("table-uuid", 0, 1) == ([CHANGE] if lands else [])
        assert store.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD, [CHANGE])) == Committed("v1")
        assert store.changes.find("table-uuid", 0, 1) == [CHANGE]
    finally:
        store.close()


def swap_for_ever(address: str, ready: Any) -> None:
    store = SqliteStore(address) if "://" not in address else PostgresStore(address)
    n = 0
    while True:
        record = CommitRecord("table-uuid", f"c{n + 1}", "d", None, n, {})
        assert store.swap(Swap.of_table(EVENTS, f"v{n}", f"v{n + 1}", record)) == Committed(f"v{n + 1}")
        n += 1
        ready.send(n)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_no_acknowledged_swap_is_lost_when_its_process_is_killed_at_any_moment(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    address = str(tmp_path / "catalog.db") if kind == "sqlite" else request.getfixturevalue("postgres_uri")
    store = new_store(SqliteStore(address) if kind == "sqlite" else PostgresStore(address))
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    victim = context.Process(target=swap_for_ever, args=(address, sender))
    victim.start()
    sender.close()
    acknowledged = 0
    while acknowledged < 100:
        acknowledged = receiver.recv()
    victim.kill()
    with contextlib.suppress(EOFError):
        while True:
            acknowledged = receiver.recv()
    victim.join(60)
    receiver.close()
    try:
        head = int(store.read(EVENTS).location[1:])
        assert head in (acknowledged, acknowledged + 1)
        assert store.commits.find("table-uuid", f"c{head}") is not None
        assert store.commits.find("table-uuid", f"c{head + 1}") is None
    finally:
        store.close()


# Fork


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "sqlite":
        found: Any = SqliteStore(tmp_path / "catalog.db")
    else:
        found = PostgresStore(request.getfixturevalue("postgres_uri"))
    yield new_store(found)
    found.close()


def in_fork(work: Callable[[], None]) -> int:
    """Run in a forked child; its exit code, 0 when nothing was raised."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_p5_a_forked_child_swaps_on_connections_of_its_own(store: Any) -> None:
    assert store.read(EVENTS).location == "v0"

    def child() -> None:
        assert store.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD)) == Committed("v1")
        assert store.commits.find("table-uuid", "c1") == RECORD
        store.close()

    assert in_fork(child) == 0
    assert store.read(EVENTS).location == "v1"
    assert store.swap(Swap.of_table(EVENTS, "v1", "v2", None)) == Committed("v2")


def test_parent_and_child_may_write_at_once_after_a_fork(store: Any) -> None:
    store.read(EVENTS)

    def swaps(who: str) -> int:
        won = 0
        while won < 25:
            expected = store.read(EVENTS).location
            won += store.swap(Swap.of_table(EVENTS, expected, f"{expected.split('-')[0]}-{who}{won}", None)) is not None
        return won

    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if swaps("child") == 25 else 1
        finally:
            os._exit(code)
    assert swaps("parent") == 25
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert store.swap(Swap.of_table(EVENTS, store.read(EVENTS).location, "end", None)) == Committed("end")


def test_a_fork_during_another_threads_work_blocks_no_process(store: Any) -> None:
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            location = store.read(EVENTS).location
            store.swap(Swap.of_table(EVENTS, location, f"v{int(location[1:]) + 1}", None))

    def child() -> None:
        signal.alarm(60)
        store.read(EVENTS)
        assert store.swap(Swap.of_table(EVENTS, "never", "never-2", None)) is not None

    worker = threading.Thread(target=busy)
    worker.start()
    try:
        assert [in_fork(child) for _ in range(5)] == [0] * 5
    finally:
        stop.set()
        worker.join(60)


def test_p5_no_sqlite_file_is_open_across_a_fork(tmp_path: Path) -> None:
    path = str(tmp_path / "catalog.db")
    store = new_store(SqliteStore(path))
    assert _open_files(path)

    def child() -> None:
        assert _open_files(path) == []

    try:
        assert in_fork(child) == 0
        assert store.read(EVENTS).location == "v0"
    finally:
        store.close()


def _open_files(prefix: str) -> list[str]:
    found = []
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{each}"))
    return [name for name in found if name.startswith(prefix)]


def test_a_childs_exit_does_not_end_the_parents_postgres_session(postgres_uri: str) -> None:
    store = new_store(PostgresStore(postgres_uri))
    try:
        sessions = _sessions(postgres_uri)
        assert len(sessions) == 1

        def child() -> None:
            store.read(EVENTS)
            store.close()

        assert in_fork(child) == 0
        assert store.read(EVENTS).location == "v0"
        assert sessions <= _sessions(postgres_uri)
    finally:
        store.close()


def _sessions(uri: str) -> set[int]:
    sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'frazil' AND datname = current_database()"
    with psycopg.connect(uri) as connection:
        return {row[0] for row in connection.execute(sql).fetchall()}


def test_a_memory_catalog_is_refused_in_a_forked_child() -> None:
    store = new_store(MemoryStore())

    def child() -> None:
        with pytest.raises(Unsupported, match="process"):
            store.swap(Swap.of_table(EVENTS, "v0", "v1", None))

    assert in_fork(child) == 0

"""The commit queue: what a swap decides about queued commits is committed with it or not at all (rules P1 to P4)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from contract.samples import EVENTS
from frazil.catalog._db import OutcomeUnknown
from frazil.catalog._queue import QUEUE
from frazil.catalog.base import (
    RESERVATION,
    CommitRecord,
    Committed,
    QueuedCommit,
    QueueState,
    QueueStatus,
    QueueUpdate,
    Stale,
)
from frazil.catalog.memory import MemoryStore
from frazil.catalog.postgres import PostgresStore, _Db
from frazil.catalog.sqlite import SqliteStore
from frazil.catalog.store import Swap
from frazil.errors import CatalogUnavailable

UUID, QUEUE_KEY = "table-uuid", "queue key"
LONG = 60_000


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        found: Any = MemoryStore()
    elif request.param == "sqlite":
        found = SqliteStore(tmp_path / "catalog.db")
    else:
        found = PostgresStore(request.getfixturevalue("postgres_uri"))
    with closing(found):
        found.create_namespace(("shop",), {})
        found.insert(EVENTS, "v0")
        yield found


def ticket(key: str, **more: Any) -> QueuedCommit:
    return replace(QueuedCommit(key, UUID, f"commit-{key}", 1, b"body", queue_key=QUEUE_KEY), **more)


def swap(store: Any, expected: str, new: str, queue_update: QueueUpdate) -> object:
    """As the commit loop does it."""
    claims = store.queue.claims
    if claims is not None and not claims.claim(queue_update):
        return Stale(store.read(EVENTS).location)
    outcome = store.swap(Swap.of_table(EVENTS, expected, new, queue_update=queue_update))
    if claims is not None:
        claims.conclude(queue_update, outcome)
    return outcome


def keys(store: Any) -> list[str]:
    return [each.ticket.key for each in store.queue.waiting(QUEUE_KEY, 100)]


def test_commits_wait_in_their_order_until_a_swap_takes_them(store: Any) -> None:
    for key in "abc":
        store.queue.put(ticket(key), LONG)
    store.queue.put(ticket("z", queue_key="another"), LONG)
    assert sorted(keys(store)) == ["a", "b", "c"]
    assert store.queue.count(QUEUE_KEY) == 3
    assert len(store.queue.waiting(QUEUE_KEY, 2)) == 2
    assert store.read(EVENTS).queue_not_empty
    (first, *_) = store.queue.waiting(QUEUE_KEY, 1)
    assert (first.ticket.body, first.ticket.commit_id, first.tries) == (b"body", "commit-a", 0)
    assert swap(store, "v0", "v1", QueueUpdate({"a": b"outcome a", "b": b"outcome b"}, ("c",))) == Committed("v1")
    assert store.queue.status("a") == QueueStatus(QueueState.COMMITTED, b"outcome a")
    assert store.queue.status("b") == QueueStatus(QueueState.COMMITTED, b"outcome b")
    assert store.queue.status("c").state is QueueState.RETURNED
    assert keys(store) == []
    assert store.queue.status("z").state is QueueState.WAITING


def test_a_reservation_is_first_and_only_its_writer_commits_it(store: Any) -> None:
    for key in "ab":
        store.queue.put(ticket(key), LONG)
    assert store.queue.first(QUEUE_KEY).ticket.key == "a"
    for key in "xy":
        store.queue.put(ticket(key, version=RESERVATION, body=b""), LONG)
    assert store.queue.first(QUEUE_KEY).ticket.key == "x"
    assert store.queue.first("another") is None
    assert keys(store) == ["a", "b"]
    assert store.queue.count(QUEUE_KEY) == 2
    assert swap(store, "v0", "v1", QueueUpdate({"x": b"", "a": b""})) == Committed("v1")
    assert store.queue.first(QUEUE_KEY).ticket.key == "y"
    store.queue.withdraw("y")
    assert store.queue.first(QUEUE_KEY).ticket.key == "b"


def test_put_returns_whether_the_queue_was_empty(store: Any) -> None:
    assert store.queue.put(ticket("a"), LONG) is False
    assert store.queue.put(ticket("b"), LONG) is True
    assert store.queue.put(ticket("z", queue_key="another"), LONG) is False
    assert swap(store, "v0", "v1", QueueUpdate({"a": b"", "b": b""})) == Committed("v1")
    assert store.queue.put(ticket("c"), LONG) is False


def test_a_commit_sent_twice_is_queued_once(store: Any) -> None:
    store.queue.put(ticket("a"), LONG)
    store.queue.put(ticket("a"), LONG)
    assert keys(store) == ["a"]
    assert store.queue.status("unknown") is None


@pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)
def test_p9_a_commit_that_arrives_after_its_writer_gave_up_does_not_wait(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = store._engine.write_value
    late: list[tuple[Any, ...]] = []

    def delayed(*statement: Any) -> Any:
        if late:
            return send(*statement)
        late.append(statement)
        raise OutcomeUnknown("no answer")

    monkeypatch.setattr(store._engine, "write_value", delayed)
    with pytest.raises(CatalogUnavailable, match="did not answer"):
        store.queue.put(ticket("a"), LONG)
    send(*late[0])
    assert keys(store) == [], "its writer got an error and has deleted its files"
    assert store.queue.status("a") == QueueStatus(QueueState.WITHDRAWN)


def test_p1_a_withdrawn_commit_stops_the_swap_of_its_group(store: Any) -> None:
    for key in "ab":
        store.queue.put(ticket(key), LONG)
    queue_update = QueueUpdate({"a": b"", "b": b""}, (), (CommitRecord(UUID, "mine", "d", 1, 1),))
    assert store.queue.withdraw("a").state is QueueState.WITHDRAWN
    assert swap(store, "v0", "v1", queue_update) == Stale("v0")
    assert store.read(EVENTS).location == "v0", "its writer has deleted the files by now"
    assert store.queue.status("b").state is QueueState.WAITING
    assert store.commits.find(UUID, "mine") is None
    assert swap(store, "v0", "v2", QueueUpdate({"b": b""})) == Committed("v2")


def test_p1_a_committed_one_cannot_be_withdrawn(store: Any) -> None:
    store.queue.put(ticket("a"), LONG)
    assert swap(store, "v0", "v1", QueueUpdate({"a": b"outcome"})) == Committed("v1")
    assert store.queue.withdraw("a") == QueueStatus(QueueState.COMMITTED, b"outcome")
    assert store.queue.fence("a") == QueueStatus(QueueState.COMMITTED, b"outcome")
    assert store.queue.withdraw("unknown") is None


@pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)
def test_p9_a_fenced_commit_does_not_wait_when_it_arrives(store: Any) -> None:
    assert store.queue.fence("a") == QueueStatus(QueueState.WITHDRAWN)
    store.queue.put(ticket("a"), LONG)
    assert keys(store) == []
    assert store.queue.status("a") == QueueStatus(QueueState.WITHDRAWN)


def test_p1_a_lost_swap_decides_nothing(store: Any) -> None:
    store.queue.put(ticket("a"), LONG)
    store.queue.put(ticket("b"), LONG)
    assert swap(store, "another", "v1", QueueUpdate({"a": b""}, ("b",))) == Stale("v0")
    assert sorted(keys(store)) == ["a", "b"]


def test_p2_two_leaders_with_one_queued_commit_commit_it_once(store: Any) -> None:
    store.queue.put(ticket("a"), LONG)
    assert swap(store, "v0", "v1", QueueUpdate({"a": b"first"})) == Committed("v1")
    # The second leader has read the new head, and the queue before that: only the guard stops it.
    assert swap(store, "v1", "v2", QueueUpdate({"a": b"second"})) == Stale("v1")
    assert store.queue.status("a") == QueueStatus(QueueState.COMMITTED, b"first")


def test_p3_a_commit_past_its_deadline_is_never_committed(store: Any) -> None:
    store.queue.put(ticket("late"), -1)
    assert keys(store) == []
    assert not store.read(EVENTS).queue_not_empty
    assert swap(store, "v0", "v1", QueueUpdate({"late": b""})) == Stale("v0")
    store.queue.extend("late", LONG)
    assert keys(store) == ["late"], "its writer is alive after all"
    assert swap(store, "v0", "v2", QueueUpdate({"late": b""})) == Committed("v2")


def test_p4_tries_are_counted(store: Any) -> None:
    store.queue.put(ticket("a"), LONG)
    store.queue.tried(["a"])
    store.queue.tried(["a"])
    (found,) = store.queue.waiting(QUEUE_KEY, 10)
    assert found.tries == 2
    assert swap(store, "v0", "v1", QueueUpdate({}, ("a",))) == Committed("v1")
    assert store.queue.status("a").state is QueueState.RETURNED


def test_a_commit_id_that_is_taken_undoes_the_whole_swap(store: Any) -> None:
    record = CommitRecord(UUID, "chosen", "digest", 1, 1)
    assert store.commits.put(record)
    store.queue.put(ticket("a"), LONG)
    store.queue.put(ticket("b"), LONG)
    assert swap(store, "v0", "v1", QueueUpdate({"a": b"", "b": b""}, (), (record,))) == Stale("v0")
    assert store.queue.count(QUEUE_KEY) == 2


@pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)
def test_p9_a_commit_in_the_queue_is_found_by_its_id(store: Any) -> None:
    store.queue.put(ticket("id"), LONG)
    assert store.commits.find(UUID, "id") is None
    assert swap(store, "v0", "v1", QueueUpdate({"id": b"[7, 3, 2, 1, true, 0]"})) == Committed("v1")
    assert store.commits.find(UUID, "id") == CommitRecord(UUID, "id", "", 7, 3, {"changed": 1})
    assert store.commits.find("another", "id") is None


def test_a_writer_is_woken_by_the_swap_of_its_commit(store: Any) -> None:
    queued = ticket("a", notify_address=store.queue.notifier.address())
    store.queue.put(queued, LONG)
    woken = threading.Thread(target=store.queue.notifier.sleep, args=("a", 3600.0))
    woken.start()
    assert swap(store, "v0", "v1", QueueUpdate({"a": b""}, to_notify=((queued.notify_address, "a"),))) == Committed(
        "v1"
    )
    woken.join(60)
    assert not woken.is_alive()


def test_p1_a_notification_of_postgres_has_the_outcome_of_a_commit_and_of_nothing_else(postgres_uri: str) -> None:
    with closing(PostgresStore(postgres_uri)) as store, psycopg.connect(postgres_uri) as other:
        store.create_namespace(("shop",), {})
        store.insert(EVENTS, "v0")
        queue: Any = store.queue
        where = queue.notifier.address()
        for key in "abc":
            queue.put(ticket(key, notify_address=where), LONG)
        queue.notifier.notify_at_commit(_Db(other), ((where, "a"),), {"a": b"[1]"})
        other.rollback()
        # Notifications arrive in the order in which they are sent.
        queue.notifier.notify(((where, "c"),))
        queue.notifier.sleep("c", 60.0)
        assert queue.status("a") == QueueStatus(QueueState.WAITING), "nothing was committed"
        queue_update = QueueUpdate({"a": b"[2]"}, ("b",), to_notify=((where, "a"), (where, "b")))
        assert swap(store, "v0", "v1", queue_update) == Committed("v1")
        for key in "ab":
            queue.notifier.sleep(key, 60.0)
        other.execute(f"UPDATE {QUEUE} SET outcome = 'read' WHERE ticket IN ('a', 'b')".encode())
        other.commit()
        assert queue.status("a") == QueueStatus(QueueState.COMMITTED, b"[2]"), "without reading the row"
        assert queue.status("a") == QueueStatus(QueueState.COMMITTED, b"read"), "pushed outcomes are returned once"
        assert queue.status("b") == QueueStatus(QueueState.RETURNED, b"read")


def test_threads_of_one_process_wake_by_their_own_keys(store: Any) -> None:
    threads = {}
    for key in ("a", "b", "c"):
        store.queue.put(ticket(key, notify_address=store.queue.notifier.address()), LONG)
        threads[key] = threading.Thread(target=store.queue.notifier.sleep, args=(key, 3600.0), daemon=True)
        threads[key].start()
    where = store.queue.notifier.address()
    for number, key in enumerate(("c", "a", "b")):
        queue_update = QueueUpdate({key: b""}, to_notify=((where, key),))
        assert swap(store, f"v{number}", f"v{number + 1}", queue_update) == Committed(f"v{number + 1}")
        threads[key].join(60)
        assert not threads[key].is_alive(), f"{key} sleeps on"


def test_a_writer_that_cannot_be_notified_is_ignored(store: Any) -> None:
    store.queue.put(ticket("a", notify_address="frazil-gone"), LONG)
    to_notify = (("frazil-gone", "a"), ("frazil_gone", "a"), ("nonsense", "a"), ("", "a"))
    assert swap(store, "v0", "v1", QueueUpdate({"a": b""}, to_notify=to_notify)) == Committed("v1")
    store.queue.notifier.notify(to_notify)
    store.queue.notifier.sleep("a", 0.01)


def test_a_forked_child_is_woken_at_an_address_of_its_own(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "catalog.db")) as store:
        assert store.queue is not None
        address = store.queue.notifier.address()
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            os.write(write, store.queue.notifier.address().encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 100).decode() not in ("", address)
        assert store.queue.notifier.address() == address
        os.close(read)
        os.close(write)


def test_a_user_without_rights_on_the_queue_commits_without_it(postgres_uri: str) -> None:
    with closing(PostgresStore(postgres_uri)) as owner, psycopg.connect(postgres_uri, autocommit=True) as connection:
        owner.create_namespace(("shop",), {})
        owner.insert(EVENTS, "v0")
        connection.execute("DROP ROLE IF EXISTS reader_of_all")
        connection.execute("CREATE ROLE reader_of_all LOGIN PASSWORD 'x'")
        connection.execute("GRANT SELECT, UPDATE ON iceberg_tables TO reader_of_all")
        connection.execute("GRANT SELECT ON iceberg_namespace_properties TO reader_of_all")
        connection.execute("GRANT SELECT, INSERT ON frazil_commits TO reader_of_all")
        user = postgres_uri.split("://")[1].split("@", maxsplit=1)[0]
        with closing(PostgresStore(postgres_uri.replace(user, "reader_of_all:x", 1))) as store:
            assert store.queue is None
            assert store.read(EVENTS).location == "v0"
            assert store.commits.find(UUID, "any") is None
            assert store.swap(Swap.of_table(EVENTS, "v0", "v1", None)) == Committed("v1")
        connection.execute("DROP OWNED BY reader_of_all")
        connection.execute("DROP ROLE reader_of_all")

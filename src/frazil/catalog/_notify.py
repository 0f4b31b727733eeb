"""How a writer that waits in a queue is notified: a datagram on one host, LISTEN and NOTIFY through Postgres.

A lost notification costs the time until the writer polls. Postgres sends a transaction's notifications only when it has
committed, so there a notification may contain the outcome, which saves the writer reading it.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from frazil import _fork
from frazil.catalog._db import Db
from frazil.runtime import SYSTEM, Runtime

if TYPE_CHECKING:
    import psycopg

    _Connection = psycopg.Connection[tuple[Any, ...]]

ToNotify = Sequence[tuple[str, str]]
_LONGEST_MESSAGE = 256
_MOST_PENDING = 10_000
_POLL_S = 0.02


class Waiters:
    """Threads of one process that sleep until their keys are notified; one of them listens for all."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._condition = threading.Condition()
        self._is_listening = False
        self._notified: set[str] = set()

    def notify(self, keys: Iterable[str]) -> None:
        with self._condition:
            if len(self._notified) > _MOST_PENDING:
                # Their threads have polled and do not wait any more.
                self._notified.clear()
            self._notified.update(keys)
            self._condition.notify_all()

    def sleep(self, key: str, seconds: float, listen: Callable[[float], Iterable[str]] | None) -> bool:
        """Until ``key`` is notified (True) or time is up. ``listen`` waits so long at most and returns the keys it
        received.

        None: this process cannot be notified, and the thread polls soon.
        """
        if listen is None:
            self._runtime.sleep(min(seconds, _POLL_S))
            return False
        end = self._runtime.monotonic() + seconds
        while (left := end - self._runtime.monotonic()) > 0:
            with self._condition:
                if key in self._notified:
                    break
                if self._is_listening:
                    self._condition.wait(left)
                    continue
                self._is_listening = True
            try:
                self.notify(listen(left))
            finally:
                with self._condition:
                    self._is_listening = False
                    self._condition.notify_all()
        with self._condition:
            was_notified = key in self._notified
            self._notified.discard(key)
        return was_notified


class SocketNotifier:
    """Processes of one host notify each other by datagrams to sockets that have a name and no file."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._reset()
        _fork.watch(self)

    def _reset(self) -> None:
        self._waiters = Waiters(self._runtime)
        self._socket: socket.socket | None = None
        self._name = ""

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        self._lock.release()

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        if self._socket is not None:
            # The parent receives on it.
            self._socket.close()
        self._reset()

    def close(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            self._reset()

    def __del__(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def address(self) -> str:
        with self._lock:
            if self._socket is None and not self._name:
                with contextlib.suppress(OSError, AttributeError):
                    self._open()
            return self._name

    def _open(self) -> None:
        name = f"frazil-{self._runtime.new_hex()}"
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            # Linux's abstract names. Elsewhere this fails, and waiting threads poll.
            bound.bind(f"\0{name}")
        except OSError:
            bound.close()
            raise
        self._socket, self._name = bound, name

    def sleep(self, key: str, seconds: float) -> bool:
        return self._waiters.sleep(key, seconds, self._listen if self.address() else None)

    def _listen(self, seconds: float) -> list[str]:
        bound = self._socket
        if bound is None:
            self._runtime.sleep(min(seconds, _POLL_S))
            return []
        found = []
        if select.select([bound], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    found.append(bound.recv(_LONGEST_MESSAGE).decode(errors="replace"))
        return found

    def notify(self, to_notify: ToNotify) -> None:
        if not to_notify:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            for where, key in to_notify:
                if where.startswith("frazil-"):
                    # A process that is gone or has a full buffer does not keep the others from being notified.
                    with contextlib.suppress(OSError):
                        out.sendto(key.encode(), f"\0{where}")

    def notify_at_commit(self, db: Db, to_notify: ToNotify, outcomes: Mapping[str, bytes]) -> None:
        """SQLite has no notifications."""

    def pushed_outcome(self, key: str) -> bytes | None:  # noqa: ARG002 - any process of this host can send a datagram
        return None

    def notify_after_commit(self, to_notify: ToNotify) -> None:
        self.notify(to_notify)


class ListenConnection:
    """One connection of this process outside the pool: it listens, and it holds the commit locks (advisory locks).

    Behind a pooler in transaction mode no connection is one session: there ``is_possible`` is False.
    """

    def __init__(
        self,
        connect: Callable[[], _Connection],
        run: Callable[[str, Sequence[Any]], object],
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._runtime = runtime
        self._connect = connect
        self._run = run
        """Runs one statement on any connection."""
        self._lock = threading.RLock()
        self.is_possible = True
        self._reset()

    def _reset(self) -> None:
        self._waiters = Waiters(self._runtime)
        self._connection: _Connection | None = None
        self._channel = f"frazil_{self._runtime.new_hex()}"
        self._held: set[str] = set()
        self._pushed: dict[str, bytes] = {}
        self._wakeup: tuple[socket.socket, socket.socket] | None = None

    def after_fork_in_child(self) -> _Connection | None:
        """The connection that the parent continues to use: it must not be closed here."""
        left, self._lock = self._connection, threading.RLock()
        self._reset()
        return left

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            self._held.clear()
            if self._wakeup is not None:
                for end in self._wakeup:
                    end.close()
                self._wakeup = None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    def opened(self) -> _Connection | None:
        with self._lock:
            if not self.is_possible:
                return None
            if self._connection is None or self._connection.closed:
                # A session's locks end with it.
                self._held.clear()
                self._connection = None
                connection = self._connect()
                connection.execute(f"LISTEN {self._channel}".encode())
                this = weakref.ref(self)
                # Neither keeps the other alive: a lake that is never closed leaves no connection behind.
                connection.add_notify_handler(lambda notice: _deliver(this(), notice.payload))
                weakref.finalize(self, _close_own, connection, os.getpid())
                if self._wakeup is None:
                    self._wakeup = socket.socketpair()
                    for end in self._wakeup:
                        end.setblocking(False)
                        weakref.finalize(self, end.close)
                self._connection = connection
            return self._connection

    # Notifications

    def address(self) -> str:
        with contextlib.suppress(Exception):
            if self.opened() is not None:
                return self._channel
        return ""

    def sleep(self, key: str, seconds: float) -> bool:
        return self._waiters.sleep(key, seconds, self._listen if self.address() else None)

    def _listen(self, seconds: float) -> list[str]:
        connection, wakeup = self._connection, self._wakeup
        if connection is None or connection.closed or wakeup is None:
            self._runtime.sleep(min(seconds, _POLL_S))
            return []
        found: list[str] = []
        try:
            ready = select.select([connection.fileno(), wakeup[0].fileno()], [], [], seconds)[0]
            if wakeup[0].fileno() in ready:
                with contextlib.suppress(BlockingIOError):
                    wakeup[0].recv(_LONGEST_MESSAGE)
            if connection.fileno() in ready:
                with connection.lock:
                    connection.pgconn.consume_input()
                    while (notice := connection.pgconn.notifies()) is not None:
                        found.append(self._parsed(notice.extra.decode(errors="replace")))
        except Exception:  # noqa: BLE001 - the driver's errors, and what a closed socket raises
            # The connection is gone: the next thread that sleeps opens another, and this one polls.
            with contextlib.suppress(Exception):
                connection.close()
        return found

    def _parsed(self, message: str) -> str:
        """The key that is notified; an outcome pushed with it is kept until it is asked for."""
        key, _, outcome = message.partition(" ")
        if outcome:
            if len(self._pushed) > _MOST_PENDING:
                self._pushed.clear()
            self._pushed[key] = outcome.encode()
        return key

    def pushed_outcome(self, key: str) -> bytes | None:
        return self._pushed.pop(key, None)

    def _received(self, message: str) -> None:
        # It came in while another statement ran on this connection; the listening thread must be woken.
        self._waiters.notify([self._parsed(message)])
        if self._wakeup is not None:
            with contextlib.suppress(OSError):
                self._wakeup[1].send(b".")

    def notify(self, to_notify: ToNotify) -> None:
        sql, values = _notify(to_notify)
        if values:
            with contextlib.suppress(Exception):
                self._run(sql, values)

    def notify_at_commit(self, db: Db, to_notify: ToNotify, outcomes: Mapping[str, bytes]) -> None:
        messages = [(where, f"{key} {outcomes[key].decode()}" if key in outcomes else key) for where, key in to_notify]
        sql, values = _notify(messages)
        if values:
            db.execute(sql, values)

    def notify_after_commit(self, to_notify: ToNotify) -> None:
        """Postgres has notified by itself."""

    # Commit locks

    def try_lock(self, key: str) -> Callable[[], None] | None:
        with self._lock:
            connection = self.opened()
            assert connection is not None
            # A session may take its own lock twice; its threads may not.
            if key in self._held:
                return None
            row = connection.execute(b"SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", (key,)).fetchone()
            if row is None or not row[0]:
                return None
            self._held.add(key)
        return lambda: self._unlock(key, connection)

    def _unlock(self, key: str, connection: _Connection) -> None:
        with self._lock:
            if connection is not self._connection or key not in self._held:
                return
            self._held.discard(key)
            try:
                connection.execute(b"SELECT pg_advisory_unlock(hashtextextended(%s, 0))", (key,))
            except Exception:  # noqa: BLE001 - whatever it is, the lock ends with the connection
                with contextlib.suppress(Exception):
                    connection.close()


def _deliver(listener: ListenConnection | None, message: str) -> None:
    if listener is not None:
        listener._received(message)


def _close_own(connection: _Connection, pid: int) -> None:
    if os.getpid() == pid:
        with contextlib.suppress(Exception):
            connection.close()


def _notify(messages: ToNotify) -> tuple[str, list[str]]:
    known = [pair for pair in messages if pair[0].startswith("frazil_")]
    rows = ", ".join(["(?, ?)"] * len(known))
    sql = f"SELECT pg_notify(channel, message) FROM (VALUES {rows}) AS messages (channel, message)"  # noqa: S608
    return sql, [text for pair in known for text in pair]

"""How a writer that waits in a queue is woken: a datagram on one host, LISTEN and NOTIFY through Postgres.

A bell that nobody hears costs the time until the sleeper looks by itself. Postgres rings for a transaction only when it
has committed, so there the bell may bring the news as well, and saves who is woken the look.
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

Sleepers = Sequence[tuple[str, str]]
_LONGEST_MESSAGE = 256
_MOST_UNHEARD = 10_000
_POLL_S = 0.02


class Waiters:
    """Threads of one process that sleep until their keys are called; one of them listens for all."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._condition = threading.Condition()
        self._is_listening = False
        self._called: set[str] = set()

    def call(self, keys: Iterable[str]) -> None:
        with self._condition:
            if len(self._called) > _MOST_UNHEARD:
                # Their sleepers looked by themselves and are gone.
                self._called.clear()
            self._called.update(keys)
            self._condition.notify_all()

    def sleep(self, key: str, seconds: float, listen: Callable[[float], Iterable[str]] | None) -> None:
        """Until ``key`` is called or time is up. ``listen`` waits so long at most and returns the keys it heard.

        None: there is nothing to hear, and whoever sleeps looks by itself, soon.
        """
        if listen is None:
            self._runtime.sleep(min(seconds, _POLL_S))
            return
        end = self._runtime.monotonic() + seconds
        while (left := end - self._runtime.monotonic()) > 0:
            with self._condition:
                if key in self._called:
                    break
                if self._is_listening:
                    self._condition.wait(left)
                    continue
                self._is_listening = True
            try:
                self.call(listen(left))
            finally:
                with self._condition:
                    self._is_listening = False
                    self._condition.notify_all()
        with self._condition:
            self._called.discard(key)


class SocketNotifier:
    """Processes of one host ring each other by datagrams to sockets that have a name and no file."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._reset()
        _fork.watch(self)

    def _reset(self) -> None:
        self._rung = Waiters(self._runtime)
        self._socket: socket.socket | None = None
        self._name = ""

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        self._lock.release()

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        if self._socket is not None:
            # The parent hears what comes in there.
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
            # Linux's names without files. Elsewhere this fails, and sleepers look by themselves.
            bound.bind(f"\0{name}")
        except OSError:
            bound.close()
            raise
        self._socket, self._name = bound, name

    def sleep(self, key: str, seconds: float) -> None:
        self._rung.sleep(key, seconds, self._listen if self.address() else None)

    def _listen(self, seconds: float) -> list[str]:
        mine = self._socket
        if mine is None:
            self._runtime.sleep(min(seconds, _POLL_S))
            return []
        found = []
        if select.select([mine], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    found.append(mine.recv(_LONGEST_MESSAGE).decode(errors="replace"))
        return found

    def ring(self, sleepers: Sleepers) -> None:
        if not sleepers:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            for where, key in sleepers:
                if where.startswith("frazil-"):
                    # Whoever is gone, or has a full mailbox, does not keep the others from being rung.
                    with contextlib.suppress(OSError):
                        out.sendto(key.encode(), f"\0{where}")

    def ring_at_commit(self, db: Db, sleepers: Sleepers, news: Mapping[str, bytes]) -> None:
        """SQLite rings nobody."""

    def news(self, key: str) -> bytes | None:  # noqa: ARG002 - anybody on this host can send a datagram
        return None

    def committed(self, sleepers: Sleepers) -> None:
        self.ring(sleepers)


class Session:
    """One connection of this process that is nobody else's: it listens, and it holds the turns (advisory locks).

    Behind a pooler in transaction mode there is no such thing: there ``is_possible`` is False, and nothing is held.
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
        self._rung = Waiters(self._runtime)
        self._connection: _Connection | None = None
        self._channel = f"frazil_{self._runtime.new_hex()}"
        self._held: set[str] = set()
        self._news: dict[str, bytes] = {}
        self._stir: tuple[socket.socket, socket.socket] | None = None

    def after_fork_in_child(self) -> _Connection | None:
        """The connection that the parent goes on using: nobody may close it here."""
        left, self._lock = self._connection, threading.RLock()
        self._reset()
        return left

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            self._held.clear()
            if self._stir is not None:
                for end in self._stir:
                    end.close()
                self._stir = None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    def opened(self) -> _Connection | None:
        with self._lock:
            if not self.is_possible:
                return None
            if self._connection is None or self._connection.closed:
                # Locks of a session go with it.
                self._held.clear()
                self._connection = None
                connection = self._connect()
                connection.execute(f"LISTEN {self._channel}".encode())
                me = weakref.ref(self)
                # Neither keeps the other alive: whoever forgets to close a lake leaves no connection behind.
                connection.add_notify_handler(lambda notice: _tell(me(), notice.payload))
                weakref.finalize(self, _close_own, connection, os.getpid())
                if self._stir is None:
                    self._stir = socket.socketpair()
                    for end in self._stir:
                        end.setblocking(False)
                        weakref.finalize(self, end.close)
                self._connection = connection
            return self._connection

    # Waking

    def address(self) -> str:
        with contextlib.suppress(Exception):
            if self.opened() is not None:
                return self._channel
        return ""

    def sleep(self, key: str, seconds: float) -> None:
        self._rung.sleep(key, seconds, self._listen if self.address() else None)

    def _listen(self, seconds: float) -> list[str]:
        connection, stir = self._connection, self._stir
        if connection is None or connection.closed or stir is None:
            self._runtime.sleep(min(seconds, _POLL_S))
            return []
        found: list[str] = []
        try:
            ready = select.select([connection.fileno(), stir[0].fileno()], [], [], seconds)[0]
            if stir[0].fileno() in ready:
                with contextlib.suppress(BlockingIOError):
                    stir[0].recv(_LONGEST_MESSAGE)
            if connection.fileno() in ready:
                with connection.lock:
                    connection.pgconn.consume_input()
                    while (notice := connection.pgconn.notifies()) is not None:
                        found.append(self._understood(notice.extra.decode(errors="replace")))
        except Exception:  # noqa: BLE001 - the driver's errors, and what a closed socket raises
            # The connection is gone: the next one who sleeps opens another, and this one looks by itself.
            with contextlib.suppress(Exception):
                connection.close()
        return found

    def _understood(self, message: str) -> str:
        """The key that is called; the news about it are kept until they are asked for."""
        key, _, news = message.partition(" ")
        if news:
            if len(self._news) > _MOST_UNHEARD:
                self._news.clear()
            self._news[key] = news.encode()
        return key

    def news(self, key: str) -> bytes | None:
        return self._news.pop(key, None)

    def _heard(self, message: str) -> None:
        # While another statement ran on this connection; who is listening has to be told.
        self._rung.call([self._understood(message)])
        if self._stir is not None:
            with contextlib.suppress(OSError):
                self._stir[1].send(b".")

    def ring(self, sleepers: Sleepers) -> None:
        sql, values = _notify(sleepers)
        if values:
            with contextlib.suppress(Exception):
                self._run(sql, values)

    def ring_at_commit(self, db: Db, sleepers: Sleepers, news: Mapping[str, bytes]) -> None:
        told = [(where, f"{key} {news[key].decode()}" if key in news else key) for where, key in sleepers]
        sql, values = _notify(told)
        if values:
            db.execute(sql, values)

    def committed(self, sleepers: Sleepers) -> None:
        """Postgres has rung by itself."""

    # Turns

    def try_lock(self, key: str) -> Callable[[], None] | None:
        with self._lock:
            connection = self.opened()
            assert connection is not None
            # The session may take its own lock twice; its threads may not.
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
            except Exception:  # noqa: BLE001 - whatever it is, the lock goes with the connection
                with contextlib.suppress(Exception):
                    connection.close()


def _tell(session: Session | None, message: str) -> None:
    if session is not None:
        session._heard(message)


def _close_own(connection: _Connection, pid: int) -> None:
    if os.getpid() == pid:
        with contextlib.suppress(Exception):
            connection.close()


def _notify(sleepers: Sleepers) -> tuple[str, list[str]]:
    known = [pair for pair in sleepers if pair[0].startswith("frazil_")]
    rows = ", ".join(["(?, ?)"] * len(known))
    sql = f"SELECT pg_notify(channel, message) FROM (VALUES {rows}) AS sleepers (channel, message)"  # noqa: S608
    return sql, [text for pair in known for text in pair]

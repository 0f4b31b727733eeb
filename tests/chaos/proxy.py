"""A TCP proxy in a process of its own, which cuts, delays and repeats on demand."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import random
import socket
import threading
import time
from typing import Any

import psycopg

from chaos.requests import Requests, is_change
from servers import LossyProxy, _shut

PATTERNS = (rb"COMMIT", rb"frazil_queue", rb"iceberg_tables", rb"INSERT", rb"UPDATE", rb"SELECT")
"""What a message is recognised by: the moment at which it is cut off."""
_LATE_S = 0.5
_ANSWER_S = 10.0
_READY = b"Z\0\0\0\5"


class ChaosProxy(LossyProxy):
    """Delays, too, cuts everything at once, and lets a request arrive twice.

    A request arrives again over a connection of its own, as one does that some part of the network had kept. It is one
    that is a transaction by itself: what comes later in a longer one is said in answer to what came earlier.
    """

    delay_s = 0.0
    copies = 0
    """Requests that the server has answered once more."""

    def __init__(self, target_port: int, target: str) -> None:
        self._uri = target
        self._wants_copy = False
        self._idle: set[socket.socket] = set()
        """Connections to the server that are in no transaction."""
        self.has_copied = threading.Event()
        super().__init__(target_port)

    def repeat(self) -> None:
        """Send the next change once more. Used once."""
        self._wants_copy = True

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                # The server is away, so this connection is refused as well.
                _shut(client)
                continue
            with self._lock:
                self._sockets |= {client, server}
            muted = threading.Event()
            for work in (self._to_server, self._to_client):
                threading.Thread(target=self._pump, args=(work, client, server, muted), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket, muted: threading.Event) -> None:
        requests = Requests()
        while data := client.recv(65536):
            for request in requests.take(data):
                self._consider(request, server)
            if self.delay_s:
                time.sleep(random.random() * self.delay_s)
            when = self._match(data)
            if when == "before":
                return
            if when == "after":
                muted.set()
            server.sendall(data)

    def _answered(self, server: socket.socket, data: bytes) -> None:
        if data[-6:-1] == _READY:
            with self._lock:
                (self._idle.add if data[-1:] == b"I" else self._idle.discard)(server)

    def _consider(self, request: bytes, server: socket.socket) -> None:
        with self._lock:
            if not (self._wants_copy and server in self._idle and is_change(request)):
                return
            self._wants_copy = False
        late = threading.Timer(random.random() * _LATE_S, self._send_copy, (request,))
        late.daemon = True
        late.start()

    def _send_copy(self, request: bytes) -> None:
        with (
            contextlib.suppress(OSError, psycopg.Error),
            psycopg.connect(self._uri, autocommit=True) as connection,
            socket.socket(fileno=os.dup(connection.fileno())) as raw,
        ):
            raw.settimeout(_ANSWER_S)
            raw.sendall(request)
            answer = b""
            while answer[-6:-1] != _READY:
                answer += raw.recv(65536)
            self.copies += 1
            self.has_copied.set()

    def cut_all(self) -> int:
        with self._lock:
            found = list(self._sockets)
        for each in found:
            _shut(each)
        return len(found) // 2


def _serve(target_port: int, target: str, orders: Any) -> None:
    proxy = ChaosProxy(target_port, target)
    orders.send(proxy.port)
    while True:
        try:
            what, value = orders.recv()
        except EOFError:
            return
        match what:
            case "cut":
                proxy.cut(*value)
                orders.send(None)
            case "cuts":
                orders.send(proxy.cuts)
            case "repeat":
                proxy.repeat()
                orders.send(None)
            case "copies":
                orders.send(proxy.copies)
            case "all":
                orders.send(proxy.cut_all())
            case "delay":
                proxy.delay_s = value
                orders.send(None)


class ProxyProcess:
    """Threads of its own process, so that the campaign can fork its writers."""

    def __init__(self, target_port: int, target: str) -> None:
        context = mp.get_context("spawn")
        self._orders, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(target_port, target, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.port: int = self._orders.recv()

    def ask(self, what: str, value: object = None) -> Any:
        self._orders.send((what, value))
        return self._orders.recv()

    def close(self) -> None:
        self._orders.close()
        self._process.kill()
        self._process.join()

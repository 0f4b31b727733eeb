"""A TCP proxy in a process of its own, which cuts and delays when it is told to."""

from __future__ import annotations

import multiprocessing as mp
import random
import socket
import threading
import time
from typing import Any

from servers import LossyProxy, _shut

PATTERNS = (rb"COMMIT", rb"frazil_queue", rb"iceberg_tables", rb"INSERT", rb"UPDATE", rb"SELECT")
"""What a message is recognised by: the moment at which it is cut off."""


class ChaosProxy(LossyProxy):
    """Delays, too, and cuts everything at once."""

    delay_s = 0.0

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                # The server is away: so is this one, for whoever asks now.
                _shut(client)
                continue
            with self._lock:
                self._sockets |= {client, server}
            muted = threading.Event()
            for work in (self._to_server, self._to_client):
                threading.Thread(target=self._pump, args=(work, client, server, muted), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket, muted: threading.Event) -> None:
        while data := client.recv(65536):
            if self.delay_s:
                time.sleep(random.random() * self.delay_s)
            when = self._match(data)
            if when == "before":
                return
            if when == "after":
                muted.set()
            server.sendall(data)

    def cut_all(self) -> int:
        with self._lock:
            found = list(self._sockets)
        for each in found:
            _shut(each)
        return len(found) // 2


def _serve(target_port: int, orders: Any) -> None:
    proxy = ChaosProxy(target_port)
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
            case "all":
                orders.send(proxy.cut_all())
            case "delay":
                proxy.delay_s = value
                orders.send(None)


class ProxyProcess:
    """Threads of its own process, so that the campaign can fork its writers."""

    def __init__(self, target_port: int) -> None:
        context = mp.get_context("spawn")
        self._orders, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(target_port, theirs), daemon=True)
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

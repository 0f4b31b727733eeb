"""The file of events of one process: JSON lines, each written at once, so that a killed process leaves whole lines."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import threading
from pathlib import Path
from typing import Any

import orjson

from frazil.runtime import SYSTEM, Runtime

_log = logging.getLogger("frazil")
FORMAT = 1
SUFFIX = ".jsonl"


def plain(value: object) -> Any:
    """A key or a value as JSON; a value without a JSON form becomes the same string everywhere."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float):
        # JSON has no portable form for integers beyond 64 bits, and for NaN and infinity.
        exact = -(2**63) <= value < 2**63 if isinstance(value, int) else value == value and abs(value) != float("inf")
        return value if exact else str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return str(value)


class Log:
    """Appends events to a file of this process in a folder. Threads share it; a forked child opens its own."""

    def __init__(self, folder: Path, header: dict[str, Any], runtime: Runtime = SYSTEM) -> None:
        self._folder = folder
        self._header = header
        self._runtime = runtime
        self._host = host_name()
        self._pid = -1
        self._file = -1
        self._lock = threading.Lock()
        self._run = ""
        self._count = 0

    def new_id(self) -> str:
        """A transaction id, unique among all processes."""
        self._here()
        with self._lock:
            self._count += 1
            return f"{self._run}-{self._count}"

    def moment(self) -> dict[str, Any]:
        """The process, the thread and the time."""
        return {
            "process": f"{self._host}:{os.getpid()}:{threading.get_ident()}",
            "wall": self._runtime.now_ms() / 1000,
            "mono": self._runtime.monotonic(),
        }

    def write(self, *events: dict[str, Any]) -> None:
        """Append events, each with the process and the time unless it has them."""
        now = self.moment()
        text = b"".join(orjson.dumps({**now, **each}, option=orjson.OPT_APPEND_NEWLINE) for each in events)
        try:
            self._here()
            with self._lock:
                _write_all(self._file, text)
        except OSError as error:
            # A job must not fail because of its log: missing events count as unknown.
            _log.warning("The recorder cannot write to %s: %s", self._folder, error)

    def close(self) -> None:
        with self._lock:
            if self._file >= 0 and self._pid == os.getpid():
                os.close(self._file)
            self._pid = self._file = -1

    def _here(self) -> None:
        """Open a file for this process, also after a fork."""
        if self._pid == os.getpid():
            return
        # A thread that does not exist in this process may have held the parent's lock.
        self._lock = threading.Lock()
        with self._lock:
            if self._pid == os.getpid():
                return
            self._run = self._runtime.new_hex()[:12]
            self._count = 0
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"{os.getpid()}-{self._run}{SUFFIX}"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._pid = os.getpid()
            head = {"event": "recorder", "format": FORMAT, "host": self._host, **self._header, **self.moment()}
            _write_all(self._file, orjson.dumps(head, option=orjson.OPT_APPEND_NEWLINE))


def _write_all(file: int, text: bytes) -> None:
    while text:
        text = text[os.write(file, text) :]


def host_name() -> str:
    """This machine since its boot: all its processes share one monotonic clock."""
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
    return f"{platform.node()}/{boot}"

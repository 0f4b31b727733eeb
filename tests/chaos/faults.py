"""The faults for writers, and a disk with faults on demand."""

from __future__ import annotations

import enum
import errno
import os
import time
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from frazil.format.storage import LocalBackend, Storage


class Fault(enum.StrEnum):
    KILL = "killed at random"
    KILL_AT = "killed at a named moment"
    FREEZE = "frozen at random"
    FREEZE_AT = "frozen at a named moment"
    FULL = "disk full"
    READ_ONLY = "disk read-only"
    SLOW = "disk slow"
    REPEAT = "swap sent again, now and late"
    COPY = "request arrives twice"
    CUT_BEFORE = "request cut off"
    CUT_AFTER = "answer cut off"
    CUT_ALL = "every connection cut"
    DELAY = "network slow"
    TERMINATE = "connections ended by the server"
    RESTART = "database restarted"
    CRASH = "database crashed and restarted"


EVERYWHERE = (
    Fault.KILL,
    Fault.KILL_AT,
    Fault.FREEZE,
    Fault.FREEZE_AT,
    Fault.FULL,
    Fault.READ_ONLY,
    Fault.SLOW,
    Fault.REPEAT,
)
ON_POSTGRES = (
    *EVERYWHERE,
    Fault.COPY,
    Fault.CUT_BEFORE,
    Fault.CUT_AFTER,
    Fault.CUT_ALL,
    Fault.DELAY,
    Fault.TERMINATE,
)
RARE = (Fault.RESTART, Fault.CRASH)
"""They take seconds."""
KILLS_AND_CUTS = (
    Fault.KILL,
    Fault.KILL_AT,
    Fault.CUT_BEFORE,
    Fault.CUT_AFTER,
    Fault.CUT_ALL,
    Fault.TERMINATE,
    *RARE,
)
ON_DISKS = {Fault.FULL: "full", Fault.READ_ONLY: "read-only", Fault.SLOW: "slow"}


class Switch:
    """A file with the current fault of a disk, so that another process can set it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def set(self, trouble: str) -> None:
        draft = self._path.with_suffix(".draft")
        draft.write_text(trouble)
        draft.rename(self._path)

    @property
    def trouble(self) -> str:
        try:
            return self._path.read_text()
        except FileNotFoundError:
            return ""


class TroubledDisk(LocalBackend):
    """The local file system, which fails as a full or read-only one does: in the middle of a file, or when it syncs."""

    def __init__(self, switch: Switch) -> None:
        super().__init__()
        self._switch = switch
        self._calls = 0

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        self._suffer(path, data)
        super().write(path, data, sync=sync)

    def sync_writes(self) -> None:
        self._suffer("", b"")
        super().sync_writes()

    def open_output(self, path: str) -> pa.NativeFile:
        if self._switch.trouble == "read-only":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return super().open_output(path)

    def sync(self, paths: Iterable[str]) -> None:
        listed = list(paths)
        self._suffer(listed[0] if listed else "", b"")
        super().sync(listed)

    def _suffer(self, path: str, data: bytes) -> None:
        match self._switch.trouble:
            case "slow":
                time.sleep(0.05)
            case "read-only":
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
            case "full":
                self._calls += 1
                if data and self._calls % 2:
                    # As much as there was room for.
                    super().write(path, data[: len(data) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def give_trouble(storage: Storage, switch: Switch) -> None:
    """Make a lake's own storage use this disk for local files."""
    storage._backends["file"] = TroubledDisk(switch)

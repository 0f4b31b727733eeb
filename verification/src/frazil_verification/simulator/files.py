"""The simulated file system: written files, their durability, and the partial files of killed processes."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from frazil.format.storage import FileInfo
from frazil.runtime import RandomStream
from frazil_verification.simulator.faults import Fault, Point
from frazil_verification.simulator.process import Process
from frazil_verification.simulator.schedule import Killed

if TYPE_CHECKING:
    from frazil_verification.simulator.world import World

_SLOW_S = (0.1, 1.5, 8.0)
_OLD_S = 3.0


@dataclass(slots=True)
class File:
    data: bytes
    owner: str
    created: float
    is_whole: bool = True
    synced: int | None = None
    """The event before which it became durable; None: it is not durable."""


@dataclass(frozen=True, slots=True)
class Removed:
    by: str
    event: int
    at: float
    file: File


class Files:
    """All files, by path."""

    def __init__(self, world: World, chance: RandomStream) -> None:
        self._world = world
        self._chance = chance
        self.there: dict[str, File] = {}
        self.removed: dict[str, Removed] = {}

    def add(self, path: str, file: File) -> None:
        if path in self.there:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        self.there[path] = file

    def remove(self, path: str, by: str) -> None:
        if path not in self.there:
            raise _missing(path)
        now = self._world.schedule.now
        self.removed[path] = Removed(by, self._world.journal.events, now, self.there.pop(path))

    def lose_power(self) -> None:
        """Files that were not synced are lost or truncated."""
        for path, file in list(self.there.items()):
            if file.synced is None:
                if self._chance.random() < 0.5:
                    self.remove(path, "the power loss")
                else:
                    file.data, file.is_whole = file.data[: len(file.data) // 2], False


class SimulatedFiles:
    """The ``Backend`` of one process's storage."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._files = process.world.files
        self._trip_s = process.world.files_s

    def read(self, path: str) -> bytes:
        self._take("read", path)
        file = self._files.there.get(path)
        if file is None:
            raise _missing(path)
        return file.data

    def write(self, path: str, data: bytes) -> None:
        half = File(data[: len(data) // 2], self._process.name, self._now, is_whole=False)
        dies = self._take("write", path)
        self._files.add(path, half)
        if dies:
            self._process.die()
        try:
            self._process.take(self._trip_s)
        except Killed:
            self._process.struck(Fault.PARTIAL_WRITE, _short(path))
            raise
        if path in self._files.there:
            half.data, half.is_whole = data, True
            half.synced = self._process.world.journal.events

    def open_input(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self.read(path))

    def open_output(self, path: str) -> pa.NativeFile:
        dies = self._take("write", path)
        if path in self._files.there:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        return pa.PythonFile(_Stream(self._process, self._files, path, dies=dies), mode="w")

    def sync(self, paths: Iterable[str]) -> None:
        wanted = list(paths)
        self._process.take(self._trip_s)
        for path in wanted:
            if path not in self._files.there:
                raise _missing(path)
            if self._files.there[path].synced is None:
                self._files.there[path].synced = self._process.world.journal.events

    def delete(self, path: str) -> None:
        self._process.take(self._trip_s)
        self._process.note(f"deletes {_short(path)}")
        self._files.remove(path, self._process.name)

    def list(self, prefix: str) -> Iterator[FileInfo]:
        self._process.take(self._trip_s)
        is_stale = self._process.strikes(Point.LISTING) is Fault.STALE_LISTING
        found = {path: file for path, file in self._files.there.items() if path.startswith(prefix)}
        if is_stale:
            self._process.struck(Fault.STALE_LISTING)
            since = self._now - _OLD_S
            gone = {path: each for path, each in self._files.removed.items() if path.startswith(prefix)}
            found = {path: file for path, file in found.items() if file.created < since}
            found |= {path: each.file for path, each in gone.items() if each.file.created < since <= each.at}
        for path, file in found.items():
            yield FileInfo(path, len(file.data))

    @property
    def _now(self) -> float:
        return self._process.world.schedule.now

    def _take(self, verb: str, path: str) -> bool:
        """True: the process must die during the call."""
        process = self._process
        process.take(self._trip_s)
        fault = process.strikes(Point.FILE)
        if fault is None:
            return False
        if fault is Fault.PARTIAL_WRITE:
            if verb != "write":
                return False
            process.struck(fault, _short(path))
            return True
        process.struck(fault, f"{verb} {_short(path)}")
        if fault is Fault.STORAGE_ERROR:
            raise OSError(errno.EIO, "The simulated disk failed", path)
        process.sleep(process.chance.choice(_SLOW_S))
        return False


class _Stream(io.BytesIO):
    """A file that is being written; it is created when it is closed, or when its writer dies."""

    def __init__(self, process: Process, files: Files, path: str, *, dies: bool) -> None:
        super().__init__()
        self._process, self._files, self._path, self._dies = process, files, path, dies

    def close(self) -> None:
        if not self.closed:
            data, process = self.getvalue(), self._process
            is_whole = process.is_alive and not self._dies
            kept = data if is_whole else data[: len(data) // 2]
            self._files.there.setdefault(
                self._path, File(kept, process.name, process.world.schedule.now, is_whole=is_whole)
            )
            if self._dies and process.is_alive:
                # Not by an exception: Arrow calls this, and would convert it into an error of its own.
                process.bury()
        super().close()


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "No such file", path)


def _short(path: str) -> str:
    return path.rsplit("/", 1)[-1]

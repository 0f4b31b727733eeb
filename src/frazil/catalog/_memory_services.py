"""What a memory catalog keeps for services: files noted for deletion, staged prefixes, and how values are scrubbed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from frazil.catalog._memory_access import Access
from frazil.catalog.base import NotedFile, StagedPrefix
from frazil.runtime import Runtime


class MemoryDeletions:
    def __init__(self, access: Access, runtime: Runtime, forget_lists: Callable[[str, Sequence[str]], None]) -> None:
        self.access = access
        self._runtime = runtime
        self._forget_lists = forget_lists
        self._noted: dict[tuple[str, str], tuple[NotedFile, int]] = {}

    def note(self, table_uuid: str, files: Sequence[NotedFile]) -> None:
        with self.access.writing():
            self.insert(table_uuid, files)

    def insert(self, table_uuid: str, files: Sequence[NotedFile]) -> None:
        for each in files:
            self._noted.setdefault((table_uuid, each.path), (each, self._runtime.now_ms()))

    def noted(self, table_uuid: str, after: str, most: int) -> list[NotedFile]:
        with self.access.reading():
            now = self._runtime.now_ms()
            found = [
                replace(each, age_ms=now - noted_ms)
                for (uuid, path), (each, noted_ms) in self._noted.items()
                if uuid == table_uuid and path > after
            ]
        return sorted(found, key=lambda each: each.path)[:most]

    def among(self, table_uuid: str, paths: Sequence[str]) -> list[str]:
        with self.access.reading():
            return [path for path in paths if (table_uuid, path) in self._noted]

    def remove(self, table_uuid: str, paths: Sequence[str]) -> None:
        with self.access.writing():
            for path in paths:
                self._noted.pop((table_uuid, path), None)

    def forget_lists(self, table_uuid: str, manifest_lists: Sequence[str]) -> None:
        with self.access.writing():
            self._forget_lists(table_uuid, manifest_lists)


class MemoryStagedPrefixes:
    def __init__(self, access: Access, runtime: Runtime) -> None:
        self.access = access
        self._runtime = runtime
        self._staged: dict[str, tuple[str, StagedPrefix, int]] = {}

    def register(self, key: str, table_uuid: str, prefix: str, running_ms: int, lives_ms: int) -> None:
        with self.access.writing():
            now = self._runtime.now_ms()
            self._staged[key] = (table_uuid, StagedPrefix(prefix, now - running_ms), now + lives_ms)

    def extend(self, key: str, lives_ms: int) -> None:
        with self.access.writing():
            if key in self._staged:
                table_uuid, prefix, _ = self._staged[key]
                self._staged[key] = (table_uuid, prefix, self._runtime.now_ms() + lives_ms)

    def release(self, key: str) -> None:
        with self.access.writing():
            self._staged.pop(key, None)

    def live(self, table_uuid: str) -> list[StagedPrefix]:
        with self.access.reading():
            now = self._runtime.now_ms()
            return [each for uuid, each, deadline in self._staged.values() if uuid == table_uuid and deadline > now]


class MemoryScrubber:
    def __init__(self, access: Access, forget: Sequence[Callable[[str], None]]) -> None:
        self.access = access
        self._forget = forget

    def scrub(self, table_uuid: str) -> tuple[str, ...]:
        for forget in self._forget:
            forget(table_uuid)
        return ()

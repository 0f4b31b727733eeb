"""Commit locks for the threads of one process."""

from __future__ import annotations

import threading

from frazil.catalog.base import Release
from frazil.model import Ident


class ThreadLocks:
    """CommitLocks in this process's memory."""

    def __init__(self) -> None:
        self._locks: dict[Ident, threading.Lock] = {}

    def try_lock(self, ident: Ident) -> Release | None:
        lock = self._locks.setdefault(ident, threading.Lock())
        return lock.release if lock.acquire(blocking=False) else None

"""Access to what a memory catalog holds."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from frazil.catalog._refusals import opened_read_only
from frazil.errors import Unsupported


class Access:
    """The store's one lock, the process that it belongs to, and whether changes are allowed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._read_only = False

    def read_only(self) -> Access:
        view = copy.copy(self)
        view._read_only = True
        return view

    @contextmanager
    def reading(self) -> Iterator[None]:
        if os.getpid() != self._pid:
            # A forked child has a copy of its own: what it wrote there would be lost silently.
            raise Unsupported(
                "A memory:// catalog belongs to the process that made it, and this is another one",
                advice="Use a folder or a Postgres catalog between processes",
            )
        with self._lock:
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        if self._read_only:
            raise opened_read_only("memory://")
        with self.reading():
            yield

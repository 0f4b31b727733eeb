"""Tells the catalog which writers are staging files, so that orphan removal leaves these alone (rule P42).

Most writes are over before it matters, and pay nothing: one thread of the process registers those that take longer than
``frazil.staging.register-after-ms``, and sends their heartbeats. Writes on Spark register before their first byte.
Until then a file is protected by its age, and by the checks that a writer makes after an orphan removal's fence.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from frazil import _fork
from frazil.catalog.base import StagedPrefixes
from frazil.errors import FrazilError
from frazil.format.metadata import TableMetadata
from frazil.format.properties import REGISTER_AFTER
from frazil.format.storage import is_below, same_path
from frazil.runtime import Runtime
from frazil.services.reachable import own_folders

LIVES_MS = 120_000
"""A writer without a heartbeat for so long counts as dead."""
_HEARTBEAT_S = 20.0
_TICK_S = 1.0
_IDLE_TICKS = 30
_AFTER_MS = 5_000

_log = logging.getLogger("frazil")


@dataclass(slots=True, eq=False)
class _Write:
    key: str
    metadata: TableMetadata
    after_s: float
    started: float
    last_beat: float | None = None
    """None: it is not registered."""
    is_over: bool = False

    @property
    def folders(self) -> tuple[str, ...]:
        return _outermost(own_folders(self.metadata))


def _outermost(folders: Sequence[str]) -> tuple[str, ...]:
    """Without those inside another one."""
    forms = {same_path(each): each for each in folders}
    return tuple(
        each for form, each in forms.items() if not any(is_below(form, other) for other in forms if other != form)
    )


class StagingWatch:
    """The writes of one process on one catalog. ``staged`` None: the catalog keeps no such record."""

    def __init__(self, staged: StagedPrefixes | None, runtime: Runtime) -> None:
        self._staged = staged
        self._runtime = runtime
        self._lock = threading.Lock()
        self._writes: dict[str, _Write] = {}
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        _fork.watch(self)

    def begin(self, metadata: TableMetadata, *, at_once: bool = False) -> str:
        """A write to this table begins. ``at_once``: it is registered before this returns."""
        staged = self._staged
        if staged is None:
            return ""
        text = str(metadata.properties.get(REGISTER_AFTER, _AFTER_MS))
        after_s = 0.0 if at_once else (int(text) if text.isdigit() else _AFTER_MS) / 1000
        write = _Write(self._runtime.new_hex(), metadata, after_s, self._runtime.monotonic())
        if not after_s:
            self._beat(staged, write)
        with self._lock:
            self._writes[write.key] = write
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="frazil-staging", daemon=True)
                self._thread.start()
        return write.key

    def end(self, key: str) -> None:
        """Its commit is decided."""
        with self._lock:
            write = self._writes.pop(key, None)
            if write is not None:
                write.is_over = True
        if write is not None and write.last_beat is not None:
            self._release(write)

    @contextlib.contextmanager
    def staging(self, metadata: TableMetadata, *, at_once: bool = False) -> Iterator[None]:
        key = self.begin(metadata, at_once=at_once)
        try:
            yield
        finally:
            self.end(key)

    def beat(self) -> None:
        """Register what has taken long enough, and send the heartbeats that are due."""
        staged = self._staged
        if staged is None:
            return
        now = self._runtime.monotonic()
        with self._lock:
            writes = list(self._writes.values())
        for write in writes:
            since = write.last_beat
            is_due = now - write.started >= write.after_s if since is None else now - since >= _HEARTBEAT_S
            if is_due:
                self._beat(staged, write)
                if write.is_over:
                    self._release(write)

    def close(self) -> None:
        self._stop.set()

    def _beat(self, staged: StagedPrefixes, write: _Write) -> None:
        now = self._runtime.monotonic()
        try:
            for number, folder in enumerate(write.folders):
                key = f"{write.key}-{number}"
                # Again where it is known: a catalog may have taken a writer for dead that was stopped.
                staged.register(key, write.metadata.uuid, folder, int((now - write.started) * 1000), LIVES_MS)
                staged.extend(key, LIVES_MS)
        except FrazilError as error:
            # Its files are younger than the grace period, or checked before they are committed.
            _log.debug("A heartbeat of a staging write failed: %s", error)
        else:
            write.last_beat = now

    def _release(self, write: _Write) -> None:
        assert self._staged is not None
        with contextlib.suppress(FrazilError):
            for number in range(len(write.folders)):
                self._staged.release(f"{write.key}-{number}")

    def _run(self) -> None:
        idle = 0
        while not self._stop.wait(_TICK_S):
            self.beat()
            with self._lock:
                idle = 0 if self._writes else idle + 1
                if idle >= _IDLE_TICKS:
                    self._thread = None
                    return

    # The thread, and the writes that it watches, are the parent's

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        self._lock.release()

    def after_fork_in_child(self) -> None:
        self._writes = {}
        self._thread = None
        self._stop = threading.Event()
        self._lock.release()

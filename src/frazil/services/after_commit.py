"""Services in a writer's process, after its commit: in its call (inline), or in a thread of its own (async).

Outside of the commit: it has landed, and nothing here makes the writer's call fail (rule P44).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

from frazil import _fork, observe
from frazil.format.metadata import TableMetadata
from frazil.model import Ident
from frazil.services import policy
from frazil.services.execution import Limits, ServedLake, owner_of, run_due
from frazil.services.policy import Mode

_LOOK_S = 60.0
"""The manifests of a table are looked at once in so long, unless the number of upserts says that it is time."""
_FAILED_S = 60.0
_CLOSE_S = 30.0


def after_commit(lake: ServedLake, ident: Ident, base: TableMetadata, verb: str | None) -> None:
    """Called when a commit made on ``base`` has landed. Without a policy it costs a look at the properties."""
    mode = policy.mode_of(base)
    if mode not in (Mode.INLINE, Mode.ASYNC) or verb in policy.VERBS:
        return
    if not policy.may_be_due(base, lake.runtime.now_ms()):
        return
    mine = _of(lake)
    now, by_count = lake.runtime.monotonic(), policy.is_due_by_count(base)
    if not mine.looks.may_look(base.uuid, now, by_count=by_count):
        return
    limits = Limits(most_bytes=policy.limit_of(base.properties, policy.INLINE_BYTES))
    if mode is Mode.INLINE:
        _run_quietly(lake, ident, base.uuid, mine.looks, limits)
    else:
        mine.wake(base.uuid, partial(_run_quietly, lake, ident, base.uuid, mine.looks, Limits(mine.is_closing)))


def close(lake: ServedLake) -> None:
    """End the thread of a lake that is being closed, after the service that it runs."""
    mine = _lakes.pop(lake, None)
    if mine is not None:
        mine.close()


def _run_quietly(lake: ServedLake, ident: Ident, uuid: str, looks: _Looks, limits: Limits) -> None:
    try:
        done = run_due(lake, ident, owner_of(lake), limits)
    except Exception as error:  # noqa: BLE001 - whatever it is: the writer's commit has landed
        observe.log.warning("the services of %s did not run: %s", ident, error)
        done = None
    except BaseException as error:
        error.add_note("the writer's commit has landed nevertheless: this came from a service that ran after it")
        raise
    if done is None or not done or any(each.error is not None for each in done):
        # Another process is at it, nothing was due after all, or it failed: not again with every commit.
        looks.rest(uuid, lake.runtime.monotonic() + _FAILED_S)


class _Looks:
    """When this process looks at a table again. Hints."""

    def __init__(self) -> None:
        self._next: dict[str, float] = {}
        self._rests: dict[str, float] = {}

    def may_look(self, uuid: str, now: float, *, by_count: bool) -> bool:
        if now < self._rests.get(uuid, 0.0) or (not by_count and now < self._next.get(uuid, 0.0)):
            return False
        self._next[uuid] = now + _LOOK_S
        return True

    def rest(self, uuid: str, until: float) -> None:
        self._rests[uuid] = until


class _Background:
    """The services of one lake in this process. A thread exists only while there is something to run."""

    def __init__(self) -> None:
        self.looks = _Looks()
        self._lock = threading.Lock()
        self._waiting: dict[str, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None
        self._is_closing = False
        _fork.watch(self)

    def is_closing(self) -> bool:
        return self._is_closing

    def wake(self, uuid: str, run: Callable[[], None]) -> None:
        """Run it in the thread, unless it waits there already."""
        with self._lock:
            if self._is_closing or uuid in self._waiting:
                return
            self._waiting[uuid] = run
            if self._thread is None:
                # A daemon: what a process leaves undone at its end, the next run resumes.
                self._thread = threading.Thread(target=self._work, name="frazil-services", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or self._is_closing:
                    self._thread = None
                    return
                run = self._waiting.pop(next(iter(self._waiting)))
            run()

    def close(self) -> None:
        with self._lock:
            self._is_closing = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_S)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        self._lock.release()

    def after_fork_in_child(self) -> None:
        # The thread exists in the parent alone, and so does what it was asked to do.
        self._lock = threading.Lock()
        self._waiting, self._thread = {}, None


_lakes: WeakKeyDictionary[ServedLake, _Background] = WeakKeyDictionary()


def _of(lake: ServedLake) -> _Background:
    return _lakes.setdefault(lake, _Background())

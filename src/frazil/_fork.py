"""Locks, pools and connections must not cross a fork: an object that holds one registers here and is called at each."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import weakref
from typing import Protocol


class ForkAware(Protocol):
    def before_fork(self) -> None: ...
    def after_fork_in_parent(self) -> None: ...
    def after_fork_in_child(self) -> None: ...


_watched: weakref.WeakSet[ForkAware] = weakref.WeakSet()
# One fork at a time: two threads that fork at once would otherwise hold each other's locks.
_one_fork = threading.Lock()
# Those told "before" are exactly those told "after", even when others register or vanish in between.
_told: list[ForkAware] = []

_LOADED_ON_FIRST_USE = ("frazil.", "pyiceberg.")


def watch(holder: ForkAware) -> None:
    """Tell ``holder`` around every fork for as long as it lives."""
    with _one_fork:
        _watched.add(holder)


def _finish_imports() -> None:
    """Wait for the modules that other threads are loading: in the child, they would stay locked and half loaded."""
    for name in [each for each in list(sys.modules) if each.startswith(_LOADED_ON_FIRST_USE)]:
        # A failed import is reported to the thread that asked for it.
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _before() -> None:
    _finish_imports()
    _one_fork.acquire()
    _told[:] = list(_watched)
    for each in _told:
        each.before_fork()


def _in_parent() -> None:
    for each in _told:
        each.after_fork_in_parent()
    _told.clear()
    _one_fork.release()


def _in_child() -> None:
    for each in _told:
        each.after_fork_in_child()
    _told.clear()
    _one_fork.release()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)

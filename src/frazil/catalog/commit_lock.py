"""The commit lock of a table, over any catalog: a hint that saves lost races (rules P2 and P3)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from frazil.catalog.base import Catalog, Release
from frazil.errors import FrazilError
from frazil.model import Ident
from frazil.runtime import Runtime

STANDSTILL_S = 1.0
"""A lock whose table has not moved for so long is ignored."""
_POLL_S = 0.02
_SHORTEST_POLL_S = 0.004
LONGEST_POLL_S = 1.5 * _POLL_S


def no_lock() -> None:
    """Released by a writer that goes ahead without the lock."""


def try_lock(catalog: Catalog, ident: Ident) -> Release | None:
    """Without waiting. None: another writer holds it."""
    return no_lock if catalog.locks is None else catalog.locks.try_lock(ident)


@contextlib.contextmanager
def commit_lock(catalog: Catalog, ident: Ident, patience_s: float, runtime: Runtime) -> Iterator[bool]:
    """Wait, for ``patience_s`` at most, until the writers that use the lock are not committing to this table.

    Only a hint: a writer that does not use it may commit at any moment. False: it was not free in time.
    """
    release = _taken(catalog, ident, ident, patience_s, runtime, lambda _waited_s: _POLL_S)
    with _held(release):
        yield release is not None or catalog.locks is None


@contextlib.contextmanager
def turn_lock(catalog: Catalog, ident: Ident, patience_s: float, runtime: Runtime) -> Iterator[None]:
    """The same for a whole read, computation and commit, under a lock beside the commit lock: the commit takes that."""
    # No table can have this name: it is not printable.
    turn = Ident((*ident.namespace, ident.name), "\x1fturn")
    with _held(_taken(catalog, turn, ident, patience_s, runtime, _ageing)):
        yield


def _ageing(waited_s: float) -> float:
    # There is no list of who came first. Who has waited longer looks more often, and so gets the lock sooner.
    return max(_POLL_S / (1 + 2 * waited_s), _SHORTEST_POLL_S)


@contextlib.contextmanager
def _held(release: Release | None) -> Iterator[None]:
    try:
        yield
    finally:
        if release is not None:
            release()


def _taken(
    catalog: Catalog,
    lock: Ident,
    ident: Ident,
    patience_s: float,
    runtime: Runtime,
    poll_s: Callable[[float], float],
) -> Release | None:
    """Wait for the lock while the table moves on, and a second longer (rule P3); then go without."""
    if catalog.locks is None:
        return None
    seen, since = "", runtime.monotonic()
    began, end = since, since + patience_s
    while (release := catalog.locks.try_lock(lock)) is None:
        now = runtime.monotonic()
        if now > end:
            return None
        if now - since > STANDSTILL_S:
            try:
                location = catalog.load(ident).location
            except FrazilError:
                return None
            if location == seen:
                return None
            seen, since = location, now
        runtime.sleep(poll_s(now - began) * (0.5 + runtime.random()))
    return release

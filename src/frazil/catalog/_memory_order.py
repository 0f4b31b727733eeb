"""The order of commits of a catalog in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from frazil.catalog.base import OrderCut, OrderedCommit, PointerMove
from frazil.catalog.order import ORDER_KEPT, TRIMMED_AT_ONCE, check_begun, check_not_ahead, is_over
from frazil.model import Ident
from frazil.runtime import Runtime

_POLL_S = 0.001


class MemoryOrder:
    """Under the lock of its store, which is held by whatever adds to it."""

    def __init__(
        self,
        reading: Callable[[], AbstractContextManager[None]],
        pointers: Callable[[], Mapping[Ident, str]],
        runtime: Runtime,
    ) -> None:
        self._reading = reading
        self._pointers = pointers
        self._runtime = runtime
        self._commits: list[OrderedCommit] = []

    def add(self, moves: Sequence[PointerMove]) -> None:
        """Part of a change of the store, when nothing can refuse it any more."""
        if not moves:
            return
        newest = self._commits[-1].stamp_ms if self._commits else 0
        self._commits.append(OrderedCommit(max(self._runtime.now_ms(), newest), tuple(moves)))
        if len(self._commits) > ORDER_KEPT + TRIMMED_AT_ONCE:
            del self._commits[:TRIMMED_AT_ONCE]

    def cut(self, as_of_ms: int) -> OrderCut:
        while True:
            with self._reading():
                clock_ms = self._runtime.now_ms()
                if is_over(as_of_ms, clock_ms, self._commits[-1].stamp_ms if self._commits else None):
                    return self._cut(as_of_ms)
            check_not_ahead(as_of_ms, clock_ms)
            self._runtime.sleep(_POLL_S)

    def _cut(self, as_of_ms: int) -> OrderCut:
        check_begun(as_of_ms, self._commits[0].stamp_ms if self._commits else None)
        place = bisect_right(self._commits, as_of_ms, key=lambda each: each.stamp_ms)
        later = tuple(move for commit in reversed(self._commits[place:]) for move in commit.moves)
        earlier = {move.ident: move.location for commit in self._commits[:place] for move in commit.moves}
        return OrderCut(dict(self._pointers()), later, earlier)

    def newest(self, most: int | None) -> list[OrderedCommit]:
        with self._reading():
            return self._commits[-most:] if most else [] if most == 0 else list(self._commits)

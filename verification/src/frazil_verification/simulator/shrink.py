"""Shrinks a failing case to a small one that fails in the same way: fewer faults, fewer steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from frazil_verification.simulator.run import Result, simulate
from frazil_verification.simulator.world import Case

OnProgress = Callable[[int, int, str], None]


def shrink(failed: Result, most_runs: int = 300, on_progress: OnProgress | None = None) -> Result:
    """The smallest case that breaks the same rule, found within ``most_runs`` runs."""
    return _Shrinking(failed, most_runs, on_progress).smallest()


class _Shrinking:
    def __init__(self, failed: Result, most_runs: int, on_progress: OnProgress | None) -> None:
        self._best = failed
        self._rule = failed.violations[0].rule
        self._left = self._most = most_runs
        self._on_progress = on_progress

    def smallest(self) -> Result:
        before: Case | None = None
        while before != self._best.case and self._left > 0:
            before = self._best.case
            self._shorter()
            self._fewer_faults()
            self._fewer_steps()
        return self._best

    def _shorter(self) -> None:
        """Steps after the violation are not needed: find the shortest failing prefix by bisection."""
        low, high = 0, len(self._steps)
        while high - low > 1:
            middle = (low + high) // 2
            if self._try(replace(self._best.case, kept=self._steps[:middle])):
                high = middle
            else:
                low = middle

    def _fewer_faults(self) -> None:
        for fault in sorted(self._best.case.faults):
            self._try(replace(self._best.case, faults=self._best.case.faults - {fault}))

    def _fewer_steps(self) -> None:
        """Delta debugging: leave out halves, then quarters, down to single steps."""
        size = max(1, len(self._steps) // 2)
        while True:
            start = 0
            while start < len(self._steps):
                steps = self._steps
                if not self._try_salted(replace(self._best.case, kept=(*steps[:start], *steps[start + size :]))):
                    start += size
            if size == 1:
                return
            size //= 2

    def _try_salted(self, case: Case) -> bool:
        """Leaving out a step changes the timing of all others, so several salts are tried."""
        return any(self._try(replace(case, salt=salt)) for salt in (case.salt, case.salt + 1, case.salt + 2))

    @property
    def _steps(self) -> tuple[int, ...]:
        case = self._best.case
        return case.kept if case.kept is not None else tuple(range(case.steps))

    def _try(self, case: Case) -> bool:
        if self._left <= 0:
            return False
        self._left -= 1
        result = simulate(case)
        if self._on_progress is not None:
            self._on_progress(self._most - self._left, self._most, f"{len(self._steps)} steps")
        if any(each.rule == self._rule for each in result.violations):
            self._best = result
            return True
        return False

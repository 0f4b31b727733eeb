"""Virtual time: tasks run alternately on one thread, each woken at its time, in an order that only the seed decides.

A task is a greenlet, so the code under test is called unchanged, however deep in its stack it waits.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from greenlet import getcurrent, greenlet

MOST_SWITCHES = 400_000
"""A run with more switches than this is considered endless."""


class Killed(BaseException):
    """The process was killed. Raised through its stack, where further calls have no effect."""


class Endless(Exception):
    """The run does not end."""


@dataclass(slots=True, eq=False)
class Task:
    """One thread of execution. ``alarm``: the number of the alarm that wakes it; earlier alarms are ignored."""

    name: str
    run: greenlet
    alarm: int = 0
    is_over: bool = False


@dataclass(slots=True)
class Schedule:
    """The virtual clock, and the tasks that wait for it."""

    now: float = 0.0
    switches: int = 0
    _alarms: list[tuple[float, int, Task | None, Callable[[], None] | None]] = field(default_factory=list)
    _set: int = 0
    _current: Task | None = None
    _hub: greenlet | None = None

    def spawn(self, name: str, work: Callable[[], None], after: float = 0.0) -> Task:
        task = Task(name, greenlet(work))
        self._alarm(self.now + after, task)
        return task

    def call(self, work: Callable[[], None], after: float) -> None:
        """Run something outside all tasks, such as the arrival of a message."""
        self._set += 1
        heapq.heappush(self._alarms, (self.now + after, self._set, None, work))

    def pause(self, seconds: float) -> None:
        """Let the current task sleep while other tasks run."""
        task = self._current
        if task is None:
            # A caller outside the simulated world takes no time.
            return
        self._alarm(self.now + max(0.0, seconds), task)
        self._switch()

    def wake(self, task: Task) -> None:
        if not task.is_over:
            self._alarm(self.now, task)

    def kill(self, task: Task) -> None:
        """End another task where it waits. A task that has not begun is not ended."""
        if not task.is_over and task.run:
            task.is_over = True
            task.run.throw(Killed)

    @property
    def current(self) -> Task | None:
        return self._current

    def run(self) -> None:
        """Run until no task waits."""
        self._hub = getcurrent()
        while self._alarms:
            when, number, task, work = heapq.heappop(self._alarms)
            if task is not None and (task.is_over or task.alarm != number):
                continue
            self.now = max(self.now, when)
            if task is None:
                assert work is not None
                work()
                continue
            self.switches += 1
            if self.switches > MOST_SWITCHES:
                raise Endless
            self._current = task
            task.run.parent = self._hub
            task.run.switch()
            self._current = None
            if task.run.dead:
                task.is_over = True

    def end(self) -> None:
        """End all waiting tasks."""
        waiting = [task for _, _, task, _ in self._alarms if task is not None]
        self._alarms.clear()
        for task in waiting:
            self.kill(task)

    def _alarm(self, when: float, task: Task) -> None:
        self._set += 1
        task.alarm = self._set
        heapq.heappush(self._alarms, (when, self._set, task, None))

    def _switch(self) -> None:
        assert self._hub is not None
        self._hub.switch()

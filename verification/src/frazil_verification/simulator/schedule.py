"""Virtual time: tasks that take turns on one thread, each woken at its moment, in an order that the seed decides alone.

A task is a greenlet, so the code under test is called as it is, however deep below it has to wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from greenlet import getcurrent, greenlet

MOST_SWITCHES = 400_000
"""A run with more of them than this is taken for one that never ends."""


class Killed(BaseException):
    """The process is gone. Thrown through its stack, where nothing that it still tries has an effect."""


class Endless(Exception):
    """The tasks keep each other busy for ever."""


@dataclass(slots=True, eq=False)
class Task:
    """One line of work. ``alarm`` is the number of the alarm that wakes it; earlier ones are out of date."""

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
        """Do something that belongs to no task, such as the arrival of a message."""
        self._set += 1
        heapq.heappush(self._alarms, (self.now + after, self._set, None, work))

    def pause(self, seconds: float) -> None:
        """Let other tasks run until so much time has passed; the current task sleeps."""
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
        """End a task where it waits. Not for the task itself. One that has not begun is left alone."""
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
        """End the tasks that still wait."""
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

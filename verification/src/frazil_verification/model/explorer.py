"""A small explicit-state model checker: visits every state that some interleaving reaches, breadth first.

A model defines the initial states, the possible steps from each state, and the invariants that a state breaks. The
first state that breaks one is reported with the shortest path to it, in words.
"""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

S = TypeVar("S", bound=Hashable)
MOST_STATES = 50_000_000


class Model(Protocol[S]):
    """A protocol as states and steps. States are values: a step returns a new one."""

    def initial(self) -> Iterable[S]: ...

    def steps(self, state: S) -> Iterator[tuple[str, S]]:
        """The possible steps, in words, each with the state that it leads to."""

    def broken(self, state: S) -> Iterable[str]:
        """The names of the invariants that do not hold here."""

    def marks(self, state: S) -> Iterable[str]:
        """The situations that this state is an example of; a model that never reaches them proves nothing."""

    def canonical(self, state: S) -> Hashable:
        """The same value for states that differ only in the names of processes; the state itself is a sound choice."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The shortest path to a state that breaks an invariant."""

    invariant: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"  {number}. {words}" for number, words in enumerate(self.steps, 1)]
        return "\n".join((f"{self.invariant} is broken after {len(self.steps)} steps:", *lines))


@dataclass(frozen=True, slots=True)
class Exploration:
    """The result of an exploration."""

    states: int
    transitions: int
    depth: int
    """The length of the longest shortest path to a state."""
    trace: Trace | None
    """None: no state breaks an invariant."""
    marks: Mapping[str, int]
    """Mark → how many states have it."""
    is_complete: bool
    """Every reachable state was seen."""


def explore(model: Model[S], most_states: int = MOST_STATES) -> Exploration:
    """Visit every reachable state, or stop at the first that breaks an invariant."""
    # States are kept, and none is part of a cycle: collecting garbage among millions of them would dominate the time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _explore(model, most_states)
    finally:
        if was_enabled:
            gc.enable()


def _explore(model: Model[S], most_states: int) -> Exploration:
    # Canonical form → the canonical form of the previous state, and the step from there.
    reached: dict[Hashable, tuple[Hashable, str]] = {}
    queue: deque[tuple[S, Hashable, int]] = deque()
    marks: Counter[str] = Counter()
    transitions = depth = 0

    def visit(state: S, words: str, before: Hashable, level: int) -> Trace | None:
        key = model.canonical(state)
        if key in reached:
            return None
        reached[key] = (before, words)
        marks.update(model.marks(state))
        # The state itself is expanded, not its canonical form, so that a trace does not rename processes.
        queue.append((state, key, level))
        for invariant in model.broken(state):
            return Trace(invariant, _path_to(key, reached))
        return None

    found = next((trace for each in model.initial() if (trace := visit(each, "", None, 0)) is not None), None)
    while queue and found is None and len(reached) < most_states:
        state, key, level = queue.popleft()
        depth = level
        for words, after in model.steps(state):
            transitions += 1
            found = visit(after, words, key, level + 1)
            if found is not None:
                break
    return Exploration(len(reached), transitions, depth, found, dict(marks), is_complete=found is None and not queue)


def _path_to(key: Hashable, reached: Mapping[Hashable, tuple[Hashable, str]]) -> tuple[str, ...]:
    steps: list[str] = []
    before, words = reached[key]
    while words:
        steps.append(words)
        before, words = reached[before]
    return tuple(reversed(steps))

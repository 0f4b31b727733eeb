"""A small explicit-state model checker: every state that some interleaving reaches, breadth first.

A model says which states there are at the start, what may happen next in each, and which invariants a state breaks. The
first state that breaks one is reported with the shortest way to it, in words.
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
        """What may happen next, in words, with the state that it leads to."""

    def broken(self, state: S) -> Iterable[str]:
        """The names of the invariants that do not hold here."""

    def marks(self, state: S) -> Iterable[str]:
        """What this state is an example of; a model whose marks are never met proves nothing."""

    def canonical(self, state: S) -> Hashable:
        """One and the same value for states that differ only in which process is which; the state itself is sound."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The shortest way to a state that breaks an invariant."""

    invariant: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"  {number}. {words}" for number, words in enumerate(self.steps, 1)]
        return "\n".join((f"{self.invariant} is broken after {len(self.steps)} steps:", *lines))


@dataclass(frozen=True, slots=True)
class Exploration:
    """What was found."""

    states: int
    transitions: int
    depth: int
    """The most steps that it takes to reach a state."""
    trace: Trace | None
    """None: no state breaks an invariant."""
    marks: Mapping[str, int]
    """How many states are an example of each."""
    is_complete: bool
    """Every reachable state was seen."""


def explore(model: Model[S], most_states: int = MOST_STATES) -> Exploration:
    """Visit every reachable state, or stop at the first that breaks an invariant."""
    # States are kept, and none is part of a cycle: to look for garbage among millions of them is most of the work.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _explore(model, most_states)
    finally:
        if was_enabled:
            gc.enable()


def _explore(model: Model[S], most_states: int) -> Exploration:
    # By its canonical form: the state that came first, how it was reached, and from which.
    came: dict[Hashable, tuple[Hashable, str]] = {}
    queue: deque[tuple[S, Hashable, int]] = deque()
    marks: Counter[str] = Counter()
    transitions = depth = 0

    def visit(state: S, words: str, before: Hashable, level: int) -> Trace | None:
        key = model.canonical(state)
        if key in came:
            return None
        came[key] = (before, words)
        marks.update(model.marks(state))
        # Expanded as it was reached, not in its canonical form: so names in a trace stay those of the same processes.
        queue.append((state, key, level))
        for invariant in model.broken(state):
            return Trace(invariant, _way_to(key, came))
        return None

    found = next((trace for each in model.initial() if (trace := visit(each, "", None, 0)) is not None), None)
    while queue and found is None and len(came) < most_states:
        state, key, level = queue.popleft()
        depth = level
        for words, after in model.steps(state):
            transitions += 1
            found = visit(after, words, key, level + 1)
            if found is not None:
                break
    return Exploration(len(came), transitions, depth, found, dict(marks), is_complete=found is None and not queue)


def _way_to(key: Hashable, came: Mapping[Hashable, tuple[Hashable, str]]) -> tuple[str, ...]:
    steps: list[str] = []
    before, words = came[key]
    while words:
        steps.append(words)
        before, words = came[before]
    return tuple(reversed(steps))

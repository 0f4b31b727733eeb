"""The calls of a run's clients and their outcomes, which the oracle checks."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from frazil.commit.retry import Retry
from frazil.model import Commit, Ident
from frazil_verification.simulator.steps import Condition, State, Step

Seen = tuple[Condition, State]
"""The condition of a scan, and the rows that it returned."""


class CallOutcome(enum.StrEnum):
    """The outcome of a call, as its caller knows it."""

    COMMITTED = "committed"
    UNCHANGED = "unchanged"
    """There was nothing to do."""
    FAILED = "failed"
    """An error that guarantees that nothing was committed."""
    UNKNOWN = "unknown"
    """CommitUnknown, or the caller died during the call."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One call; a write that is repeated under its commit id has several."""

    process: str
    started: int
    """The number of the newest event when it began."""
    finished: int | None = None
    """None: its process died."""
    outcome: CallOutcome = CallOutcome.UNKNOWN
    error: str = ""
    commit: Commit | None = None
    checks: frozenset[str] = frozenset()
    """Those that a conflict broke."""
    retry: Retry = field(default_factory=Retry)
    redone: int = 0
    """How often its statement was evaluated again."""
    has_id: bool = False
    """It was made under an id that its caller chose, or got from an earlier attempt."""
    undisturbed_since: int | None = None
    """The event of its last phase, if no fault struck afterwards."""


@dataclass(slots=True, eq=False)
class Write:
    """One write that a client wants committed once."""

    name: str
    table: Ident
    step: Step
    is_foreign: bool = False
    commit_id: str = ""
    """Empty until it is known."""
    attempts: list[Attempt] = field(default_factory=list)
    seen: Seen | None = None
    """The rows that its transaction read."""
    bases: list[int | None] = field(default_factory=list)
    """The base snapshots of its attempts."""
    is_doubled: bool = False
    """Two processes made it at the same time."""
    is_part: bool = False
    """Of a transaction over several tables."""

    @property
    def outcome(self) -> CallOutcome:
        """Over all attempts: an acknowledged one decides; otherwise an unknown one makes the write unknown."""
        outcomes = [each.outcome for each in self.attempts]
        for decisive in (CallOutcome.COMMITTED, CallOutcome.UNCHANGED, CallOutcome.UNKNOWN):
            if decisive in outcomes:
                return decisive
        return CallOutcome.FAILED

    @property
    def commit(self) -> Commit | None:
        return next((each.commit for each in self.attempts if each.outcome is CallOutcome.COMMITTED), None)

    @property
    def is_redone(self) -> bool:
        """It is in the table as it was evaluated again."""
        return self.commit is not None and self.commit.redone > 0

    @property
    def started(self) -> int:
        return self.attempts[0].started

    @property
    def acknowledged(self) -> int | None:
        """The event with which its caller got a success; None: it got none."""
        ends = [
            each.finished for each in self.attempts if each.outcome in (CallOutcome.COMMITTED, CallOutcome.UNCHANGED)
        ]
        return min((each for each in ends if each is not None), default=None)

    def __str__(self) -> str:
        last = self.attempts[-1] if self.attempts else None
        error = f" ({last.error})" if last is not None and last.error else ""
        return f"{self.name} {self.step}: {self.outcome.value}{error}"


@dataclass(slots=True, eq=False)
class JointWrite:
    """A transaction over several tables, under an id that its caller chose."""

    name: str
    kind: str
    """The actor that makes it."""
    parts: Mapping[Ident, Write]
    """One for each table that it writes to, in the order of its calls."""
    reads: Mapping[Ident, Condition]
    """What it reads first; these tables may also be written to."""
    decide: Callable[[Mapping[Ident, Seen]], Mapping[Ident, Step]] | None = None
    """Makes its steps from what it has read. None: they are fixed, so it may be made again under the same id."""
    isolation: str = "serializable"
    views: list[Mapping[Ident, Seen]] = field(default_factory=list)
    """What it has read, each time it was made."""

    @property
    def commit_id(self) -> str:
        return self.first.commit_id

    @property
    def first(self) -> Write:
        return next(iter(self.parts.values()))

    @property
    def is_doubled(self) -> bool:
        return self.first.is_doubled

    @is_doubled.setter
    def is_doubled(self, value: bool) -> None:
        for part in self.parts.values():
            part.is_doubled = value

    @property
    def outcome(self) -> CallOutcome:
        """A success where it has changed any table."""
        outcomes = [each.outcome for each in self.parts.values()]
        return CallOutcome.COMMITTED if CallOutcome.COMMITTED in outcomes else outcomes[0]

    def __str__(self) -> str:
        calls = ", ".join(f"{ident.name}.{part.step}" for ident, part in self.parts.items())
        reads = f"reads {', '.join(each.name for each in self.reads)}; " if self.reads else ""
        return f"{self.name} {self.kind}({reads}{calls}, at {self.isolation}): {self.outcome.value}"


@dataclass(frozen=True, slots=True)
class Audit:
    """Several tables that were read at one instant."""

    name: str
    seen: Mapping[Ident, tuple[int | None, State]]
    """Table → the snapshot that was read, and its rows."""
    started: int
    """The event before it was pinned."""
    pinned: int


@dataclass(frozen=True, slots=True)
class Read:
    """Rows that a reader returned."""

    name: str
    table: Ident
    snapshot_id: int | None
    rows: State
    started: int
    """The event before it was pinned."""
    pinned: int


@dataclass(slots=True)
class Records:
    writes: list[Write] = field(default_factory=list)
    joint: list[JointWrite] = field(default_factory=list)
    audits: list[Audit] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    deaths: dict[str, float] = field(default_factory=dict)
    """Process → the time of its death."""
    late: set[str] = field(default_factory=set)
    """Processes with a transaction that arrived late, or twice."""
    problems: list[str] = field(default_factory=list)
    """Violations that were found during the run."""

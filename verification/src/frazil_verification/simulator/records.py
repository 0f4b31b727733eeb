"""What the clients of a run did and were told: the material that the oracle judges."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from frazil.model import Commit
from frazil_verification.simulator.steps import Condition, State, Step


class Told(enum.StrEnum):
    """What a caller knows about its call."""

    COMMITTED = "committed"
    UNCHANGED = "unchanged"
    """There was nothing to do."""
    FAILED = "failed"
    """For certain: an error that promises that nothing was committed."""
    UNKNOWN = "unknown"
    """The caller was told so, or did not live to be told anything."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One call; a write that is sent again under its commit id has several."""

    process: str
    started: int
    """The number of the newest event when it was made."""
    finished: int | None = None
    """None: its process died."""
    told: Told = Told.UNKNOWN
    error: str = ""
    commit: Commit | None = None
    has_id: bool = False
    """It was made under an id that its caller chose, or was told."""
    undisturbed_since: int | None = None
    """Its last phase, after which it met no fault; None: it did."""


@dataclass(slots=True, eq=False)
class Write:
    """One write that a client wants done once."""

    name: str
    step: Step
    is_foreign: bool = False
    commit_id: str = ""
    """Empty until it is known."""
    attempts: list[Attempt] = field(default_factory=list)
    seen: tuple[Condition, State] | None = None
    """What its transaction had read, on which it depends."""
    bases: list[int | None] = field(default_factory=list)
    """The snapshots that its attempts were made on."""
    is_doubled: bool = False
    """Two processes were at it at once."""

    @property
    def told(self) -> Told:
        """Over all attempts: one that was acknowledged decides, one in doubt leaves the whole in doubt."""
        told = [each.told for each in self.attempts]
        for decisive in (Told.COMMITTED, Told.UNCHANGED, Told.UNKNOWN):
            if decisive in told:
                return decisive
        return Told.FAILED

    @property
    def commit(self) -> Commit | None:
        return next((each.commit for each in self.attempts if each.told is Told.COMMITTED), None)

    @property
    def started(self) -> int:
        return self.attempts[0].started

    @property
    def acknowledged(self) -> int | None:
        """The event by which its caller knew that it is done; None: it never did."""
        ends = [each.finished for each in self.attempts if each.told in (Told.COMMITTED, Told.UNCHANGED)]
        return min((each for each in ends if each is not None), default=None)

    def __str__(self) -> str:
        last = self.attempts[-1] if self.attempts else None
        error = f" ({last.error})" if last is not None and last.error else ""
        return f"{self.name} {self.step}: {self.told.value}{error}"


@dataclass(frozen=True, slots=True)
class Read:
    """Rows that a reader saw."""

    name: str
    snapshot_id: int | None
    rows: State
    started: int
    """Before it was pinned."""
    pinned: int


@dataclass(slots=True)
class Records:
    table: str
    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    deaths: dict[str, float] = field(default_factory=dict)
    """Process → when it died."""
    late: set[str] = field(default_factory=set)
    """Processes with a transaction that arrived late, or twice."""
    problems: list[str] = field(default_factory=list)
    """What was found to be wrong during the run."""

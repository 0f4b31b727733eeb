"""What a commit has seen and done so far, over all of its attempts."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from frazil import observe
from frazil.commit.build import AttemptFiles
from frazil.commit.context import CommitContext, Phase
from frazil.commit.stages import Built
from frazil.commit.unit import CommitUnit, TableUnit
from frazil.format.metadata import TableMetadata
from frazil.model import Conflict, Ident


class SwapState(enum.Enum):
    """What is known about the swaps that were sent. It decides what a failure may delete."""

    SETTLED = "no swap that was sent can land any more"
    IN_DOUBT = "a swap was sent, and its outcome is not known yet"
    LANDED = "the commit has landed"


class Progress:
    """One commit's counters, its newest swap and its clock. Made for one call; changed by its own methods only."""

    def __init__(self, context: CommitContext, unit: CommitUnit) -> None:
        self._context = context
        self._unit = unit
        self._started = context.runtime.monotonic()
        self._attempt_began = self._started
        self.attempts = 0
        self.lost = 0
        """Races in a row."""
        self.faults = 0
        self.redone = 0
        """How often the statement was evaluated again."""
        self.first_base: int | None = None
        """The snapshot that it was evaluated on first, if it was evaluated again."""
        self.last_fault = ""
        """The kind of the newest one."""
        self.state = SwapState.SETTLED
        self.first_heads: dict[Ident, TableMetadata] = {}
        """The heads that the first attempt found."""
        self.newest_heads: dict[Ident, TableMetadata] = {}
        self.sent: Mapping[Ident, Built] = {}
        """What the newest swap proposed."""
        self.sent_files: AttemptFiles | None = None

    # Attempts

    def begin_attempt(self) -> None:
        self.attempts += 1
        self._attempt_began = self._context.runtime.monotonic()

    def lost_race(self) -> None:
        self.lost += 1

    def met_fault(self, kind: str) -> None:
        self.faults += 1
        self.last_fault = kind

    def redoes(self, conflicts: Sequence[Conflict], table: TableUnit) -> None:
        if not self.redone:
            self.first_base = table.base_id
        self.redone += 1
        self.attempt_ended("redone", ", ".join(dict.fromkeys(str(each.check) for each in conflicts)))
        self.reached(Phase.REDONE)

    def found_head(self, ident: Ident, head: TableMetadata) -> None:
        self.newest_heads[ident] = head
        self.first_heads.setdefault(ident, head)

    # The swap

    def sends(self, built: Mapping[Ident, Built], files: AttemptFiles) -> None:
        self.state = SwapState.IN_DOUBT
        self.sent, self.sent_files = built, files

    def doubts(self) -> None:
        """Another writer may have committed the operation."""
        self.state = SwapState.IN_DOUBT

    def settles(self) -> None:
        self.state = SwapState.SETTLED

    def lands(self) -> None:
        self.state = SwapState.LANDED

    # Time, phases and events

    @property
    def is_late(self) -> bool:
        total_s = self._unit.retry.total_s
        return total_s is not None and self.elapsed > total_s

    @property
    def elapsed(self) -> float:
        return self._context.runtime.monotonic() - self._started

    def reached(self, phase: Phase) -> None:
        self._context.on_phase(phase, self.attempts)

    def attempt_ended(self, outcome: str, detail: str = "") -> None:
        observe.attempt(
            table=self._unit.subject,
            operation=self._unit.name,
            outcome=outcome,
            number=self.attempts,
            commit_id=self._unit.identity.commit_id,
            seconds=self._context.runtime.monotonic() - self._attempt_began,
            detail=detail,
            origin=self._unit.identity.origin,
        )

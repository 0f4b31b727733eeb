"""What a history leaves behind: the writers' records and the table's versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from concurrency.histories.model import REDOABLE, WITHOUT_ROWS, Row, Step


@dataclass(frozen=True)
class Record:
    """One program's life: its steps, and how it ended."""

    id: str
    """Also its commit id, by which the table's versions name it."""
    steps: tuple[Step, ...]
    outcome: str
    """committed, unchanged (matched nothing), abandoned (only read), conflict, exhausted, refused, unknown, crashed."""
    started: float
    finished: float
    """On one clock for all writers of a history."""
    transaction: bool = False
    snapshot_id: int | None = None
    """None: no snapshot was made for it."""
    group_index: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    redone: int = 0
    """How often its statement was evaluated again before it was committed."""
    checks: tuple[str, ...] = ()
    """Of a conflict: the names of the checks that refused it."""
    detail: str = ""

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Record:
        steps = tuple(Step.from_json(each) for each in raw["steps"])
        return Record(**{**raw, "steps": steps, "checks": tuple(raw["checks"])})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def name(self) -> str:
        return "transaction" if self.transaction else self.steps[0].verb

    @property
    def makes_snapshot(self) -> bool:
        return self.outcome == "committed" and self.steps[0].verb not in WITHOUT_ROWS

    @property
    def is_redoable(self) -> bool:
        """A statement that looks at the table, outside of transactions."""
        step = self.steps[0]
        is_keyed = step.verb == "upsert" and step.mode in (None, "equality")
        return not self.transaction and step.verb in REDOABLE and not is_keyed

    @property
    def verdict(self) -> str:
        return "redone" if self.redone else self.outcome

    def __str__(self) -> str:
        where = f" as snapshot {self.snapshot_id}" if self.makes_snapshot else ""
        steps = "\n".join(f"      {step}" for step in self.steps)
        detail = f"\n      {self.detail}" if self.detail else ""
        return f"{self.id} ({self.name}) {self.verdict}{where}\n{steps}{detail}"


@dataclass(frozen=True)
class Version:
    """A snapshot of the branch's history, with the commit id that its summary names."""

    snapshot_id: int
    commit_id: str


@dataclass(frozen=True)
class Remains:
    """The table after a history: its versions oldest first, and the way to read one."""

    versions: Sequence[Version]
    read: Callable[[int], Iterable[Row]]
    columns: Mapping[str, str] = field(default_factory=dict)
    """Name → type, in the words of ``add_column``."""
    properties: Mapping[str, str] = field(default_factory=dict)

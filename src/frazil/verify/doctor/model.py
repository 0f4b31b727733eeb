"""The doctor's findings, and the records of a race that they are computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import orjson

from frazil.catalog.base import Committed, Stale, Unknown

Severity = Literal["violation", "warning", "ok"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``violation``: the catalog broke a guarantee that commits need. ``warning``: it may, in some circumstances."""

    severity: Severity
    what: str
    evidence: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    uri: str
    """Without secrets."""
    rounds: int
    processes: int
    elapsed_s: float
    findings: tuple[Finding, ...]

    @property
    def violations(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "violation")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "warning")

    @property
    def verdict(self) -> str:
        # Documented words: scripts match them, so that they have no singular.
        return "not atomic" if self.violations else f"no violation in {self.rounds} rounds"

    @property
    def exit_status(self) -> int:
        return 1 if self.violations else 0

    def to_json(self) -> str:
        plain: Mapping[str, Any] = {"verdict": self.verdict, **asdict(self)}
        return orjson.dumps(plain, option=orjson.OPT_INDENT_2).decode()


@dataclass(frozen=True, slots=True)
class Refused:
    """The call raised an error. Whether the swap landed is read from the table."""

    error: str


Answer = Committed | Stale | Unknown | Refused


@dataclass(frozen=True, slots=True)
class Observation:
    """The head as one process loaded it, with the process's clock before and after the call."""

    worker: int
    location: str
    snapshot_id: int | None
    now_ms: int
    asked_ms: int
    answered_ms: int


@dataclass(frozen=True, slots=True)
class SentSwap:
    """One swap: the process that sent it, the expected and the new snapshot, and the answer."""

    worker: int
    expected: int | None
    snapshot_id: int
    location: str | None
    """The metadata file the swap points to; None where the catalog's server writes it."""
    answer: Answer


@dataclass(frozen=True, slots=True)
class Round:
    """Swaps sent at one moment, and the head as every process loaded it after the last answer."""

    number: int
    kind: str
    head: int | None
    """The snapshot that was current when the swaps were sent."""
    head_location: str
    swaps: tuple[SentSwap, ...]
    after: tuple[Observation, ...]

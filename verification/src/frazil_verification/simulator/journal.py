"""The ordered events of a run: a digest of all of them, and the last lines in words.

Kept results name digests, so the texts of events and faults do not change.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from dataclasses import dataclass, field

from frazil_verification.simulator.faults import Fault
from frazil_verification.simulator.schedule import Schedule

LINES_KEPT = 400


@dataclass(slots=True)
class Journal:
    schedule: Schedule
    events: int = 0
    """The number of the newest event: the order in which things happened."""
    faults: Counter[str] = field(default_factory=Counter)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_KEPT))
    _digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def note(self, process: str, what: str) -> int:
        """Record an event; returns its number."""
        self.events += 1
        line = f"{self.events:6} {self.schedule.now:11.6f} {process}: {what}"
        self._digest.update(line.encode())
        self.lines.append(line)
        return self.events

    def struck(self, process: str, fault: Fault, detail: str = "") -> None:
        self.faults[fault.value] += 1
        self.note(process, f"FAULT {fault.value} {detail}".rstrip())

    def seal(self, data: bytes) -> None:
        """Add the final data of a run to the digest."""
        self._digest.update(data)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

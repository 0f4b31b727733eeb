"""Where a commit happens, and the named moments of an attempt."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from frazil.catalog.base import Catalog
from frazil.format.storage import Storage
from frazil.model import Ident
from frazil.runtime import SYSTEM, Runtime


class Phase(enum.StrEnum):
    """Named moments of an attempt, so that a test can hold one writer there and let another one go first."""

    HEAD_READ = "head read"
    TABLE_PREPARED = "table prepared"
    """The metadata file of one of several tables is written."""
    PREPARED = "prepared"
    SWAPPED = "swapped"
    WAITING = "waiting"
    REDONE = "redone"
    """The statement was evaluated again."""
    QUEUED = "queued"
    """The commit is in the queue."""
    YIELDING = "yielding"
    """The commit of a service lets other writers go first."""


OnPhase = Callable[[Phase, int], None]
"""Called with the phase and the number of the attempt."""


def _ignore_phase(_phase: Phase, _attempt: int) -> None:
    """The default of ``CommitContext.on_phase``."""


@dataclass(frozen=True, slots=True)
class CommitContext:
    """The catalog, storage and table of a commit."""

    catalog: Catalog
    storage: Storage
    ident: Ident
    runtime: Runtime = SYSTEM
    on_phase: OnPhase = field(default=_ignore_phase)

    def without_phases(self) -> CommitContext:
        return CommitContext(self.catalog, self.storage, self.ident, self.runtime)

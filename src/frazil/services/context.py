"""Where a service runs, and the named moments of services that delete."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from frazil.catalog.base import Head, LakeCatalog
from frazil.format.storage import Storage
from frazil.model import Ident
from frazil.runtime import SYSTEM, Runtime
from frazil.services.progress import NoProgress, ServiceProgress


class DeletionPhase(enum.StrEnum):
    """Named moments, so that a test can hold or end a service there."""

    COMMITTED = "committed"
    """The snapshots are expired; what only they need is recorded with the swap."""
    NOTING = "noting"
    """Some of the files to delete are noted."""
    NOTED = "noted"
    """All files to delete are noted in the catalog."""
    CHECKED = "checked"
    """What is still needed was found again, on the newest head. Files are deleted next."""
    DELETED = "deleted"
    """A batch of files is deleted, and still noted."""
    FORGOTTEN = "forgotten"
    """The batch is no longer noted."""
    LISTED = "listed"
    """The files below a location are listed; what is needed is read next."""


OnDeletion = Callable[[DeletionPhase], None]


def ignore_phase(_phase: DeletionPhase) -> None:
    """The default of ``ServiceContext.on_phase``."""


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """One table of a catalog, for services that delete."""

    catalog: LakeCatalog
    storage: Storage
    ident: Ident
    runtime: Runtime = SYSTEM
    on_phase: OnDeletion = ignore_phase
    progress: ServiceProgress = field(default_factory=NoProgress)

    def head(self) -> Head:
        return self.catalog.load(self.ident)

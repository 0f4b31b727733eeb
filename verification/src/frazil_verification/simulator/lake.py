"""The real lake, catalog, store and queue over the simulated database and files. Nothing of the protocol is here."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from frazil.catalog._db import Db
from frazil.catalog._sql import TABLES, SqlStore
from frazil.catalog.base import Committed, Head, LakeCatalog, OpenedCatalog, Outcome, Prepared, Proposal, Stale
from frazil.catalog.foreign import ForeignCatalog
from frazil.catalog.pointer import PointerCatalog
from frazil.catalog.records import COMMIT_DIGEST, COMMIT_ID
from frazil.catalog.store import Swap
from frazil.commit.context import CommitContext, OnPhase
from frazil.format.storage import Backend, Storage
from frazil.lake import Lake, _Connection
from frazil.model import Ident, Origin
from frazil.runtime import Runtime
from frazil_verification.simulator.database import SimulatedEngine
from frazil_verification.simulator.files import SimulatedFiles
from frazil_verification.simulator.server import SimulatedGlue, SimulatedRest

if TYPE_CHECKING:
    from frazil_verification.simulator.process import Process

TABLE = Ident(("sim",), "t")
"""The table of every scene but the bank."""
CHECKING, SAVINGS, LEDGER = (Ident(("sim",), name) for name in ("checking", "savings", "ledger"))
ACCOUNTS = (CHECKING, SAVINGS)
BANK = (*ACCOUNTS, LEDGER)
WAREHOUSE = "/simulated"
_FRAZIL_KEYS = (COMMIT_ID, COMMIT_DIGEST, "frazil.")


class CatalogKind(enum.StrEnum):
    DATABASE = "database"
    """Frazil's own catalog, with a queue and definite answers."""
    REST = "rest"
    GLUE = "glue"
    """Third-party servers, which have no queue."""
    NOT_ATOMIC = "not-atomic"
    """A database whose swap is not atomic. On it the rules must be broken."""

    @property
    def is_ours(self) -> bool:
        return self not in _SERVERS


_SERVERS = {CatalogKind.REST: SimulatedRest, CatalogKind.GLUE: SimulatedGlue}


class SimulatedLake(Lake):
    """A lake of one process. Every phase of its commits is a moment at which the process may die."""

    def __init__(self, process: Process, *, is_foreign: bool = False, kind: CatalogKind = CatalogKind.DATABASE) -> None:
        self._process = process
        connection = _SimulatedConnection(process, is_foreign, kind)
        super().__init__(cast("_Connection", connection), process.runtime())

    def commit_context(self, ident: Ident, on_phase: OnPhase | None = None) -> CommitContext:
        def at(phase: Any, attempt: int) -> None:
            if on_phase is not None:
                on_phase(phase, attempt)
            self._process.at_phase(str(phase))

        return replace(super().commit_context(ident), on_phase=at)

    def origin(self, verb: str) -> Origin:
        """The same on every machine."""
        return Origin(self._process.name, "", verb, self.runtime.now_ms())


@dataclass(frozen=True, slots=True)
class _SimulatedConnection:
    """The connection of a lake, in place of one that a URI names."""

    process: Process
    is_foreign: bool
    kind: CatalogKind
    uri: str = "simulated:"
    warehouse: str | None = WAREHOUSE
    name: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    read_only: bool = False
    create: bool = True

    def open(self, runtime: Runtime) -> OpenedCatalog:
        storage = _SimulatedStorage(self.process)
        return OpenedCatalog(self._catalog(storage, runtime), storage, WAREHOUSE, self.uri, "memory", created=False)

    def _catalog(self, storage: Storage, runtime: Runtime) -> LakeCatalog:
        if self.kind in _SERVERS:
            server = cast("Any", _SERVERS[self.kind](self.process))
            return (_ForeignServerWriter if self.is_foreign else ForeignCatalog)(server, storage, runtime)
        kind = _NotAtomic if self.kind is CatalogKind.NOT_ATOMIC else SqlStore
        store = kind(SimulatedEngine(self.process), name="sim", read_only=False, create=True, shown="simulated")
        catalog = (_ForeignWriter if self.is_foreign else PointerCatalog)(store, storage, runtime)
        # Nothing is decided by them, and their requests would move the faults of every seed.
        catalog.attempts = catalog.staged = catalog.timeline = catalog.leases = None
        return catalog


class _SimulatedStorage(Storage):
    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def _open(self, scheme: str, path: str) -> Backend:  # noqa: ARG002 - there is one kind
        return SimulatedFiles(self._process)


class _ForeignWriter(PointerCatalog):
    """Commits as other engines do: no queue, no commit lock, no records beside the pointer, no Frazil properties."""

    def __init__(self, store: SqlStore, storage: Storage, runtime: Runtime) -> None:
        super().__init__(store, storage, runtime)
        self.queue = self.locks = None

    def prepare(self, ident: Ident, head: Head, proposal: Proposal) -> Prepared:
        return super().prepare(ident, head, _unmarked(proposal))


class _ForeignServerWriter(ForeignCatalog):
    """The same on a third-party catalog."""

    def __init__(self, server: Any, storage: Storage, runtime: Runtime) -> None:
        super().__init__(server, storage, runtime)
        self.queue = self.locks = None

    def prepare(self, ident: Ident, head: Head, proposal: Proposal) -> Prepared:
        return super().prepare(ident, head, _unmarked(proposal))


def _unmarked(proposal: Proposal) -> Proposal:
    return Proposal(tuple(map(_plain, proposal.updates)), proposal.requirements)


def _plain(update: dict[str, Any]) -> dict[str, Any]:
    if update.get("action") != "add-snapshot":
        return update
    summary = {key: text for key, text in update["snapshot"]["summary"].items() if not key.startswith(_FRAZIL_KEYS)}
    return {**update, "snapshot": {**update["snapshot"], "summary": summary}}


class _NotAtomic(SqlStore):
    """A catalog that reads the pointer and then writes it, not atomically, and one table after the other."""

    def _send(self, swap: Swap) -> Outcome:
        left = swap
        for pointer in swap.pointers:
            outcome = self._send_one(replace(left, pointers=(pointer,), guards=()))
            if not isinstance(outcome, Committed):
                return outcome
            left = Swap(())
        return swap.committed

    def _send_one(self, swap: Swap) -> Outcome:
        (pointer,) = swap.pointers
        actual = self._engine.read(lambda db: self._location(db, pointer.ident))
        if actual != pointer.expected:
            return swap.committed if actual == pointer.new else Stale(actual)
        return super()._send(swap)

    def _swap(self, db: Db, swap: Swap) -> Committed | Stale:
        # The pointer is overwritten whatever its current value is.
        (pointer,) = swap.pointers
        sql = f"UPDATE {TABLES} SET metadata_location = ? WHERE table_name = ?"  # noqa: S608
        db.execute(sql, (pointer.expected, pointer.ident.name))
        return super()._swap(db, swap)

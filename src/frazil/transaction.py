"""Reads and writes that take effect together.

A transaction pins all tables at one instant when it first touches any of them (rule P28). Its verbs stage files and
keep their operations; its scans see what its verbs did and are its read set. Committing sends the operations as one
chain, checked against everything that landed since the instant.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from frazil import observe
from frazil.catalog.base import Head
from frazil.commit.checking import conflicts_at
from frazil.commit.loop import commit
from frazil.commit.metadata_changes import pin
from frazil.commit.operations import Base, Identity, Kind, MetadataChange, Operation, Read, Write, digest
from frazil.commit.proposal import applied
from frazil.commit.results import conflict_error
from frazil.commit.retention import asks_for_it
from frazil.commit.retry import Retry, from_properties
from frazil.commit.stages import Refused
from frazil.commit.unit import TableUnit
from frazil.errors import FrazilError, InvalidInput, NoSuchTable, Unsupported
from frazil.expr import Filter
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.storage import Storage
from frazil.format.updates import apply
from frazil.model import Commit, Ident, Isolation
from frazil.runtime import Runtime
from frazil.verbs import Call, Verbs, WriteOptions

if TYPE_CHECKING:
    from frazil.lake import Lake

_PINNED_MS = 24 * 60 * 60 * 1000
"""A transaction that is open for longer, or whose process died, has its snapshots no longer for sure."""
_OF_THE_TRANSACTION = ("isolation", "retry", "commit_id", "dry_run", "on_phase", "own_snapshot")


class Instant:
    """Every table as it was at one moment: the pointers from one statement, the metadata when it is asked for."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._pointers = lake.catalog.instant()
        self._heads: dict[Ident, Head] = {}

    def head(self, ident: Ident) -> Head:
        if ident not in self._heads:
            self._heads[ident] = self._load(ident)
        return self._heads[ident]

    def _load(self, ident: Ident) -> Head:
        if self._pointers is None:
            # A catalog that cannot say where all tables are at once: each is pinned when it is first touched.
            return self._lake.catalog.load(ident)
        if ident not in self._pointers:
            raise NoSuchTable(f"There was no table {ident} when this instant was pinned")
        return self._lake.catalog.load_at(ident, self._pointers[ident])


class LakeSnapshot:
    """One instant of all tables of a lake; ``table(name)`` reads as they were."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._instant = Instant(lake)

    def table(self, name: str | tuple[str, ...]) -> TransactionTable:
        """A table as it was at this instant. It can be read, and refuses to be written to."""
        return TransactionTable(_Reading(self._lake, self._instant), Ident.parse(name))


@dataclass(slots=True)
class _Work:
    """What a transaction has done to one table so far."""

    head: Head
    metadata: TableMetadata
    """The pinned version with everything applied that the transaction did."""
    operations: list[Operation] = field(default_factory=list)
    bases: list[TableMetadata] = field(default_factory=list)
    """The version that each operation was made on."""
    applied: int = 0
    """How many of the operations are in ``metadata``."""
    reads: dict[str, list[Read]] = field(default_factory=dict)
    """Branch → what was scanned there."""
    scratch: list[TableUnit] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)
    """Files written only so that the transaction can read its own rows."""


class _Session:
    """What transactions and instants have in common: pinned tables."""

    def __init__(self, lake: Lake, instant: Instant | None = None) -> None:
        self.lake = lake
        self._instant = instant
        self._works: dict[Ident, _Work] = {}

    def work(self, ident: Ident) -> _Work:
        if self._instant is None:
            self._instant = Instant(self.lake)
        if ident not in self._works:
            head = self._instant.head(ident)
            self._works[ident] = _Work(head, head.metadata)
        return self._works[ident]

    def add(self, ident: Ident, operation: Operation, base: TableMetadata) -> None:
        raise NotImplementedError

    def check_usable(self, ident: Ident) -> None:
        """Raises InvalidInput or Unsupported when nothing may be written."""
        raise NotImplementedError

    isolation = Isolation.SERIALIZABLE


class _Reading(_Session):
    def check_usable(self, ident: Ident) -> None:
        raise InvalidInput(
            f"This is {ident} as it was at one instant, which can only be read", advice="Write to lake.table(…)"
        )


class Transaction(_Session):
    """Several reads and writes of one table, one commit. Use it in a ``with`` block, from one thread at a time."""

    def __init__(self, lake: Lake, *, isolation: str, retry: Retry | None, commit_id: str | None) -> None:
        super().__init__(lake)
        lake.check_writable()
        if isolation not in tuple(Isolation):
            raise InvalidInput(f"isolation must be 'serializable' or 'snapshot', not {isolation!r}")
        if retry is not None and not isinstance(retry, Retry):
            raise InvalidInput(f"retry must be a frazil.Retry, not {retry!r}")
        self.isolation = Isolation(isolation)
        self._retry = retry
        self._commit_id = commit_id
        self._written: Ident | None = None
        self._state = "open"
        self._pid = os.getpid()
        self._pins: list[str] = []
        observe.begun(self)

    def table(self, name: str | tuple[str, ...]) -> TransactionTable:
        """A table as the transaction sees it: pinned, with the transaction's own changes."""
        self._check_open()
        ident = Ident.parse(name)
        self.work(ident)
        return TransactionTable(self, ident)

    def work(self, ident: Ident) -> _Work:
        self._check_open()
        is_new = ident not in self._works
        work = super().work(ident)
        if is_new and asks_for_it(work.head.metadata):
            self._pin(work.head.metadata)
        return work

    def _pin(self, metadata: TableMetadata) -> None:
        """What this transaction reads stays until it ends, however long that takes (rule P18)."""
        needed = [found for ref in metadata.refs if (found := metadata.ref_snapshot_id(ref)) is not None]
        self._pins.append(self.lake.runtime.new_hex())
        with suppress(FrazilError):
            # Without it the checks have more to read, and that is all.
            if (pins := self.lake.catalog.pins) is not None:
                pins.pin(self._pins[-1], metadata.uuid, needed, _PINNED_MS)

    def _unpin(self) -> None:
        for key in self._pins:
            with suppress(FrazilError):
                if (pins := self.lake.catalog.pins) is not None:
                    pins.unpin(key)
        self._pins = []

    def commit(self) -> Commit | None:
        """Make everything visible at once. None: there was nothing to commit. Raises ConflictError and its like."""
        self._check_open()
        try:
            with observe.ending(self):
                return self._commit()
        finally:
            self._unpin()

    def _commit(self) -> Commit | None:
        self._state = "committed"
        try:
            if self._written is None:
                return None
            work = self._works[self._written]
            identity = self._identity()
            retry = self._retry or from_properties(work.head.metadata.properties)
            operations = self._final(work)
            self._check_other_tables()
        except BaseException:
            self._drop_staged()
            raise
        finally:
            self._drop_scratch()
        return commit(self.lake.commit_context(self._written), operations, identity, retry)

    def rollback(self) -> None:
        """Forget everything; the files that were staged are removed. A second call does nothing."""
        if self._state != "open":
            return
        self._state = "rolled back"
        observe.rolled_back(self)
        if os.getpid() == self._pid:
            # A forked child has a copy of the transaction, and the files are its parent's.
            self._drop_staged()
            self._drop_scratch()
            self._unpin()

    def __enter__(self) -> Transaction:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.rollback()
        elif self._state == "open":
            self.commit()

    # Used by its tables

    def check_usable(self, ident: Ident) -> None:
        self._check_open()
        if self._written not in (None, ident):
            raise Unsupported(
                f"This transaction already writes to {self._written}, and one that writes to several tables is not in "
                "this release",
                advice="Commit one before the other",
            )

    def add(self, ident: Ident, operation: Operation, base: TableMetadata) -> None:
        self.check_usable(ident)
        self._written = ident
        self._works[ident].operations.append(operation)
        self._works[ident].bases.append(base)

    def _identity(self) -> Identity:
        text = self._commit_id
        if text is not None and (not isinstance(text, str) or not text.strip() or len(text) > 200):
            raise InvalidInput(f"commit_id must be a text of 1 to 200 characters, not {text!r}")
        given = text is not None
        chosen = text if text is not None else str(self.lake.runtime.new_uuid())
        return Identity(chosen, digest("transaction", table=str(self._written)), given)

    def _check_open(self) -> None:
        if self._state != "open":
            raise InvalidInput(f"This transaction is {self._state}", advice="Begin another one")
        if os.getpid() != self._pid:
            raise InvalidInput("This transaction was begun by another process", advice="Begin one after the fork")

    def _final(self, work: _Work) -> list[Operation]:
        """The operations as they are checked and committed: all against the instant, what was read at the end."""
        operations: list[Operation] = []
        for number, (operation, base) in enumerate(zip(work.operations, work.bases, strict=True)):
            if isinstance(operation, MetadataChange):
                # What came after it uses the ids it gave out, so it has to give out the same ones again (P16).
                is_last = number + 1 == len(work.operations)
                intent = operation.intent if is_last else pin(operation.intent, base)
                operations.append(replace(operation, intent=intent))
            else:
                operations.append(replace(operation, base=_base(work.head.metadata, operation.branch)))
        return [*operations, *self._reads(work)]

    def _reads(self, work: _Work) -> list[Write]:
        """What was scanned, as steps that write nothing: they are checked, and that is all."""
        if self.isolation is not Isolation.SERIALIZABLE:
            return []
        return [
            Write(
                Kind.APPEND,
                work.head.metadata.uuid,
                base=_base(work.head.metadata, branch),
                branch=branch,
                reads=tuple(reads),
            )
            for branch, reads in work.reads.items()
        ]

    def _check_other_tables(self) -> None:
        """Tables that were only read. They are looked at right before the commit, not in the same instant as it."""
        for ident, work in self._works.items():
            reads = self._reads(work)
            if ident == self._written or not reads:
                continue
            head = self.lake.catalog.load(ident)
            if head.location != work.head.location:
                conflicts = conflicts_at(ident, reads, head, self.lake.catalog, self.lake.storage, self.lake.runtime)
                if conflicts:
                    raise conflict_error("transaction", ident, conflicts)

    def _drop_staged(self) -> None:
        for work in self._works.values():
            for operation in work.operations:
                if isinstance(operation, Write):
                    self.lake.storage.delete(operation.staged_paths)

    def _drop_scratch(self) -> None:
        for work in self._works.values():
            for unit in work.scratch:
                unit.remove_scratch()
            self.lake.storage.delete(work.lists)
            work.scratch, work.lists = [], []


class TransactionTable(Verbs):
    """A table inside a transaction. Its verbs take what every write takes, but for what the transaction decides."""

    _commits_at_once = False

    def __init__(self, session: _Session, ident: Ident) -> None:
        self._session = session
        self._ident = ident

    @property
    def name(self) -> str:
        return str(self._ident)

    def __repr__(self) -> str:
        return f"TransactionTable({self.name!r})"

    @property
    def _storage(self) -> Storage:
        return self._session.lake.storage

    @property
    def _runtime(self) -> Runtime:
        return self._session.lake.runtime

    @property
    def _spark(self) -> Any:
        return self._session.lake.spark

    def _metadata(self) -> TableMetadata:
        """The pinned version with what the transaction has done to it, which is applied when somebody looks."""
        work = self._session.work(self._ident)
        lake = self._session.lake
        for operation in work.operations[work.applied :]:
            unit = TableUnit.of(self._ident, [operation], lake.storage, lake.runtime)
            work.scratch.append(unit)
            built, written = applied(unit, replace(work.head, metadata=work.metadata), lake.catalog, lake.runtime)
            if isinstance(built, Refused):
                raise conflict_error(operation.name, self._ident, built.conflicts)
            work.applied += 1
            work.lists.extend(written)
            work.metadata = apply(work.metadata, built.updates, now_ms=work.head.now_ms, previous_location=None)
        return work.metadata

    def _saw(self, where: Filter, branch: str) -> None:
        work = self._session.work(self._ident)
        # A branch that the transaction itself has made shows what main had when it was pinned.
        known = branch if branch in work.head.metadata.refs else MAIN
        work.reads.setdefault(known, []).append(Read(where, sees_removals=True))

    def _begin(
        self,
        verb: str,
        given: WriteOptions,
        parameters: Mapping[str, object],
        rows: object = None,
        *,
        needs_spark: bool = False,
    ) -> Call:
        self._session.check_usable(self._ident)
        for name in _OF_THE_TRANSACTION:
            if name in given:
                raise InvalidInput(
                    f"{name} belongs to the transaction, not to one of its writes",
                    advice=f"Write lake.transaction({name}=…)" if name in ("isolation", "retry", "commit_id") else None,
                )
        isolation: WriteOptions = {"isolation": self._session.isolation}
        return super()._begin(verb, {**given, **isolation}, parameters, rows, needs_spark=needs_spark)

    def _identity(self, commit_id: str | None, verb: str, **parameters: object) -> Identity:  # noqa: ARG002
        return Identity(str(self._runtime.new_uuid()), "", given=commit_id is not None)

    def _find(self, identity: Identity, metadata: TableMetadata, branch: str) -> Commit | None:  # noqa: ARG002
        self._session.check_usable(self._ident)
        return None

    def _finish(self, call: Call, write: Write) -> Commit:
        if not write.is_empty:
            for change in call.before:
                self._session.add(self._ident, change, self._metadata())
        # Named now: a branch or a tag that the transaction sets later may point to it.
        named = replace(write, snapshot_id=self._runtime.new_snapshot_id())
        self._session.add(self._ident, named, call.view.metadata)
        rows = write.rows
        return call.preview(rows.inserted, rows.updated, rows.deleted)

    def _prepare(self, call: Call, change: MetadataChange) -> TableMetadata:
        self._session.add(self._ident, change, call.view.metadata)
        return self._metadata()

    def _change(self, change: MetadataChange, identity: Identity, base: TableMetadata, retry: Retry | None) -> Commit:
        if retry is not None or identity.given:
            raise InvalidInput("retry and commit_id belong to the transaction", advice="Write lake.transaction(…)")
        self._session.add(self._ident, change, base)
        return Commit(base.ref_snapshot_id(MAIN), base.last_sequence_number, "", attempts=0, changed=False)


def _base(metadata: TableMetadata, branch: str) -> Base:
    return Base.of(metadata.head_snapshot(branch))

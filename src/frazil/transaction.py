"""Reads and writes that take effect together.

A transaction pins all tables at one instant when it first touches any of them (rule P28). Its verbs stage files and
keep their operations; its scans see the rows of its own writes and are its read set. Committing sends the operations of
each table as one chain, checked against everything that landed since the instant, and all tables in one swap.
"""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from frazil import observe
from frazil.catalog.base import Head
from frazil.commit.checking import conflicts_at
from frazil.commit.combine import combined
from frazil.commit.context import OnPhase
from frazil.commit.halves import check_tables
from frazil.commit.loop import commit, commit_tables
from frazil.commit.metadata_changes import pin
from frazil.commit.operations import Base, Identity, Kind, MetadataChange, Operation, Read, Write, digest
from frazil.commit.origins import TRANSACTION
from frazil.commit.proposal import applied
from frazil.commit.results import conflict_error, find_commit
from frazil.commit.retention import expires_with_commits
from frazil.commit.retry import Retry, from_properties
from frazil.commit.stages import Refused
from frazil.commit.unit import EvaluatedStatement, TableUnit
from frazil.errors import (
    CatalogUnavailable,
    CommitUnknown,
    FrazilError,
    InvalidInput,
    NoSuchNamespace,
    NoSuchTable,
    PermissionDenied,
    StorageError,
    TableExists,
    Unsupported,
)
from frazil.expr import Filter
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.updates import apply
from frazil.model import Commit, Ident, Isolation, SharedCommit, TransactionCommit
from frazil.past import PastInstant
from frazil.table.call import Evaluated, Statement
from frazil.table.destination import Refuse
from frazil.table.handle import TableHandle
from frazil.table.options import WriteOptions, checked_commit_id, checked_retry
from frazil.table.several import check_several

if TYPE_CHECKING:
    from frazil.lake import Lake

_PINNED_MS = 24 * 60 * 60 * 1000
"""How long the snapshots of a transaction are kept for it at most, if it stays open or its process dies."""
_OF_THE_TRANSACTION = ("isolation", "retry", "commit_id", "dry_run", "on_phase", "own_snapshot", "on_conflict")
"""Options that belong to the transaction as a whole."""


class TransactionTable(TableHandle):
    """A table inside a transaction. Its verbs take what every write takes, except what the transaction decides."""

    def __repr__(self) -> str:
        return f"TransactionTable({self.name!r})"


# Instants


class Instant:
    """Every table as it was at one moment: all pointers are read at once, the metadata of a table when it is needed."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._pointers = lake.catalog.instant()
        self._heads: dict[Ident, Head] = {}

    def head(self, ident: Ident) -> Head:
        if ident not in self._heads:
            self._heads[ident] = self._load(ident)
        return self._heads[ident]

    def has(self, ident: Ident) -> bool:
        return self._pointers is not None and ident in self._pointers

    def idents(self) -> frozenset[Ident] | None:
        """None: the catalog cannot read all pointers at once."""
        return None if self._pointers is None else frozenset(self._pointers)

    def _load(self, ident: Ident) -> Head:
        if self._pointers is None:
            # The catalog cannot read all pointers at once: each table is pinned when it is first touched.
            return self._lake.catalog.load(ident)
        if ident not in self._pointers:
            raise NoSuchTable(f"There was no table {ident} when this instant was pinned")
        return self._lake.catalog.load_at(ident, self._pointers[ident])


class LakeSnapshot:
    """One instant of all tables of a lake; ``table(name)`` reads as they were."""

    def __init__(self, lake: Lake, as_of: dt.datetime | str | int | None = None) -> None:
        self._lake = lake
        self._instant: Instant | PastInstant = Instant(lake) if as_of is None else PastInstant(lake, as_of)

    def tables(self) -> list[str]:
        """The names of the tables that there were."""
        found = self._instant.idents()
        return [str(each) for each in (self._lake.catalog.tables() if found is None else sorted(found))]

    def table(self, name: str | tuple[str, ...]) -> TransactionTable:
        """A table as it was at this instant. It can be read, and refuses to be written to."""
        return TransactionTable(Refuse(TableAtInstant(self._lake, Ident.parse(name), self._instant)))


@dataclass(frozen=True, slots=True)
class TableAtInstant:
    """A source that reads a table as it was at one instant."""

    lake: Lake
    ident: Ident
    instant: Instant | PastInstant

    def metadata(self) -> TableMetadata:
        return self.instant.head(self.ident).metadata

    def note_read(self, where: Filter, branch: str) -> None:
        """Only a transaction keeps a read set."""

    def shared_commits(self, metadata: TableMetadata) -> Mapping[int, tuple[SharedCommit, ...]]:  # noqa: ARG002
        return {}


# Transactions


@dataclass(slots=True)
class PinnedTable:
    """One table of a transaction: the version it is pinned at, and what the transaction has read and written since."""

    head: Head
    metadata: TableMetadata
    """The pinned version with the first ``applied`` operations applied."""
    operations: list[Operation] = field(default_factory=list)
    bases: list[TableMetadata] = field(default_factory=list)
    """The version that each operation was made on."""
    applied: int = 0
    reads: dict[str, list[Read]] = field(default_factory=dict)
    """Branch → what was scanned there."""
    scratch: list[TableUnit] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)
    """Files written only so that the transaction can read its own rows."""
    is_dropped: bool = False

    @property
    def is_made(self) -> bool:
        """The transaction creates it."""
        return not self.head.location

    @property
    def is_written(self) -> bool:
        return bool(self.operations) or self.is_made or self.is_dropped


@dataclass(frozen=True, slots=True)
class Course:
    """What ``lake.run`` decides about one of its transactions."""

    before_pin: Callable[[Ident], None]
    """Called with the first table, right before the instant is pinned."""
    on_phase: OnPhase
    is_named: bool
    """The commit id may have been sent before."""


class Transaction:
    """Reads and writes of any number of tables, one commit. For a ``with`` block, and the thread that began it."""

    isolation = Isolation.SERIALIZABLE

    def __init__(
        self,
        lake: Lake,
        *,
        isolation: str,
        retry: Retry | None,
        commit_id: str | None,
        course: Course | None = None,
        is_statement: bool = False,
    ) -> None:
        """``is_statement``: it is one statement and its query, so that no program depends on what it has read."""
        lake.check_writable()
        if isolation not in tuple(Isolation):
            raise InvalidInput(f"isolation must be 'serializable' or 'snapshot', not {isolation!r}")
        self.lake = lake
        self.isolation = Isolation(isolation)
        self._retry = checked_retry(retry)
        self._commit_id = commit_id
        self._course = course
        self._is_statement = is_statement
        self._evaluated: Evaluated | None = None
        """What its newest write was evaluated from."""
        self._result: Commit | TransactionCommit | None = None
        self._raised: FrazilError | None = None
        self._instant: Instant | None = None
        self._tables: dict[Ident, PinnedTable] = {}
        self._state = "open"
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._pin_key: str | None = None
        """Of the snapshots that it reads; None: none is pinned."""
        self._staging: list[str] = []
        """The transaction's files that are staged, with the lake's watch."""
        self._origin = lake.origin(TRANSACTION)
        observe.begun(self)

    @property
    def result(self) -> Commit | TransactionCommit | None:
        """What was committed; None before that, and where there was nothing to commit."""
        return self._result

    def table(self, name: str | tuple[str, ...]) -> TransactionTable:
        """A table as the transaction sees it: pinned, with the transaction's own changes."""
        return self._table(name, self.lake)

    def _table(self, name: str | tuple[str, ...], lake: Lake) -> TransactionTable:
        """``lake`` is this transaction's, perhaps with another Spark session."""
        self._check_open()
        ident = Ident.parse(name)
        self._pinned(ident)
        return TransactionTable(KeepForTransaction(self, ident, lake))

    def sql(self, text: str, spark: object | None = None) -> Any:
        """Run one statement of Spark's SQL inside the transaction, as ``lake.sql`` does outside of one.

        SELECT, INSERT, UPDATE, DELETE, MERGE, CREATE TABLE, DROP TABLE, ALTER TABLE, SHOW and DESCRIBE. A query sees
        the transaction's own writes, and what it reads is checked at the commit. A statement that fails has done
        nothing, and the transaction goes on.
        """
        self._check_open()
        return self.lake._sql_in(self, text, spark)

    def create_table(
        self,
        name: str | tuple[str, ...],
        schema: object = None,
        *,
        partition_by: Sequence[str] | None = (),
        sort_by: Sequence[str] | None = (),
        keys: Sequence[str] | None = (),
        properties: Mapping[str, str] | None = None,
        location: str | None = None,
        comment: str | None = None,
        as_: object = None,
    ) -> TransactionTable:
        """Create a table that exists once the transaction is committed. The arguments are those of Lake.create_table.

        Raises TableExists if there was one at the transaction's instant, or at its commit.
        """
        self._check_open()
        ident = Ident.parse(name)
        with self._noting():
            self._check_several("create_table() in a transaction")
            self._check_new(ident)
            schema, as_ = self.lake.schema_of(schema, as_)
            made = self.lake.new_metadata(ident, schema, partition_by, sort_by, keys, properties, location, comment)
            made = self.lake.catalog.stage(ident, made)
        self._tables[ident] = PinnedTable(Head("", made, self.lake.runtime.now_ms()), made)
        table = self.table(name)
        if as_ is not None:
            try:
                table.append(as_)
            except BaseException:
                self._tables.pop(ident, None)
                raise
        return table

    def drop_table(self, name: str | tuple[str, ...]) -> None:
        """Drop a table when the transaction is committed. Its files stay. What the transaction wrote to it is lost."""
        self._check_open()
        ident = Ident.parse(name)
        with self._noting():
            self._check_several("drop_table() in a transaction")
            self._check_drops(ident)
            table = self._pinned(ident)
        # Before their files go: an interruption must not leave operations without files.
        operations, table.operations, table.bases, table.is_dropped = table.operations, [], [], True
        if table.is_made:
            del self._tables[ident]
        self._drop_files(operations)

    def commit(self) -> Commit | TransactionCommit | None:
        """Make everything visible at once. None: there was nothing to commit. Raises ConflictError and its like.

        A ``TransactionCommit`` where several tables were written to.
        """
        self._check_open()
        # Until it is known to be more than that.
        self._state = "over: its commit failed"
        try:
            with observe.ending(self), self._noting():
                self._result = self._commit()
            self._state = "committed"
            return self._result
        finally:
            self._unpin()

    def _commit(self) -> Commit | TransactionCommit | None:
        try:
            written = self._written
            if not written:
                return None
            identity = self._identity()
            self._check_named_once(identity)
            retry = self._retry or from_properties(self._tables[written[0]].head.metadata.properties)
            units, statement = self._units(), self._statement(written)
            if not self._swaps_tables:
                self._check_other_tables()
                units = [each for each in units if each.ident in written]
        except BaseException:
            self._drop_staged()
            raise
        finally:
            self._drop_scratch()
        on_phase = None if self._course is None else self._course.on_phase
        context = self.lake.commit_context(written[0], on_phase)
        (first, *others) = units
        if not others and not first.is_dropped and first.made is None:
            return commit(context, first.operations, identity, retry, statement)
        return commit_tables(context, units, identity, retry, statement)

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

    def __reduce__(self) -> NoReturn:
        raise InvalidInput(
            "A transaction cannot be copied or pickled",
            evidence="Two copies would commit the same files",
            advice="Begin another one where it is needed",
        )

    # For lake.run, lake.sql and sinks

    def _writes_to(self, ident: Ident) -> bool:
        """It is open, and its commit will change this table and not drop it."""
        table = self._tables.get(ident)
        return self._is_open and table is not None and table.is_written and not table.is_dropped

    def _idents(self) -> frozenset[Ident] | None:
        """The tables at its instant; None: nothing is pinned yet, or the catalog has no instant of all tables."""
        return None if self._instant is None else self._instant.idents()

    @property
    def _is_open(self) -> bool:
        return self._state == "open"

    @property
    def _touched(self) -> Ident | None:
        """The first table that it writes to, else the first that it read."""
        return next(iter((*self._written, *self._tables)), None)

    def _named(self, name: str) -> Ident | None:
        return next((ident for ident in self._tables if str(ident) == name), None)

    @property
    def _written(self) -> list[Ident]:
        return sorted(ident for ident, table in self._tables.items() if table.is_written)

    @property
    def _snapshot_ids(self) -> frozenset[int]:
        """The ids of the snapshots that it makes."""
        writes = (each for table in self._tables.values() for each in table.operations)
        return frozenset(each.snapshot_id for each in writes if isinstance(each, Write) and each.snapshot_id)

    def _found(self) -> Commit | None:
        """The commit with this transaction's id, in the newest version of a table that it writes to."""
        ident = self._touched
        if ident is None or self._commit_id is None:
            return None
        written = self._written or [ident]
        identity = Identity(self._commit_id, self._digest(written), given=True)
        heads = {each: self._newest(each) for each in written}
        found = ((each, find_commit(self.lake.catalog, head.metadata, identity)) for each, head in heads.items())
        done = {each: commit for each, commit in found if commit is not None}
        if done:
            check_tables(self.lake.catalog, self._commit_id, heads, done)
        return next(iter(done.values()), None)

    def _newest(self, ident: Ident) -> Head:
        table = self._tables[ident]
        try:
            return self.lake.catalog.load(ident)
        except NoSuchTable:
            if not (table.is_made or table.is_dropped):
                raise
            return table.head

    @property
    def _was_committed(self) -> bool:
        """An earlier transaction with the same commit id changed a table that this one has touched."""
        return any(self._has_record(table.head.metadata) for table in self._tables.values())

    def _made(self, done: Commit | TransactionCommit) -> bool:
        """The commit is this transaction's, not that of an earlier one with the same id."""
        commits = [done] if isinstance(done, Commit) else list(done.tables.values())
        return any(each.snapshot_id in self._snapshot_ids for each in commits)

    def _was_raised(self, error: BaseException) -> bool:
        """The error is the transaction's own, not one of another call inside the function."""
        return error is self._raised

    # Its tables

    def _pinned(self, ident: Ident) -> PinnedTable:
        """A table of the transaction, pinned when it is first touched."""
        self._check_open()
        if ident not in self._tables:
            with self._noting():
                self._pin(ident)
        if self._tables[ident].is_dropped:
            raise NoSuchTable(f"The table {ident} was dropped by this transaction")
        return self._tables[ident]

    def _pin(self, ident: Ident) -> None:
        head = self._at(ident).head(ident)
        for other, table in self._tables.items():
            if table.head.metadata.uuid == head.metadata.uuid:
                raise InvalidInput(
                    f"{ident} and {other} are names of one and the same table",
                    evidence=f"Both have the UUID {head.metadata.uuid}",
                    advice=f"Use one of them: tx.table({str(other)!r})",
                )
        self._tables[ident] = PinnedTable(head, head.metadata)
        self._staging.append(self.lake.staging.begin(head.metadata))
        if not self._is_statement or expires_with_commits(head.metadata):
            self._keep_snapshots(ident, head.metadata)

    def _at(self, first: Ident) -> Instant:
        """The transaction's instant, pinned with the first table."""
        if self._instant is None:
            if self._course is not None:
                self._course.before_pin(first)
            self._instant = Instant(self.lake)
        return self._instant

    def _check_new(self, ident: Ident) -> None:
        """Raises TableExists, NoSuchNamespace."""
        if ident in self._tables and self._tables[ident].is_dropped:
            raise Unsupported(
                f"One transaction cannot drop {ident} and create it again",
                advice="Overwrite it, or drop it in a transaction of its own",
            )
        if ident in self._tables or (self._at(ident).has(ident) and not self._was_made_before(ident)):
            raise TableExists(f"The table {ident} exists already")
        if ident.namespace not in self.lake.catalog.namespaces():
            name = ".".join(ident.namespace)
            raise NoSuchNamespace(f"There is no namespace {name}", advice=f"Create it: lake.create_namespace({name!r})")

    def _was_made_before(self, ident: Ident) -> bool:
        """By an earlier call with the same commit id: the commit will find that, and apply nothing."""
        return self._commit_id is not None and self._has_record(self._at(ident).head(ident).metadata)

    def _has_record(self, metadata: TableMetadata) -> bool:
        return self._commit_id is not None and self.lake.catalog.find_commit(metadata, self._commit_id) is not None

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """``lake.run`` must tell errors of its transaction from those of other calls inside the function."""
        try:
            yield
        except FrazilError as error:
            self._raised = error
            raise

    def _keep_snapshots(self, ident: Ident, metadata: TableMetadata) -> None:
        """Keep the snapshots that this transaction reads, and their files, until it ends (rules P18 and P42).

        An expiry that landed before the pin may be deleting the files: then the transaction must begin again.
        """
        needed = [found for ref in metadata.refs if (found := metadata.ref_snapshot_id(ref)) is not None]
        pins = self.lake.catalog.pins
        if pins is None or not needed:
            return
        self._pin_key = self._pin_key or self.lake.runtime.new_hex()
        with suppress(CatalogUnavailable, CommitUnknown, PermissionDenied):
            # Without a pin the checks have more to read, and a long transaction may find its files gone.
            pins.pin(self._pin_key, metadata.uuid, needed, _PINNED_MS)
        try:
            now = self.lake.catalog.load(ident).metadata
        except NoSuchTable:
            return
        if now.uuid == metadata.uuid and not all(map(now.has_snapshot, needed)):
            raise StorageError(
                f"The snapshots of {ident} that the transaction began with expired while it began",
                advice="Begin the transaction again",
            )

    def _unpin(self) -> None:
        for key in self._staging:
            self.lake.staging.end(key)
        self._staging = []
        pins, pin = self.lake.catalog.pins, self._pin_key
        if pins is not None and pin is not None:
            self._pin_key = None
            with suppress(FrazilError):
                pins.unpin(pin)

    def _check_writable(self, ident: Ident) -> None:
        """Raises InvalidInput or Unsupported if this table cannot be written to."""
        self._check_open()
        if any(each != ident for each in self._written):
            self._check_several(f"writing to {ident} as well as to {self._written[0]} in one transaction")

    def _check_several(self, what: str) -> None:
        """Raises Unsupported where the catalog cannot swap several tables at once."""
        check_several(self.lake.catalog, what)

    def _check_drops(self, ident: Ident) -> None:
        if not self.lake.catalog.capabilities.drops_in_swap:
            raise Unsupported(
                f"The catalog {self.lake.uri} does not drop tables in a transaction: {ident} was left alone",
                advice=f"Drop it after the commit: lake.drop_table({str(ident)!r})",
            )

    def _keep(self, ident: Ident, operation: Operation, base: TableMetadata) -> None:
        """Commit an operation that was made on ``base`` at the end of the transaction."""
        self._check_writable(ident)
        self._tables[ident].operations.append(operation)
        self._tables[ident].bases.append(base)

    def _check_open(self) -> None:
        if self._state != "open":
            raise InvalidInput(f"This transaction is {self._state}", advice="Begin another one")
        if os.getpid() != self._pid:
            raise InvalidInput("This transaction was begun by another process", advice="Begin one after the fork")
        if threading.get_ident() != self._thread:
            raise InvalidInput("This transaction was begun by another thread", advice="Begin one in each thread")

    # Committing

    def _identity(self) -> Identity:
        given = checked_commit_id(self._commit_id)
        chosen = str(self.lake.runtime.new_uuid()) if given is None else given
        is_named = given is not None and (self._course is None or self._course.is_named)
        return Identity(chosen, self._digest(self._written), is_named, self._origin)

    def _check_named_once(self, identity: Identity) -> None:
        """Raises InvalidInput if an earlier call with this commit id wrote to a table that this one only read."""
        others = (each for each in self._tables.items() if identity.given and not each[1].is_written)
        for ident, table in others:
            find_commit(self.lake.catalog, table.head.metadata, identity, table=ident)

    @staticmethod
    def _digest(written: Sequence[Ident]) -> str:
        if len(written) == 1:
            return digest("transaction", table=str(written[0]))
        return digest("transaction", tables=[str(each) for each in written])

    def _units(self) -> list[TableUnit]:
        """What the transaction did to each table that it wrote to, or whose rows it depends on."""
        lake = self.lake
        finals = {ident: self._final(table) for ident, table in self._tables.items()}
        found = [ident for ident, table in self._tables.items() if table.is_written or finals[ident]]
        return [
            replace(
                TableUnit.of(ident, finals[ident], lake.storage, lake.runtime),
                table_uuid=table.head.metadata.uuid,
                made=table.head.metadata if table.is_made else None,
                is_dropped=table.is_dropped,
                is_only_read=not table.is_written,
                has_others=len(found) > 1,
            )
            for ident, table in self._tables.items()
            if ident in found
        ]

    def _final(self, table: PinnedTable) -> list[Operation]:
        """The operations as they are checked and committed, all against the instant, with the reads at the end."""
        operations: list[Operation] = []
        for number, (operation, base) in enumerate(zip(table.operations, table.bases, strict=True)):
            if isinstance(operation, MetadataChange):
                # Later operations use the ids it assigned, so it must assign the same ones again (rule P16).
                is_last = number + 1 == len(table.operations)
                intent = operation.intent if is_last else pin(operation.intent, base)
                operations.append(replace(operation, intent=intent))
            else:
                operations.append(replace(operation, base=_base(table.head.metadata, operation.branch)))
        writes = [each for each in operations if isinstance(each, Write)]
        # Where metadata changes, the snapshot of each write may be named by a branch or a tag.
        steps = combined(writes) if len(writes) == len(operations) else operations
        return [*steps, *self._reads(table)]

    def _reads(self, table: PinnedTable) -> list[Write]:
        """The read set, as writes that change nothing and are only checked."""
        if self.isolation is not Isolation.SERIALIZABLE:
            return []
        return [
            Write(
                Kind.APPEND,
                table.head.metadata.uuid,
                base=_base(table.head.metadata, branch),
                branch=branch,
                reads=tuple(reads),
            )
            for branch, reads in table.reads.items()
        ]

    def _statement(self, written: Sequence[Ident]) -> EvaluatedStatement | None:
        """What is evaluated again when it meets a conflict. A query that read the written table is not."""
        found, table = self._evaluated, self._tables[written[0]]
        if not self._is_statement or found is None or not found.can_be_redone or table.reads:
            return None
        if len(written) > 1 or len(table.operations) != 1:
            return None
        return found if self._swaps_tables else _WithReads(found, self._check_other_tables)

    @property
    def _swaps_tables(self) -> bool:
        return self.lake.catalog.capabilities.swaps_tables

    def _check_other_tables(self) -> None:
        """Check tables that were only read. This happens right before the commit, not atomically with it."""
        for ident, table in self._tables.items():
            reads = self._reads(table)
            if table.is_written or not reads:
                continue
            head = self.lake.catalog.load(ident)
            if head.location != table.head.location:
                _check(self.lake, ident, reads, head)

    def _drop_staged(self) -> None:
        for table in self._tables.values():
            self._drop_files(table.operations)

    def _drop_files(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if isinstance(operation, Write):
                self.lake.storage.delete(operation.staged_paths)

    def _drop_scratch(self) -> None:
        for table in self._tables.values():
            for unit in table.scratch:
                unit.remove_scratch()
            self.lake.storage.delete(table.lists)
            table.scratch, table.lists = [], []


@dataclass(frozen=True, slots=True, eq=False)
class _WithReads:
    """A statement of a transaction that has read other tables, in a catalog that does not swap several.

    They must be as they were when it is evaluated again.
    """

    statement: Evaluated
    check: Callable[[], None]
    """Raises ConflictError if they are not."""

    @property
    def write(self) -> Write:
        return self.statement.write

    def on(self, head: TableMetadata) -> _WithReads | None:
        self.check()
        later = self.statement.on(head)
        return None if later is None else replace(self, statement=later)


@dataclass(frozen=True, slots=True)
class TableInTransaction:
    """A source that reads a table as it was when it was pinned, with the transaction's own writes."""

    transaction: Transaction
    ident: Ident
    lake: Lake
    """The transaction's, perhaps with the Spark session of one statement."""

    @property
    def pinned(self) -> PinnedTable:
        return self.transaction._pinned(self.ident)

    def metadata(self) -> TableMetadata:
        """The pinned version with the operations kept so far, which are applied when it is first read."""
        table = self.pinned
        with self.transaction._noting():
            for operation in table.operations[table.applied :]:
                _apply(self.lake, self.ident, table, operation)
        return table.metadata

    def note_read(self, where: Filter, branch: str) -> None:
        table = self.pinned
        # A branch that the transaction itself has made shows what main had when it was pinned.
        known = branch if branch in table.head.metadata.refs else MAIN
        table.reads.setdefault(known, []).append(Read(where, sees_removals=True))

    def shared_commits(self, metadata: TableMetadata) -> Mapping[int, tuple[SharedCommit, ...]]:  # noqa: ARG002
        return {}


@dataclass(frozen=True, slots=True)
class KeepForTransaction:
    """A destination that keeps every operation until the transaction commits."""

    transaction: Transaction
    ident: Ident
    lake: Lake
    is_atomic: ClassVar[bool] = True

    @property
    def source(self) -> TableInTransaction:
        return TableInTransaction(self.transaction, self.ident, self.lake)

    def accept(self, verb: str, given: WriteOptions) -> WriteOptions:
        if verb == "cherry_pick":
            raise Unsupported(
                "cherry_pick() inside a transaction is not supported in this release",
                advice="Call it outside of the transaction",
            )
        self.transaction._check_writable(self.ident)
        for name in _OF_THE_TRANSACTION:
            if name in given:
                raise InvalidInput(
                    f"{name} belongs to the transaction, not to one of its writes",
                    advice=f"Write lake.transaction({name}=…)" if name in ("isolation", "retry", "commit_id") else None,
                )
        isolation: WriteOptions = {"isolation": self.transaction.isolation}
        return {**given, **isolation}

    def identify(
        self,
        commit_id: str | None,  # noqa: ARG002 - the transaction has one commit id for all of its writes
        verb: str,  # noqa: ARG002
        parameters: Mapping[str, object],  # noqa: ARG002
        metadata: TableMetadata,  # noqa: ARG002
        branch: str,  # noqa: ARG002
    ) -> tuple[Identity, Commit | None]:
        return Identity(str(self.transaction.lake.runtime.new_uuid()), "", given=False), None

    def run(self, statement: Statement) -> Commit:
        with self.transaction._noting():
            evaluated = self.transaction._evaluated = statement.evaluated()
            call, write = statement.call, evaluated.write
        if not write.is_empty:
            for change in call.before:
                self.transaction._keep(self.ident, change, self.source.metadata())
        # Named now: a branch or a tag that the transaction sets later may point to it.
        named = replace(write, snapshot_id=self.transaction.lake.runtime.new_snapshot_id())
        self.transaction._keep(self.ident, named, call.view.metadata)
        return call.preview(write.rows.inserted, write.rows.updated, write.rows.deleted)

    def change(
        self,
        change: MetadataChange,
        base: TableMetadata,
        *,
        identity: Identity | None = None,  # noqa: ARG002 - the transaction's is used
        retry: Retry | None = None,  # noqa: ARG002
        reads: Sequence[Write] = (),
    ) -> Commit:
        for each in reads:
            self.transaction._keep(self.ident, each, base)
        self.transaction._keep(self.ident, change, base)
        return Commit(base.ref_snapshot_id(MAIN), base.last_sequence_number, "", attempts=0, changed=False)


def _base(metadata: TableMetadata, branch: str) -> Base:
    return Base.of(metadata.head_snapshot(branch))


# The commit's checks and its building of snapshots, on operations that are not committed here


def _apply(lake: Lake, ident: Ident, table: PinnedTable, operation: Operation) -> None:
    """Apply an operation to the version that the transaction sees. Raises ConflictError."""
    unit = TableUnit.of(ident, [operation], lake.storage, lake.runtime)
    table.scratch.append(unit)
    built, written = applied(unit, replace(table.head, metadata=table.metadata), lake.catalog, lake.runtime)
    if isinstance(built, Refused):
        raise conflict_error(operation.name, ident, built.conflicts, table.head.metadata)
    table.applied += 1
    table.lists.extend(written)
    table.metadata = apply(table.metadata, built.updates, now_ms=table.head.now_ms, previous_location=None)


def _check(lake: Lake, ident: Ident, reads: Sequence[Operation], head: Head) -> None:
    """Raises ConflictError if a commit between the operations' base and the head changed what they read."""
    conflicts = conflicts_at(ident, reads, head, lake.catalog, lake.storage, lake.runtime)
    if conflicts:
        raise conflict_error("transaction", ident, conflicts, head.metadata, lake.catalog.changes)

"""The recorder: writes clients' calls and their results, as ``frazil.observe`` reports them, to a log."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from frazil.commit.context import CommitContext
from frazil.commit.operations import Identity, Operation, Write
from frazil.commit.unit import CommitUnit
from frazil.errors import FrazilError
from frazil.format.metadata import MAIN, TableMetadata
from frazil.model import Commit, Ident, TransactionCommit
from frazil.past import PastInstant
from frazil.read.scan import Scan
from frazil.table.source import Source
from frazil.transaction import Instant, TableAtInstant, TableInTransaction, Transaction
from frazil.verify.recording.columns import Named, parse_named, shown_filter
from frazil.verify.recording.log import Log
from frazil.verify.recording.rows import changes_of
from frazil.verify.recording.scans import recorded_scan

Event = dict[str, Any]
Done = TypeVar("Done", bound=Commit | TransactionCommit)


def table_name(name: str, branch: str) -> str:
    """A branch counts as a table: it has its own history."""
    return name if branch == MAIN else f"{name}@{branch}"


@dataclass(slots=True)
class _Running:
    """The commit that a thread runs. A redo of its statement is another transaction."""

    name: str
    called: Event


@dataclass(frozen=True, slots=True)
class _Pinned:
    """A table as a transaction pinned it."""

    metadata: TableMetadata

    def version(self, branch: str) -> int | None:
        """The newest snapshot of a branch; a branch that the transaction created started from main."""
        return self.metadata.ref_snapshot_id(branch if branch in self.metadata.refs else MAIN)


class FileRecorder:
    """Records into a folder. ``values``: table → (key column or columns, value column) whose values may be recorded."""

    def __init__(self, folder: str | Path, values: Mapping[str, tuple[Any, str]] | str | None = None) -> None:
        self._named = parse_named(values)
        columns = {table: [list(each.keys), each.value] for table, each in self._named.items()}
        # Absolute: the process may change its working directory.
        self.log = Log(Path(folder).absolute(), {"columns": columns})
        self._transactions: weakref.WeakKeyDictionary[Transaction, str] = weakref.WeakKeyDictionary()
        self._instants: weakref.WeakKeyDictionary[Instant, str] = weakref.WeakKeyDictionary()
        """All reads at one instant are one transaction."""
        self._logged: dict[str, dict[Ident, int]] = {}
        """Open transaction → table → the number of its operations in the log."""
        self._here = threading.local()

    # Called by frazil.observe

    def calling(self) -> None:
        self._here.called = self.log.moment()

    def begun(self, transaction: Transaction) -> None:
        self._transactions[transaction] = name = self.log.new_id()
        self.log.write({"event": "begin", "tx": name, "isolation": str(transaction.isolation)})

    def scanned(self, source: Source, scan: Scan, branch: str, is_historic: bool) -> Scan:
        name = str(source.ident)
        version = scan.snapshot_id
        transaction = None
        if isinstance(source, TableInTransaction):
            transaction = self._transactions.get(source.transaction)
            self._write_staged(source.transaction)
            # The scan's snapshot may have the transaction's own rows, and is never committed as it is.
            version = version if is_historic else _Pinned(source.pinned.head.metadata).version(branch)
        pinned = source.instant if isinstance(source, TableAtInstant) else None
        # The lake as it was at a time is history, too.
        is_historic = is_historic or isinstance(pinned, PastInstant)
        instant = pinned if isinstance(pinned, Instant) and not is_historic else None
        named = self._named.get(name)
        event: Event = {
            "event": "read",
            "table": table_name(name, branch),
            "version": version,
            "empty": version is None,
            "historic": is_historic,
            "ageless": instant is not None,
            "filter": shown_filter(scan._filter, named),
        }
        called = self._called()

        def tell(seen: Event) -> None:
            if instant is None:
                self._read(transaction, called, {**event, **seen})
            else:
                self._read_at(instant, called, {**event, **seen})

        tell({})
        return scan if named is None else recorded_scan(scan, named, tell)

    def committing(
        self, context: CommitContext, operations: Sequence[Operation], identity: Identity, run: Callable[[], Commit]
    ) -> Commit:
        transaction = getattr(self._here, "ending", None)
        if transaction:
            running = _Running(transaction, {})
            self.log.write({"event": "commit", "tx": transaction, "commit_id": identity.commit_id})
        else:
            running = _Running(self.log.new_id(), self._called())
            self._log_commit(running, context, operations, identity)
        return self._run(running, run)

    def committing_tables(
        self, context: CommitContext, unit: CommitUnit, identity: Identity, run: Callable[[], Done]
    ) -> Done:
        transaction = getattr(self._here, "ending", None)
        name = transaction or self.log.new_id()
        if not transaction:
            # It began before the recording.
            self.log.write({"event": "begin", "tx": name, "isolation": None, **self._called()})
            for table in unit.tables:
                self.log.write(*self._writes(replace(context, ident=table.ident), name, table.operations))
        self.log.write({"event": "commit", "tx": name, "commit_id": identity.commit_id})
        return self._run(_Running(name, {}), run)

    def _run(self, running: _Running, run: Callable[[], Done]) -> Done:
        outer, self._here.running = getattr(self._here, "running", None), running
        try:
            done = run()
        except BaseException as error:
            self._ended(running.name, error)
            raise
        finally:
            self._here.running = outer
        self._here.ended = True
        self.log.write(_acknowledged(running.name, done))
        return done

    def redone(self, context: CommitContext, operations: Sequence[Operation], identity: Identity) -> None:
        """What it would have written before was not committed, and never will be."""
        running: _Running = self._here.running
        self.log.write({"event": "failed", "tx": running.name, "error": "redone"})
        running.name = self.log.new_id()
        self._log_commit(running, context, operations, identity)

    def _log_commit(
        self, running: _Running, context: CommitContext, operations: Sequence[Operation], identity: Identity
    ) -> None:
        levels = {str(each.isolation) for each in operations if isinstance(each, Write)}
        name = running.name
        begin = {"event": "begin", "tx": name, "isolation": min(levels, default=None), **running.called}
        commit = {"event": "commit", "tx": name, "commit_id": identity.commit_id}
        self.log.write(begin, *self._writes(context, name, operations), commit)

    @contextlib.contextmanager
    def ending(self, transaction: Transaction) -> Iterator[None]:
        name = self._transactions.get(transaction)
        if name is None:
            # It began before the recording.
            yield
            return
        self._here.ending, self._here.ended = name, False
        try:
            self._write_staged(transaction)
            yield
        except BaseException as error:
            if not self._here.ended:
                self._ended(name, error)
            raise
        finally:
            self._here.ending = None
            self._logged.pop(name, None)
        if not self._here.ended:
            # It wrote nothing.
            self.log.write({"event": "ok", "tx": name, "changed": False})

    def rolled_back(self, transaction: Transaction) -> None:
        name = self._transactions.get(transaction)
        if name is not None:
            self._logged.pop(name, None)
            self.log.write({"event": "failed", "tx": name, "error": "rollback"})

    # Inner workings

    def _called(self) -> Event:
        called: Event | None = getattr(self._here, "called", None)
        self._here.called = None
        return self.log.moment() if called is None else called

    def _read(self, transaction: str | None, called: Event, event: Event) -> None:
        if transaction is not None:
            self.log.write({"tx": transaction, **event})
            return
        # Outside a transaction, each read is a transaction.
        name = self.log.new_id()
        begin, end = {"event": "begin", "tx": name, **called}, {"event": "ok", "tx": name, "changed": False}
        self.log.write(begin, {"tx": name, **event}, end)

    def _read_at(self, instant: Instant, called: Event, event: Event) -> None:
        if (name := self._instants.get(instant)) is None:
            name = self._instants[instant] = self.log.new_id()
            self.log.write({"event": "begin", "tx": name, **called})
        # It ends with its last read, which is not known until there is another one.
        self.log.write({"tx": name, **event}, {"event": "ok", "tx": name, "changed": False})

    def _write_staged(self, transaction: Transaction) -> None:
        """Log what a transaction has written since the last call, before its next read."""
        name = self._transactions.get(transaction)
        if name is None:
            return
        for ident, table in transaction._tables.items():
            logged = self._logged.setdefault(name, {}).get(ident, 0)
            if logged == len(table.operations):
                continue
            self._logged[name][ident] = len(table.operations)
            pinned = _Pinned(table.head.metadata)
            context = transaction.lake.commit_context(ident)
            self.log.write(*self._writes(context, name, table.operations[logged:], pinned))

    def _writes(
        self, context: CommitContext, name: str, operations: Sequence[Operation], pinned: _Pinned | None = None
    ) -> list[Event]:
        named: Named | None = self._named.get(str(context.ident))
        events: list[Event] = []
        for write in operations:
            if not isinstance(write, Write) or write.is_empty:
                continue
            table = table_name(str(context.ident), write.branch)
            changes, read_keys = changes_of(write, lambda: context.catalog.load(context.ident), context.storage, named)
            if read_keys:
                base = write.base.snapshot_id if pinned is None else pinned.version(write.branch)
                event = {"event": "read", "tx": name, "table": table, "version": base, "empty": base is None}
                events.append({**event, "keys": _distinct(read_keys)})
            events.append({"event": "write", "tx": name, "table": table, "verb": write.name, "writes": changes})
        return events

    def _ended(self, name: str, error: BaseException) -> None:
        self._here.ended = True
        is_certain = isinstance(error, FrazilError) and error.safe_to_delete_staged
        event = {"event": "failed" if is_certain else "unknown", "tx": name, "error": type(error).__name__}
        self.log.write(event)


def _acknowledged(name: str, done: Commit | TransactionCommit) -> Event:
    event = {"event": "ok", "tx": name, "commit_id": done.commit_id, "changed": done.changed}
    if isinstance(done, Commit):
        return {**event, "version": done.snapshot_id, "group_index": done.group_index}
    changed = {table: each.snapshot_id for table, each in done.tables.items() if each.changed}
    return {**event, "versions": changed}


def _distinct(keys: list[Any]) -> list[Any]:
    return list({repr(key): key for key in keys}.values())

"""What a statement acts on: the tables as they are now, with a commit of its own, or an open transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

from frazil.commit.operations import Write
from frazil.errors import NoSuchTable, Unsupported
from frazil.model import Commit, Ident, parse_namespace
from frazil.table.destination import CommitNow
from frazil.table.handle import TableHandle
from frazil.table.table import Table
from frazil.transaction import LakeSnapshot, PinnedTable, Transaction, TransactionTable

Name = str | tuple[str, ...]


class Reader(Protocol):
    """An instant or a transaction: reads through it are pinned, and a transaction records them as its read set."""

    def table(self, name: Name) -> TransactionTable: ...


Writing = Callable[[TransactionTable, Reader], Commit]
"""Writes to a table what it reads through the reader."""


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table to create. ``rows``: a DataFrame that it is filled with."""

    name: Name
    schema: object
    partition_by: Sequence[str]
    properties: Mapping[str, str]
    comment: str | None
    location: str | None
    rows: object = None


class Scope(Protocol):
    """``lake`` is the statement's, perhaps with a Spark session of its own."""

    def table(self, lake: Any, ident: Ident) -> TableHandle:
        """Raises NoSuchTable."""
        ...

    def exists(self, lake: Any, name: Name) -> bool: ...

    def tables(self, lake: Any, namespace: Name | None) -> list[str]: ...

    def reader(self, lake: Any) -> Reader:
        """What a query reads through."""
        ...

    def write(self, lake: Any, name: Name, isolation: str, run: Writing) -> Commit: ...

    def create_table(self, lake: Any, new: NewTable, *, exists_ok: bool) -> None: ...

    def drop_table(self, lake: Any, name: Name, *, purge: bool) -> None: ...

    def check_outside(self, what: str, why: str) -> None:
        """Raises Unsupported inside a transaction, for a statement that must run outside of one."""
        ...


@dataclass(frozen=True, slots=True)
class Alone:
    """Each statement commits itself."""

    def table(self, lake: Any, ident: Ident) -> Table:
        lake.catalog.load(ident)
        return Table(CommitNow(lake, ident))

    def exists(self, lake: Any, name: Name) -> bool:
        return bool(lake.exists(name))

    def tables(self, lake: Any, namespace: Name | None) -> list[str]:
        found: list[str] = lake.tables(namespace)
        return found

    def reader(self, lake: Any) -> LakeSnapshot:
        return LakeSnapshot(lake)

    def write(self, lake: Any, name: Name, isolation: str, run: Writing) -> Commit:
        with Transaction(lake, isolation=isolation, retry=None, commit_id=None, is_statement=True) as transaction:
            made = run(transaction.table(name), transaction)
            done = transaction.commit()
        assert isinstance(done, Commit)
        return replace(done, engine=made.engine)

    def create_table(self, lake: Any, new: NewTable, *, exists_ok: bool) -> None:
        lake.create_table(
            new.name,
            new.schema,
            partition_by=new.partition_by,
            properties=new.properties,
            location=new.location,
            comment=new.comment,
            exists_ok=exists_ok,
            as_=new.rows,
        )

    def drop_table(self, lake: Any, name: Name, *, purge: bool) -> None:
        lake.drop_table(name, purge=purge)

    def check_outside(self, what: str, why: str) -> None:
        """Nothing is refused."""


@dataclass(frozen=True, slots=True)
class Within:
    """All statements are one commit. A statement that fails has done nothing."""

    transaction: Transaction

    def table(self, lake: Any, ident: Ident) -> TransactionTable:
        return self.transaction._table((*ident.namespace, ident.name), lake)

    def exists(self, lake: Any, name: Name) -> bool:
        try:
            self.transaction._table(name, lake)
        except NoSuchTable:
            return False
        return True

    def tables(self, lake: Any, namespace: Name | None) -> list[str]:
        """As the transaction sees them."""
        found = {Ident.parse(each) for each in lake.tables(namespace)}
        if (pinned := self.transaction._idents()) is not None:
            found = set(pinned)
        for ident, table in self.transaction._tables.items():
            found = found - {ident} if table.is_dropped else found | {ident}
        wanted = None if namespace is None else parse_namespace(namespace)
        return [str(each) for each in sorted(found) if wanted in (None, each.namespace)]

    def reader(self, lake: Any) -> Reader:
        return _OnSession(self.transaction, lake)

    def write(self, lake: Any, name: Name, isolation: str, run: Writing) -> Commit:  # noqa: ARG002 - the transaction's
        reader = self.reader(lake)
        with _all_or_nothing(self.transaction):
            return run(reader.table(name), reader)

    def create_table(self, lake: Any, new: NewTable, *, exists_ok: bool) -> None:  # noqa: ARG002
        """``exists_ok`` has been looked at: a table that is created meanwhile fails the commit."""
        self.transaction.create_table(
            new.name,
            new.schema,
            partition_by=new.partition_by,
            properties=new.properties,
            location=new.location,
            comment=new.comment,
            as_=new.rows,
        )

    def drop_table(self, lake: Any, name: Name, *, purge: bool) -> None:  # noqa: ARG002
        if purge:
            self.check_outside("DROP TABLE … PURGE", "files that are deleted cannot be rolled back")
        self.transaction.drop_table(name)

    def check_outside(self, what: str, why: str) -> NoReturn:
        raise Unsupported(f"{what} is not for transactions: {why}", advice="Run it outside of the transaction")


@dataclass(frozen=True, slots=True)
class _OnSession:
    """A transaction whose tables are read and written on a statement's session."""

    transaction: Transaction
    lake: Any

    def table(self, name: Name) -> TransactionTable:
        return self.transaction._table(name, self.lake)


@contextmanager
def _all_or_nothing(transaction: Transaction) -> Iterator[None]:
    """Take back what a statement of several steps has done, if one of them fails. What it has read stays read."""
    before = {
        ident: replace(table, operations=[*table.operations], bases=[*table.bases])
        for ident, table in transaction._tables.items()
    }
    try:
        yield
    except BaseException:
        for ident, table in transaction._tables.items():
            _take_back(transaction, table, before.get(ident))
        raise


def _take_back(transaction: Transaction, table: PinnedTable, before: PinnedTable | None) -> None:
    kept = 0 if before is None else len(before.operations)
    undone = table.operations[kept:]
    del table.operations[kept:], table.bases[kept:]
    if before is None:
        table.applied, table.metadata = 0, table.head.metadata
    else:
        table.applied, table.metadata = before.applied, before.metadata
    transaction._drop_files([each for each in undone if isinstance(each, Write)])

"""A database as the SQL catalogs use it: statements, transactions, and what the driver's errors mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Rows(Protocol):
    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Db(Protocol):
    """A connection inside a read or a transaction."""

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Rows: ...


class DuplicateRow(Exception):
    """A primary key was already there. The transaction was rolled back."""


class LostRace(Exception):
    """The database ended the transaction for another one's sake (serialization failure, deadlock)."""


class OutcomeUnknown(Exception):
    """COMMIT was sent and no answer can be trusted."""


class Notifier(Protocol):
    """How the writers of one database wake each other. Hints: none of these raises."""

    def address(self) -> str:
        """Where this process can be woken."""

    def sleep(self, key: str, seconds: float) -> None:
        """Until the bell rings for ``key``, or so long."""

    def ring(self, sleepers: Sequence[tuple[str, str]]) -> None:
        """Wake (address, key)."""

    def ring_at_commit(self, db: Db, sleepers: Sequence[tuple[str, str]], news: Mapping[str, bytes]) -> None:
        """The same, when the transaction commits, and if it does; ``news``, by key, may come along."""

    def news(self, key: str) -> bytes | None:
        """What a transaction that has committed said about ``key``, told once. None: it is to be looked up."""

    def committed(self, sleepers: Sequence[tuple[str, str]]) -> None:
        """The transaction has committed: for databases that cannot ring by themselves."""


class Engine(Protocol):
    """One database. Raises FrazilError, and the three signals above."""

    clock: Callable[[], str]
    """The time in ms, as an SQL expression."""
    bytes_type: str
    """The name of the column type that holds bytes."""
    bytes_value: str
    """A placeholder for bytes where nothing else tells the type."""
    no_bytes: str
    """Empty bytes as an SQL literal."""
    on_standby: str
    """An SQL expression, true where the database is a copy that may lag behind."""
    key_share: str
    """Appended to a SELECT: the rows found may not be deleted before this transaction ends."""

    def read(self, work: Callable[[Db], T]) -> T: ...
    def write(self, work: Callable[[Db], T], keep: Callable[[T], bool] | None = None, *, durable: bool = True) -> T:
        """Commit what ``work`` did, or roll it back when ``keep`` says no to its result.

        Not ``durable``: it may be forgotten when all who could know of it are gone, too.
        """

    def write_one(self, sql: str, parameters: Sequence[Any]) -> int:
        """One statement that is a transaction by itself, not necessarily ``durable``; how many rows it changed."""

    def write_value(self, sql: str, parameters: Sequence[Any]) -> Any:
        """The same, for a statement that returns one value; None: it has changed nothing."""

    def try_commit_lock(self, key: str) -> Callable[[], None] | None:
        """As PointerStore.try_commit_lock, for the table named by ``key``. May raise errors of the database or disk."""

    def bell(self) -> Notifier: ...
    def may_change(self, table: str) -> bool:
        """Whether this user may read, add, change and remove rows of the table."""

    def columns(self, db: Db, table: str) -> frozenset[str]: ...
    def close(self) -> None: ...

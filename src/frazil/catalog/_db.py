"""A database as the SQL catalogs use it: statements, transactions, and what the driver's errors mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from frazil.catalog._refusals import opened_read_only
from frazil.catalog.base import Notifier
from frazil.errors import CatalogUnavailable, CommitUnknown, FrazilError, PermissionDenied

T = TypeVar("T")
_SENDS = 3
_SERIALIZATION_CONFLICTS = 100


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
    """The database rolled the transaction back because of a concurrent one (serialization failure, deadlock)."""


class OutcomeUnknown(Exception):
    """COMMIT was sent and no answer can be trusted."""


class SqlNotifier(Notifier, Protocol):
    """How the writers of one database are woken. Hints: none of these raises."""

    def notify_at_commit(self, db: Db, to_notify: Sequence[tuple[str, str]], outcomes: Mapping[str, bytes]) -> None:
        """Inside a transaction: notify when it commits, and if it does; ``outcomes``, by key, may be sent along."""

    def pushed_outcome(self, key: str) -> bytes | None:
        """The outcome that a committed transaction sent for ``key``, returned once. None: it must be read."""

    def notify_after_commit(self, to_notify: Sequence[tuple[str, str]]) -> None:
        """The transaction has committed: for databases that do not notify by themselves."""


class SqlEngine(Protocol):
    """One database. Raises FrazilError, and the three signals above."""

    clock: Callable[[], str]
    """The time in ms, as an SQL expression."""
    bytes_type: str
    """The name of the column type that holds bytes."""
    row_number_type: str
    """The type and constraint of a primary key that the database counts up by itself."""
    bytes_value: str
    """A placeholder for bytes where the context does not give the type."""
    no_bytes: str
    """Empty bytes as an SQL literal."""
    on_standby: str
    """An SQL expression, true where the database is a copy that may lag behind."""
    key_share: str
    """Appended to a SELECT: the rows found may not be deleted before this transaction ends."""
    share: str
    """The same: they may not be changed either. Waits for a transaction that is changing one, and shows its result."""
    inserts_in_with: bool
    """A statement may have an INSERT in its WITH clause."""

    def stamp_lock(self, key: int) -> str:
        """A FROM clause: until this transaction ends, ``stamping`` names it. Empty: they wait for each other anyway."""

    def stamping(self, key: int) -> frozenset[str]:
        """The transactions that have taken the stamp lock and have not ended; waited for where they have no names."""

    def read(self, work: Callable[[Db], T]) -> T: ...
    def write(self, work: Callable[[Db], T], keep: Callable[[T], bool] | None = None, *, durable: bool = True) -> T:
        """Commit what ``work`` did, or roll it back when ``keep`` says no to its result.

        Not ``durable``: a crash of the machine, which ends every process that could rely on it, may undo it.
        """

    def write_one(self, sql: str, parameters: Sequence[Any]) -> int:
        """One statement that is a transaction by itself, not necessarily ``durable``; how many rows it changed."""

    def write_value(self, sql: str, parameters: Sequence[Any]) -> Any:
        """The same, for a statement that returns one value; None: it has changed nothing."""

    def try_commit_lock(self, key: str) -> Callable[[], None] | None:
        """As CommitLocks.try_lock, for the table named by ``key``. May raise errors of the database or disk."""

    def notifier(self) -> SqlNotifier: ...
    def may_change(self, table: str) -> bool:
        """Whether this user may read, add, change and remove rows of the table."""

    def columns(self, db: Db, table: str) -> frozenset[str]: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Database:
    """An engine with what the parts of a SQL catalog share."""

    engine: SqlEngine
    shown: str
    """The URI without its secrets."""
    read_only: bool

    def change(self, work: Callable[[Db], T]) -> T:
        """A change without an expected value starts again after a serialization conflict."""
        for _ in range(_SERIALIZATION_CONFLICTS):
            try:
                return self.engine.write(work)
            except LostRace:
                continue
        raise CatalogUnavailable(
            f"Gave up after {_SERIALIZATION_CONFLICTS} serialization conflicts in {self.shown}", advice="Call again"
        )

    def check_writable(self) -> None:
        if self.read_only:
            raise opened_read_only(self.shown)

    def check_primary(self, standby: object) -> None:
        if standby:
            raise CatalogUnavailable(
                f"{self.shown} is a standby, which may lag behind", advice="Connect to the primary server"
            )


def may_insert(engine: SqlEngine, table: str, columns: str) -> bool:
    """Whether the table is there and this user may add rows to it. True while the database cannot be asked."""
    # Adds no row, and is refused all the same where adding one would be.
    sql = f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {table} WHERE 1 = 0"  # noqa: S608
    try:
        if not engine.read(lambda db: engine.columns(db, table)):
            return False
        engine.write(lambda db: db.execute(sql), keep=lambda _: False)
    except PermissionDenied:
        return False
    except (FrazilError, LostRace):
        # The database is unavailable for the moment, which says nothing about its tables.
        return True
    return True


def resend(send: Callable[[bool], T], what: str) -> T:
    """Make a change whose answer may get lost; the argument says that an earlier request may have been committed."""
    cause = ""
    for n in range(_SENDS):
        try:
            return send(n > 0)
        except OutcomeUnknown as unknown:
            cause = str(unknown)
    raise CommitUnknown(f"It is not known whether {what}", evidence=cause, advice="Check it, then call again if needed")

"""The catalog in a Postgres database: any number of hosts (rule P5).

Settings are made per transaction, not per session, so that a pooler in transaction mode (PgBouncer) may sit in between.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from frazil import _fork
from frazil.catalog._db import Db, DuplicateRow, LostRace, OutcomeUnknown, Rows, SqlNotifier
from frazil.catalog._notify import ListenConnection
from frazil.catalog._queue import QUEUE
from frazil.catalog._sql import SqlStore
from frazil.catalog._uri import mask_uri
from frazil.errors import CatalogUnavailable, DiskFull, FrazilError, InvalidInput, PermissionDenied, StorageError
from frazil.runtime import SYSTEM

if TYPE_CHECKING:
    import psycopg
    import psycopg_pool

    _Connection = psycopg.Connection[tuple[Any, ...]]
    _Pool = psycopg_pool.ConnectionPool[_Connection]

CONNECT_SECONDS = 10
_POOL_SIZE = 4
_PREPARE_AFTER = 3
_NO_SUCH_STATEMENT = "26000"
# READ COMMITTED: the loser of a race then finds no row instead of an error, and its next statement reads the winner's.
# synchronous_commit at least on. A client that stalls inside its transaction must not hold the row for ever.
_BEGIN = (
    b"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = '30s'; "
    b"SET LOCAL idle_in_transaction_session_timeout = '30s'; "
    b"SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') <> 'remote_apply'"
)
_CLOCK = "(extract(epoch from clock_timestamp()) * 1000)::bigint"
_LEASE_MS = 1000
# A row of the queue that belongs to no table. Once expired, any writer may take it over.
_LEASE = (
    f"INSERT INTO {QUEUE} AS q (ticket, place, table_uuid, commit_id, version, state, enqueued_at, deadline, tries, "  # noqa: S608
    f"wake, body, outcome) VALUES (?, '', '', ?, 0, 3, 0, {_CLOCK} + ?, 0, '', '', '') "
    f"ON CONFLICT (ticket) DO UPDATE SET commit_id = excluded.commit_id, deadline = {_CLOCK} + ? "
    f"WHERE q.deadline < {_CLOCK}"
)
_RELEASE = f"UPDATE {QUEUE} SET deadline = 0 WHERE ticket = ? AND commit_id = ?"  # noqa: S608
# One number for all stamp locks of the server; the other one names the catalog.
_STAMPS = 1_718_775_154
_STAMPING = (
    "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted "  # noqa: S608
    f"AND classid::bigint = {_STAMPS} AND objid::bigint = ? "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped"
_KEEPALIVE = {
    "application_name": "frazil",
    "connect_timeout": str(CONNECT_SECONDS),
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}

T = TypeVar("T")


class PostgresStore(SqlStore):
    """A PointerStore in the database that ``uri`` names: postgresql://, SQLAlchemy's postgresql+…://, jdbc:…"""

    def __init__(self, uri: str, *, name: str | None = None, read_only: bool = False, create: bool = True) -> None:
        engine = _PostgresEngine(uri)
        try:
            super().__init__(engine, name=name, read_only=read_only, create=create, shown=engine.shown)
        except BaseException:
            engine.close()
            raise


class _PostgresEngine:
    bytes_type = "BYTEA"
    row_number_type = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    bytes_value = "?::bytea"
    no_bytes = "''::bytea"
    on_standby = "pg_is_in_recovery()"
    key_share = " FOR KEY SHARE"
    share = " FOR SHARE"
    inserts_in_with = True

    def __init__(self, uri: str) -> None:
        self.shown = mask_uri(uri)
        self._conninfo = _conninfo(uri, self.shown)
        self.clock: Callable[[], str] = lambda: _CLOCK
        self._lock = threading.Lock()
        self._pool: _Pool | None = None
        self._listener = ListenConnection(self._connect_apart, self._run)
        self._closed = False
        # Like a session, prepared statements do not survive a pooler in transaction mode.
        self._prepares: int | None = None
        self._listener.is_possible = not self._check_reachable()
        if self._listener.is_possible:
            self._prepares = _PREPARE_AFTER
        _fork.watch(self)

    def read(self, work: Callable[[Db], T]) -> T:
        with self._translated():
            try:
                return self._read_once(work)
            except _driver().OperationalError as error:
                if not _is_broken(error):
                    raise
            # The server may have restarted since the pool's connections were made: all of them are suspect.
            self._opened().drain()
            return self._read_once(work)

    def _read_once(self, work: Callable[[Db], T]) -> T:
        pool = self._opened()
        connection = self._get(pool)
        try:
            return work(_Db(connection))
        finally:
            pool.putconn(connection)

    def write(self, work: Callable[[Db], T], keep: Callable[[T], bool] | None = None, *, durable: bool = True) -> T:
        # Always durable: clients survive the server.
        del durable
        with self._translated(), self._transaction() as connection:
            result = work(_Db(connection))
            if keep is None or keep(result):
                _commit(connection)
            else:
                connection.execute(b"ROLLBACK")
            return result

    def write_one(self, sql: str, parameters: Sequence[Any]) -> int:
        return self._sent(sql, parameters, lambda rows: rows.rowcount)

    def write_value(self, sql: str, parameters: Sequence[Any]) -> Any:
        row = self._sent(sql, parameters, lambda rows: rows.fetchone())
        return None if row is None else row[0]

    def _sent(self, sql: str, parameters: Sequence[Any], answer: Callable[[Rows], T]) -> T:
        with self._translated():
            try:
                return self._read_once(lambda db: answer(db.execute(sql, parameters)))
            except _driver().OperationalError as error:
                if not _is_broken(error):
                    raise
                raise OutcomeUnknown(f"A statement was sent and not answered ({type(error).__name__})") from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[_Connection]:
        """A transaction that ends in a rollback unless its body commits."""
        pool = self._opened()
        connection = self._begun(pool) or self._begun(pool, again=True)
        assert connection is not None
        try:
            yield connection
        except BaseException:
            with contextlib.suppress(_driver().Error):
                connection.execute(b"ROLLBACK")
            raise
        finally:
            pool.putconn(connection)

    def _begun(self, pool: _Pool, *, again: bool = False) -> _Connection | None:
        """A connection with a transaction begun; None: it had died in the pool, and nothing was sent through it."""
        connection = self._get(pool)
        try:
            connection.execute(_BEGIN)
        except BaseException as error:
            pool.putconn(connection)
            if again or not _is_broken(error):
                raise
            pool.drain()
            return None
        return connection

    def _get(self, pool: _Pool) -> _Connection:
        import psycopg_pool

        try:
            return pool.getconn()
        except psycopg_pool.PoolTimeout as error:
            # The pool does not say why; a connection outside it does.
            self._check_reachable()
            raise CatalogUnavailable(
                f"No connection to {self.shown} became free within {CONNECT_SECONDS} seconds", advice="Call again"
            ) from error

    def notifier(self) -> SqlNotifier:
        return self._listener

    def try_commit_lock(self, key: str) -> Callable[[], None] | None:
        with self._translated():
            return self._listener.try_lock(key) if self._listener.is_possible else self._lease(key)

    def _lease(self, key: str) -> Callable[[], None] | None:
        """A lock for poolers, which pass a session on with its locks: a row that expires."""
        # The prefix is from an earlier version, whose writers may hold leases as well.
        name, holder = f"turn {hashlib.sha256(key.encode()).hexdigest()[:32]}", SYSTEM.new_hex()
        if self._run(_LEASE, (name, holder, _LEASE_MS, _LEASE_MS)) != 1:
            return None
        return lambda: self._give_back(name, holder)

    def _give_back(self, name: str, holder: str) -> None:
        with contextlib.suppress(FrazilError, _driver().Error):
            self._run(_RELEASE, (name, holder))

    def _run(self, sql: str, parameters: Sequence[Any]) -> int:
        return self._read_once(lambda db: db.execute(sql, parameters).rowcount)

    def stamp_lock(self, key: int) -> str:
        # Shared, and of the transaction: writers do not wait for it, and a pooler does not pass it on.
        return f" FROM (SELECT pg_advisory_xact_lock_shared({_STAMPS}, {key})) AS held"

    def stamping(self, key: int) -> frozenset[str]:
        # Looked at, never taken: a reader that waited for the lock would hold up every writer behind it.
        return frozenset(row[0] for row in self.read(lambda db: db.execute(_STAMPING, (key,)).fetchall()))

    def may_change(self, table: str) -> bool:
        rights = ("SELECT", "INSERT", "UPDATE", "DELETE")
        sql = "SELECT " + " AND ".join(["has_table_privilege(?, ?)"] * len(rights))
        values = [value for right in rights for value in (table, right)]
        return bool(self.read(lambda db: db.execute(sql, values).fetchone())[0])

    def wipe(self, tables: Sequence[str]) -> tuple[str, ...]:
        remains = ["the write-ahead log, its archive and the backups of the Postgres server, until they are recycled"]
        owns = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass(?)"
        for table in tables:
            try:
                if not self.read(lambda db: db.execute(owns, (table,)).fetchone())[0]:  # noqa: B023 - called at once
                    remains.append(f"deleted rows of {table}, until its owner runs VACUUM FULL {table}")
                    continue
                # Outside a transaction, on a connection that commits by itself.
                self.read(lambda db: db.execute(f"VACUUM FULL {table}"))  # noqa: B023 - called at once
            except FrazilError as error:
                remains.append(f"deleted rows of {table}, until VACUUM FULL {table} ({error.problem})")
        return tuple(remains)

    def columns(self, db: Db, table: str) -> frozenset[str]:
        return frozenset(row[0] for row in db.execute(_COLUMNS, (table,)).fetchall())

    def close(self) -> None:
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        self._listener.close()
        if pool is not None:
            pool.close()

    def _opened(self) -> _Pool:
        from psycopg_pool import ConnectionPool

        with self._lock:
            if self._closed:
                raise InvalidInput("This catalog was closed", advice="Connect again")
            if self._pool is None:
                self._pool = ConnectionPool(
                    self._conninfo,
                    min_size=0,
                    max_size=_POOL_SIZE,
                    timeout=CONNECT_SECONDS,
                    # A writer's second connection is given back soon: servers have few.
                    max_idle=30,
                    # Not minutes: the waits between its attempts grow with it, beyond the end of an outage.
                    reconnect_timeout=CONNECT_SECONDS,
                    num_workers=1,
                    open=True,
                    kwargs={"autocommit": True, "prepare_threshold": self._prepares},
                )
                weakref.finalize(self, _close_own, self._pool, os.getpid())
            return self._pool

    def _connect_apart(self) -> _Connection:
        """A connection outside the pool."""
        connection: _Connection = _driver().connect(self._conninfo, autocommit=True, prepare_threshold=self._prepares)
        return connection

    def _check_reachable(self) -> bool:
        """Connect once, outside the pool, whose errors give no reason. True: there is a pooler in between."""
        driver = _driver()
        try:
            with self._connect_apart() as connection:
                standby = connection.execute(b"SELECT pg_is_in_recovery()").fetchone()
                is_pooled = self._is_pooled(connection)
        except driver.Error as error:
            raise _connect_error(error, self.shown) from None
        if standby is not None and standby[0]:
            raise CatalogUnavailable(
                f"{self.shown} is a standby, which may lag behind", advice="Connect to the primary server"
            )
        return is_pooled

    def _is_pooled(self, first: _Connection) -> bool:
        """Whether one connection of ours is served by several of the server, or two by one (transaction pooling)."""
        with self._connect_apart() as second:
            # A server reports its process on connecting; a pooler makes up a number, or passes on one of many.
            seen = {first.info.backend_pid, _backend(first)}
            second.execute(b"BEGIN")
            other = {second.info.backend_pid, _backend(second)}
            # While the second one holds a server connection, the first is given another.
            seen.add(_backend(first))
            second.execute(b"ROLLBACK")
        return len(seen) > 1 or len(other) > 1 or not seen.isdisjoint(other)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except _driver().Error as error:
            if error.sqlstate == _NO_SUCH_STATEMENT:
                self._stop_preparing()
            raise _translate(error, self.shown) from error
        except UnicodeEncodeError as error:
            raise InvalidInput("A name or location contains an unpaired surrogate") from error

    def _stop_preparing(self) -> None:
        """There is a pooler after all: what one transaction prepares, the next does not find."""
        self._prepares, self._listener.is_possible = None, False
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def before_fork(self) -> None:
        pass

    def after_fork_in_parent(self) -> None:
        pass

    def after_fork_in_child(self) -> None:
        # The parent continues to use these sockets: the child must neither use nor close them.
        _left_to_the_parent.append(self._pool)
        _left_to_the_parent.append(self._listener.after_fork_in_child())
        self._lock = threading.Lock()
        self._pool = None


_left_to_the_parent: list[object] = []
_CURSOR = "_frazil_cursor"


class _Db:
    """A connection that takes ``?`` as placeholder. What a statement returns holds until the next one."""

    def __init__(self, connection: _Connection) -> None:
        # Making a cursor for each statement takes as long as the statement.
        known = vars(connection)
        self._cursor = known.get(_CURSOR) or known.setdefault(_CURSOR, connection.cursor())

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        rows: Rows = self._cursor.execute(sql.replace("?", "%s").encode(), parameters or None)
        return rows


def _backend(connection: _Connection) -> int:
    row = connection.execute(b"SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])


def _close_own(pool: _Pool, pid: int) -> None:
    if os.getpid() == pid:
        pool.close()


def _driver() -> Any:
    """Psycopg. Raises InvalidInput with the pip command."""
    try:
        import psycopg
        import psycopg_pool  # noqa: F401 - an import error should come now
    except ImportError as error:
        raise InvalidInput(
            "A Postgres catalog needs the driver psycopg, which is not installed",
            evidence=str(error),
            advice="pip install 'frazil[postgres]'",
        ) from error
    return psycopg


def _commit(connection: _Connection) -> None:
    try:
        status = connection.execute(b"COMMIT").statusmessage
    except _driver().Error as error:
        state = error.sqlstate or ""
        # With these codes the server confirms that the transaction was rolled back.
        if state[:2] == "23" or state in ("40001", "40P01", "40002", "25P03"):
            raise
        connection.close()
        raise OutcomeUnknown(f"COMMIT was sent and not answered ({state or type(error).__name__})") from error
    except BaseException:
        connection.close()
        raise
    if status != "COMMIT":
        raise CatalogUnavailable("The server rolled the transaction back instead of committing it", advice="Call again")


def _is_broken(error: BaseException) -> bool:
    """Whether the connection is gone, rather than the request refused."""
    if not isinstance(error, _driver().OperationalError):
        return False
    state = getattr(error, "sqlstate", None)
    return state is None or state[:2] == "08" or state in _SERVER_GOES


_SERVER_GOES = ("57P01", "57P02", "57P03", "57P05", "25P03")


def _translate(error: Any, shown: str) -> Exception:
    """By SQLSTATE: https://www.postgresql.org/docs/current/errcodes-appendix.html"""
    state: str = error.sqlstate or ""
    words = (error.diag.message_primary if state else None) or type(error).__name__
    if state == "23505" or state in ("42P07", "42710"):
        return DuplicateRow()
    if state in ("40001", "40P01"):
        return LostRace()
    if state[:2] == "22" or isinstance(error, _driver().DataError):
        return InvalidInput(f"{shown} refuses a name or a location: {words if state else error}")
    if state[:2] == "28" or state == "42501":
        return PermissionDenied(
            f"{shown} refuses access: {words}",
            advice="Grant SELECT, INSERT, UPDATE and DELETE on the catalog's tables, and CREATE on their schema",
        )
    if state == "53100":
        return DiskFull(f"The server of {shown} has no space left: {words}")
    if state == "58030":
        return StorageError(f"The server of {shown} cannot write: {words}")
    if state == "25006":
        return CatalogUnavailable(
            f"{shown} is read-only: a standby, or a database set so", advice="Connect to the primary server"
        )
    if state == "42P01":
        return CatalogUnavailable(f"The catalog's tables in {shown} are gone: {words}", advice="Restore them")
    return CatalogUnavailable(
        f"The catalog {shown} did not answer: {words}", evidence=f"SQLSTATE {state}" if state else None
    )


_NO_ENTRY = re.compile(r'password|authentication|pg_hba\.conf|role "[^"]*" (does not exist|is not permitted)')
_NO_DATABASE = re.compile(r'database "[^"]*" does not exist')


def _connect_error(error: Any, shown: str) -> FrazilError:
    """Why a connection could not be made. libpq gives no SQLSTATE here, only words."""
    words = _first_line(str(error))
    if _NO_DATABASE.search(words):
        return InvalidInput(
            f"The server of {shown} has no such database",
            evidence=words,
            advice="Create it (createdb), or check the URI",
        )
    # A request for a password proves nothing: a connection may break, or the server be full, after it was given.
    if _NO_ENTRY.search(words) or (error.sqlstate or "")[:2] == "28":
        return PermissionDenied(
            f"{shown} refuses this user or password", evidence=words, advice="Check both, and the server's pg_hba.conf"
        )
    return CatalogUnavailable(
        f"{shown} cannot be reached", evidence=words, advice="Check that the server runs, its host and its port"
    )


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0].removeprefix("connection failed: ").removeprefix("connection is bad: ")


def _conninfo(uri: str, shown: str) -> str:
    """libpq's form of the URI with Frazil's defaults. What libpq misreads is refused: its error could show a secret."""
    from_driver = _driver().conninfo
    try:
        given = from_driver.conninfo_to_dict(_libpq_uri(uri))
    except (_driver().Error, ValueError):
        raise _unreadable(shown) from None
    if "@" in given.get("host", "") + given.get("dbname", "") or not re.fullmatch(
        r"(\d+(,\d+)*)?", str(given.get("port", ""))
    ):
        raise _unreadable(shown)
    if "," in given.get("host", ""):
        given.setdefault("target_session_attrs", "primary")
    return str(from_driver.make_conninfo("", **{**_KEEPALIVE, **given}))


def _unreadable(shown: str) -> InvalidInput:
    return InvalidInput(
        f"The Postgres URI {shown} cannot be read",
        advice="Its form is postgresql://user:password@host:5432/database; in user and password, percent-encode all "
        "but letters and digits (@ is %40, / is %2F)",
    )


def _libpq_uri(uri: str) -> str:
    """Without what SQLAlchemy and JDBC add to the scheme and to the parameters."""
    uri = uri.removeprefix("jdbc:")
    uri = "postgresql://" + uri.partition("://")[2]
    if "?" not in uri:
        return uri
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(query=urlencode(_libpq_parameters(parse_qsl(parts.query)), quote_via=quote)))


def _libpq_parameters(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    found = []
    for key, value in pairs:
        if key == "currentSchema":
            key, value = "options", f"-c search_path={value}"
        elif key == "ssl":
            key, value = "sslmode", "require" if value.lower() in ("", "true") else "prefer"
        found.append((key, value))
    return found

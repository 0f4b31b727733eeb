"""The catalog in one SQLite file: one host, any number of processes, nothing to install (rule P5)."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from frazil import _fork
from frazil.catalog._db import Db, DuplicateRow, LostRace, OutcomeUnknown, SqlNotifier
from frazil.catalog._notify import SocketNotifier
from frazil.catalog._sql import SqlStore
from frazil.errors import (
    CatalogUnavailable,
    CorruptMetadata,
    DiskFull,
    FrazilError,
    InvalidInput,
    PermissionDenied,
    StorageError,
)
from frazil.runtime import SYSTEM, Runtime, patience

BUSY_SECONDS = 30.0
_MOST_IDLE = 8
_BUSY_POLL_S = 0.002
# WAL needs shared memory between all writers, which no network file system gives.
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "afs", "ncpfs", "lustre", "gpfs", "beegfs", "ceph"}
    | {"glusterfs", "davfs", "dbfs", "fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.goofys", "fuse.gcsfuse"}
    | {"fuse.blobfuse", "fuse.blobfuse2", "fuse.glusterfs", "fuse.cephfs", "fuse.davfs", "fuse.mount-s3"}
    | {"fuse.juicefs", "fuse.dbfs"}
)

T = TypeVar("T")


class SqliteStore(SqlStore):
    """A PointerStore in the SQLite file at ``path``, which is made unless ``create`` is False or ``read_only``."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        read_only: bool = False,
        create: bool = True,
        busy_seconds: float = BUSY_SECONDS,
        runtime: Runtime = SYSTEM,
    ) -> None:
        path = os.path.abspath(os.fspath(path))
        _check_place(path, must_exist=read_only or not create)
        mode = "ro" if read_only else "rwc" if create else "rw"
        engine = _SqliteEngine(path, mode, busy_seconds, runtime)
        try:
            super().__init__(engine, name=name, read_only=read_only, create=create, shown=path)
        except BaseException:
            engine.close()
            raise


class _SqliteEngine:
    bytes_type = "BLOB"
    row_number_type = "INTEGER PRIMARY KEY AUTOINCREMENT"
    bytes_value = "?"
    no_bytes = "x''"
    on_standby = "0"
    # BEGIN IMMEDIATE lets one change run at a time: there are no concurrent deletes.
    key_share = ""
    share = ""
    inserts_in_with = False

    def __init__(self, path: str, mode: str, busy_seconds: float, runtime: Runtime) -> None:
        self._path = path
        self._mode = mode
        self._busy_seconds = busy_seconds
        self._runtime = runtime
        self.clock: Callable[[], str] = lambda: str(runtime.now_ms())
        self._connections = _Connections(self._open)
        _fork.watch(self._connections)
        self._notifier = SocketNotifier(runtime)
        # The folder's name is from an earlier version, whose processes may use it as well.
        self._locks = _CommitLockFiles(f"{path}-turns")
        _fork.watch(self._locks)

    def try_commit_lock(self, key: str) -> Callable[[], None] | None:
        return self._locks.take(key)

    def read(self, work: Callable[[Db], T]) -> T:
        with self._translated(), self._connections.use() as db, self._limited(db):
            return work(db)

    def notifier(self) -> SqlNotifier:
        return self._notifier

    def write(self, work: Callable[[Db], T], keep: Callable[[T], bool] | None = None, *, durable: bool = True) -> T:
        with self._translated(), self._connections.use() as db:
            # Without FULL a commit survives the process, and is lost only when the machine stops.
            db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._begin(db)
            try:
                result = work(db)
                if keep is None or keep(result):
                    self._commit(db)
            finally:
                if db.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        db.execute("ROLLBACK")
            return result

    def write_one(self, sql: str, parameters: Sequence[Any]) -> int:
        return self.write(lambda db: db.execute(sql, parameters).rowcount, durable=False)

    def write_value(self, sql: str, parameters: Sequence[Any]) -> Any:
        # All of them: a statement that is not read to its end is still running when the transaction ends.
        rows = self.write(lambda db: db.execute(sql, parameters).fetchall(), durable=False)
        return rows[0][0] if rows else None

    def _begin(self, db: sqlite3.Connection) -> None:
        """SQLite's own waits grow to a tenth of a second, the time of many short transactions."""
        deadline = self._runtime.monotonic() + patience(self._busy_seconds)
        db.execute("PRAGMA busy_timeout = 0")
        try:
            while True:
                try:
                    db.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    if _primary_code(error) != sqlite3.SQLITE_BUSY or self._runtime.monotonic() > deadline:
                        raise
                    self._runtime.sleep(_BUSY_POLL_S * (0.5 + self._runtime.random()))
                else:
                    return
        finally:
            self._set_patience(db, self._busy_seconds)

    @contextlib.contextmanager
    def _limited(self, db: sqlite3.Connection) -> Iterator[None]:
        """SQLite's own wait, for as long as the caller has."""
        seconds = patience(self._busy_seconds)
        if seconds < self._busy_seconds:
            self._set_patience(db, seconds)
        try:
            yield
        finally:
            if seconds < self._busy_seconds:
                self._set_patience(db, self._busy_seconds)

    def _set_patience(self, db: sqlite3.Connection, seconds: float) -> None:
        db.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")

    def _commit(self, db: sqlite3.Connection) -> None:
        try:
            db.execute("COMMIT")
        except sqlite3.Error as error:
            # The commit may have reached the log although it could not be made durable: recovery might bring it back.
            if _primary_code(error) == sqlite3.SQLITE_IOERR:
                raise OutcomeUnknown(f"SQLite could not write {self._path} ({error.sqlite_errorname})") from error
            raise

    def stamp_lock(self, key: int) -> str:  # noqa: ARG002 - the database has one writer at a time
        return ""

    def stamping(self, key: int) -> frozenset[str]:  # noqa: ARG002
        if self._mode != "ro":
            # Begun when the one that is under way has ended.
            self.write(lambda _: None, keep=lambda _: False, durable=False)
        return frozenset()

    def may_change(self, table: str) -> bool:  # noqa: ARG002 - a user who may write the file may write all of it
        return self._mode != "ro"

    def wipe(self, tables: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002 - the file is written again as a whole
        with self._translated(), self._connections.use() as db:
            db.execute("PRAGMA secure_delete = ON")
            db.execute("VACUUM")
            busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            db.execute("PRAGMA secure_delete = OFF")
        return (f"{self._path}-wal, while another process reads the catalog",) if busy else ()

    def columns(self, db: Db, table: str) -> frozenset[str]:
        return frozenset(row[1] for row in db.execute(f"PRAGMA table_info({table})").fetchall())

    def close(self) -> None:
        self._notifier.close()
        self._connections.close()

    def _open(self) -> sqlite3.Connection:
        if self._mode == "ro":
            return self._open_read_only()
        db = self._connect(f"mode={self._mode}")
        try:
            self._use_wal(db)
        except BaseException:
            db.close()
            raise
        return db

    def _open_read_only(self) -> sqlite3.Connection:
        db = self._connect("mode=ro")
        try:
            db.execute("PRAGMA schema_version").fetchone()
        except sqlite3.OperationalError as error:
            db.close()
            # A reader may not create the shared-memory file in a folder it cannot write to. Without a writer there is
            # no log, and the file alone is the truth; such a connection serves one call, as a writer may start.
            self._connections.reusable = False
            refused = _primary_code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
            if not refused or os.path.exists(self._path + "-wal"):
                raise
            return self._connect("mode=ro&immutable=1")
        except BaseException:
            db.close()
            raise
        return db

    def _connect(self, options: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"file:{quote(self._path)}?{options}",
            uri=True,
            timeout=patience(self._busy_seconds),
            isolation_level=None,
            check_same_thread=False,
        )

    def _use_wal(self, db: sqlite3.Connection) -> None:
        """Switching needs the file exclusively, and SQLite does not wait for that: concurrent first opens collide."""
        deadline = self._runtime.monotonic() + patience(self._busy_seconds)
        while db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            try:
                db.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if _primary_code(error) != sqlite3.SQLITE_BUSY or self._runtime.monotonic() > deadline:
                    raise
                self._runtime.sleep(0.01 * (0.5 + self._runtime.random()))

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _translate(error, self._path) from error
        except UnicodeEncodeError as error:
            raise InvalidInput("A name or location contains an unpaired surrogate") from error


class _CommitLockFiles:
    """One small file per table beside the database, locked by the leader; the kernel unlocks it when its owner ends."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._taken: set[int] = set()

    def take(self, key: str) -> Callable[[], None] | None:
        os.makedirs(self._folder, exist_ok=True)
        name = hashlib.sha256(key.encode()).hexdigest()[:16]
        fd = os.open(os.path.join(self._folder, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                return None
            raise
        self._taken.add(fd)
        return functools.partial(self._give_back, fd)

    def _give_back(self, fd: int) -> None:
        if fd in self._taken:
            self._taken.discard(fd)
            os.close(fd)

    def before_fork(self) -> None:
        pass

    def after_fork_in_parent(self) -> None:
        pass

    def after_fork_in_child(self) -> None:
        # The lock belongs to the open file, which both processes now hold: the child closes its copy.
        for fd in self._taken:
            os.close(fd)
        self._taken = set()


class _Connections:
    """Idle connections of this process. None of them is open while the process forks.

    SQLite keeps lock state per process and file; a child that inherited it would assume locks it does not hold.
    """

    def __init__(self, open_: Callable[[], sqlite3.Connection]) -> None:
        self._open = open_
        self._condition = threading.Condition()
        self._idle: list[sqlite3.Connection] = []
        self._in_use = 0
        self._forking = False
        self._closed = False
        self.reusable = True

    @contextlib.contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        with self._condition:
            # Without this gate there is always a busy thread, and the one that forks would wait for ever.
            self._condition.wait_for(lambda: not self._forking)
            if self._closed:
                raise InvalidInput("This catalog was closed", advice="Connect again")
            self._in_use += 1
            db = self._idle.pop() if self._idle else None
        try:
            db = db or self._open()
            yield db
        except (FrazilError, DuplicateRow, LostRace, sqlite3.IntegrityError):
            # Refusals: the transaction was rolled back and the connection is as good as before.
            self._give_back(db)
            raise
        except BaseException:
            # After any other error the connection's state is unknown.
            self._give_back(None)
            if db is not None:
                db.close()
            raise
        self._give_back(db)

    def _give_back(self, db: sqlite3.Connection | None) -> None:
        with self._condition:
            self._in_use -= 1
            self._condition.notify_all()
            if db is not None and self.reusable and not self._closed and len(self._idle) < _MOST_IDLE:
                self._idle.append(db)
                return
        if db is not None:
            db.close()

    def close(self) -> None:
        with self._condition:
            self._closed = True
            idle, self._idle = self._idle, []
        for db in idle:
            db.close()

    def __del__(self) -> None:
        for db in self._idle:
            db.close()

    def before_fork(self) -> None:
        # Held until after the fork; transactions are tiny, so those under way end soon.
        self._condition.acquire()
        self._forking = True
        self._condition.wait_for(lambda: self._in_use == 0, timeout=2 * BUSY_SECONDS)
        while self._idle:
            self._idle.pop().close()

    def after_fork_in_parent(self) -> None:
        self._forking = False
        self._condition.notify_all()
        self._condition.release()

    def after_fork_in_child(self) -> None:
        self._condition = threading.Condition()
        self._forking = False
        self._in_use = 0


def _check_place(path: str, *, must_exist: bool) -> None:
    """Refuse what cannot work with a better message than SQLite's. Never opens the file: that would drop locks."""
    folder = os.path.dirname(path)
    if os.path.isdir(path):
        raise InvalidInput(f"{path} is a folder, not a SQLite file", advice=f"Connect to the folder itself: {path!r}")
    if must_exist and not os.path.exists(path):
        raise InvalidInput(
            f"There is no SQLite catalog at {path}", advice="Check the path, or connect with create=True to make one"
        )
    if not os.path.isdir(folder):
        raise InvalidInput(f"The folder {folder} does not exist", advice="Create it first, or check the path")
    kind = network_file_system(folder)
    if kind is not None:
        raise InvalidInput(
            f"{path} is on a network file system ({kind}), where SQLite's locks do not hold between hosts",
            advice="Keep the catalog on a local disk, or use a Postgres catalog: postgresql://user@host/database",
        )


def network_file_system(folder: str, mounts: str | None = None) -> str | None:
    """The type of the network file system that holds ``folder``; None: a local one, or unknown on this host."""
    if mounts is None:
        try:
            with open("/proc/mounts", encoding="utf-8", errors="surrogateescape") as file:
                mounts = file.read()
        except OSError:
            return None
    real = os.path.realpath(folder).rstrip("/") + "/"
    best, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = _unescape(fields[1]).rstrip("/") + "/"
        # Of two mounts on one point the later one counts.
        if real.startswith(point) and len(point) >= best:
            best, kind = len(point), fields[2]
    return kind if kind.lower() in NETWORK_FILE_SYSTEMS else None


def _unescape(mount_point: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        mount_point = mount_point.replace(code, char)
    return mount_point


def _primary_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _translate(error: sqlite3.Error, path: str) -> Exception:
    match _primary_code(error):
        case sqlite3.SQLITE_CONSTRAINT:
            return DuplicateRow()
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            return CatalogUnavailable(
                f"The catalog {path} stayed locked by another process",
                evidence=error.sqlite_errorname,
                advice="Call again; if it stays so, find the process that holds a transaction open (fuser, lsof)",
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH | sqlite3.SQLITE_CANTOPEN:
            return PermissionDenied(
                f"The catalog {path} cannot be opened or written",
                evidence=f"SQLite says: {error}",
                advice="Check the owner and mode of the file and of its folder, which must be writable too",
            )
        case sqlite3.SQLITE_FULL:
            return DiskFull(
                f"The disk of the catalog {path} is full", advice="Free some space, then call again; nothing changed"
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return CorruptMetadata(
                f"{path} is not a SQLite database, or it is damaged",
                evidence=f"SQLite says: {error}",
                advice="Check the path, or restore the file from a backup",
            )
    return StorageError(f"The catalog {path} failed", evidence=f"SQLite says: {error}")

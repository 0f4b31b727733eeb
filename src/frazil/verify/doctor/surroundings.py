"""What a race cannot show: risky settings, poolers, clocks, catalog names and shared folders."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from frazil.catalog.base import LakeCatalog, OpenedCatalog
from frazil.catalog.open import CATALOG_FILE
from frazil.catalog.sqlite import network_file_system
from frazil.errors import FrazilError
from frazil.format.storage import local_path
from frazil.model import Ident
from frazil.verify.doctor.model import Finding
from frazil.wording import counted

if TYPE_CHECKING:
    import psycopg

_SKEW_MS = 1000
_MOST_TABLES = 500
_SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
_NAMES = "SELECT catalog_name FROM iceberg_tables UNION SELECT catalog_name FROM iceberg_namespace_properties"


@dataclass(frozen=True, slots=True)
class Database:
    """The database of a SQL catalog."""

    kind: str
    """sqlite or postgres."""
    address: str
    """A path or a connection string; the latter may hold a password and is never shown."""


def database_behind(opened: OpenedCatalog, uri: str) -> Database | None:
    """None: the catalog is a server of another kind, or in memory."""
    if opened.kind == "embedded":
        return Database("sqlite", os.path.join(os.path.expanduser(local_path(uri)), CATALOG_FILE))
    if opened.kind == "sqlite":
        # SQLAlchemy's form has three slashes and a path; JDBC's is jdbc:sqlite:path.
        path = re.sub(r"(?i)^(jdbc:sqlite:|sqlite[^:]*:///)", "", uri).partition("?")[0]
        return Database("sqlite", os.path.expanduser(path))
    if opened.kind == "postgres":
        return Database("postgres", "postgresql" + uri[uri.index("://") :])
    return None


def inspect_database(database: Database, *, mine: str) -> list[Finding]:
    """Settings of the database; ``mine`` is the name of the catalog that was raced."""
    inspect = _inspect_sqlite if database.kind == "sqlite" else _inspect_postgres
    try:
        return inspect(database.address, mine)
    except (sqlite3.Error, FrazilError) as error:
        return [Finding("warning", "The database's settings could not be read", type(error).__name__)]


# SQLite


def _inspect_sqlite(path: str, mine: str) -> list[Finding]:
    if not os.path.exists(path):
        return [Finding("warning", "The database's settings could not be read", f"The file {path} does not exist")]
    db = sqlite3.connect(f"file:{quote(os.path.abspath(path))}?mode=ro", uri=True)
    try:
        journal = str(db.execute("PRAGMA journal_mode").fetchone()[0])
        synchronous = int(db.execute("PRAGMA synchronous").fetchone()[0])
        names = [str(row[0]) for row in db.execute(_NAMES)]
    finally:
        db.close()
    return [
        sqlite_journal(journal),
        sqlite_synchronous(synchronous),
        file_system(path, network_file_system(os.path.dirname(os.path.abspath(path)))),
        *catalog_names(names, mine),
    ]


def sqlite_journal(mode: str) -> Finding:
    if mode.lower() == "wal":
        return Finding("ok", "SQLite keeps a write-ahead log", "journal_mode is wal")
    advice = "Open the lake once with frazil.connect(), which sets it, or run: PRAGMA journal_mode = WAL"
    if mode.lower() in ("off", "memory"):
        return Finding("warning", "A crash can destroy the catalog", f"journal_mode is {mode}", advice)
    return Finding("warning", "Readers and writers block each other", f"journal_mode is {mode}", advice)


def sqlite_synchronous(level: int) -> Finding:
    """``level``: the default of this build. Frazil's connections set FULL; those of other programs may not."""
    shown = f"synchronous is {_SYNCHRONOUS.get(level, level)} by default in this build"
    if level >= 2:
        return Finding("ok", "Every commit is on disk before it is acknowledged", shown)
    return Finding(
        "warning",
        "Commits of other programs on this file may be lost in a power cut",
        shown,
        "Frazil's own connections use FULL; run PRAGMA synchronous = FULL in the other programs as well",
    )


def file_system(path: str, network_kind: str | None) -> Finding:
    if network_kind is None:
        return Finding("ok", "The catalog is on a local file system", f"{path} is not on a known network file system")
    return Finding(
        "warning",
        "SQLite on a network file system loses writes as soon as two hosts use it",
        f"{path} is on {network_kind}",
        "Move the catalog to a local disk of one host, or to Postgres",
    )


# Postgres


def _inspect_postgres(conninfo: str, mine: str) -> list[Finding]:
    import psycopg

    try:
        with psycopg.connect(conninfo, autocommit=True) as db:
            settings = {name: _show(db, name) for name in ("synchronous_commit", "fsync", "full_page_writes")}
            standby = bool(_one(db, "SELECT pg_is_in_recovery()"))
            names = [str(row[0]) for row in db.execute(_NAMES).fetchall()]
        return [
            *postgres_settings(settings, standby=standby),
            pooler(*_pooler_signs(lambda: psycopg.connect(conninfo, autocommit=True))),
            *catalog_names(names, mine),
        ]
    except psycopg.Error as error:
        # A connection error may quote the connection string.
        return [Finding("warning", "The database's settings could not be read", type(error).__name__)]


def postgres_settings(settings: Mapping[str, str], *, standby: bool) -> list[Finding]:
    found = []
    if standby:
        found.append(
            Finding(
                "warning",
                "This server is a standby: it may return old heads, and refuses commits",
                "pg_is_in_recovery() is true",
                "Connect to the primary (target_session_attrs=read-write)",
            )
        )
    if settings["synchronous_commit"] in ("off", "local"):
        found.append(
            Finding(
                "warning",
                "With the server's default, an acknowledged commit can be lost",
                f"synchronous_commit is {settings['synchronous_commit']}",
                "Frazil sets it to on for its own commits; set the server's default to on for other writers",
            )
        )
    found += [
        Finding(
            "warning",
            "A crash of the server can corrupt the catalog",
            f"{name} is {settings[name]}",
            f"Set {name} = on in postgresql.conf",
        )
        for name in ("fsync", "full_page_writes")
        if settings[name] != "on"
    ]
    if not found:
        shown = ", ".join(f"{name} is {value}" for name, value in settings.items())
        found.append(Finding("ok", "Every commit is durable on a primary before it is acknowledged", shown))
    return found


def _pooler_signs(connect: Callable[[], psycopg.Connection[Any]]) -> tuple[bool, bool]:
    """Two clients alternate: a transaction pooler gives the first one's server process to the second."""
    with connect() as first, connect() as second:
        pid = _one(first, "SELECT pg_backend_pid()")
        first.execute("SELECT set_config('frazil.probe', %s, false)", (str(pid),))
        with second.transaction():
            # While the second client holds a server process, a pooler gives the first one another.
            taken = _one(second, "SELECT pg_backend_pid()")
            moved = _one(first, "SELECT pg_backend_pid()") != pid or taken == pid
            forgot = _one(first, "SELECT current_setting('frazil.probe', true)") != str(pid)
    return moved, forgot


def pooler(moved: bool, forgot: bool) -> Finding:
    if not moved and not forgot:
        return Finding("ok", "No transaction pooler", "One connection keeps its server process and settings")
    signs = [
        text for sign, text in ((moved, "changed its server process"), (forgot, "lost its session settings")) if sign
    ]
    return Finding(
        "warning",
        "Connections go through a transaction pooler (such as PgBouncer): session locks and settings do not hold",
        f"One connection {' and '.join(signs)} between two statements",
        "Commits stay safe: each is a single transaction. For speed, connect directly or pool by session",
    )


def _show(db: psycopg.Connection[Any], name: str) -> str:
    return str(_one(db, "SELECT current_setting(%s)", name))


def _one(db: psycopg.Connection[Any], query: Any, *parameters: Any) -> Any:
    row = db.execute(query, parameters).fetchone()
    return None if row is None else row[0]


# Any catalog


def catalog_names(names: Iterable[str], mine: str) -> list[Finding]:
    others = sorted({name for name in names if name != mine})
    if not others:
        return [Finding("ok", "One catalog in this database", f"Its name is {mine!r}")]
    return [
        Finding(
            "warning",
            "Several catalogs share this database: writers under different names do not see each other's tables",
            f"This one is {mine!r}, the others are {', '.join(map(repr, others))}",
            "Use one catalog name in every program (frazil.connect(…, name=…); PyIceberg's and Java's catalog name)",
        )
    ]


def clock(worst_skew_ms: int) -> Finding:
    """``worst_skew_ms``: how far the catalog's clock was outside the interval of a call, with its sign."""
    evidence = f"The catalog's clock is {abs(worst_skew_ms)} ms {'behind' if worst_skew_ms < 0 else 'ahead'} at worst"
    if abs(worst_skew_ms) < _SKEW_MS:
        return Finding("ok", "The clocks of this host and the catalog agree", evidence)
    return Finding(
        "warning",
        "The clocks of this host and the catalog differ",
        evidence,
        "Run a time service (chrony, ntpd) on both: time travel and retention are only as exact as the clocks, and "
        "Iceberg Java refuses a table whose timestamps run back by more than a minute",
    )


def shared_locations(catalog: LakeCatalog, scratch: Ident) -> list[Finding]:
    """Tables whose folders overlap: orphan removal on one deletes files of the other."""
    idents = [ident for ident in catalog.tables() if ident != scratch]
    locations, broken = {}, []
    for ident in idents[:_MOST_TABLES]:
        try:
            locations[ident] = catalog.load(ident).metadata.location
        except FrazilError as error:
            broken.append(f"{ident} ({type(error).__name__})")
    found = [
        Finding(
            "warning",
            "Two tables share a folder: removing orphans of one, or purging it, deletes files of the other",
            f"{inner} is at {locations[inner]}, inside or equal to {outer} at {locations[outer]}",
            "Create one of them again in its own location and copy the rows",
        )
        for inner, outer in overlaps(locations)
    ]
    if broken:
        shown = ", ".join(broken[:3]) + (f" and {len(broken) - 3} more" if len(broken) > 3 else "")
        found.append(Finding("warning", "Some tables cannot be loaded", shown, "Run: frazil show TABLE"))
    if not found:
        only = f" (the first {_MOST_TABLES} of {len(idents)})" if len(idents) > _MOST_TABLES else ""
        checked = f"{counted(len(locations), 'table')} checked{only}"
        found.append(Finding("ok", "Every table has a folder of its own", checked))
    return found


def overlaps(locations: Mapping[Ident, str]) -> list[tuple[Ident, Ident]]:
    """(inner, nearest outer) for each table at or under another table's location."""
    ordered = sorted((_folder(location), ident) for ident, location in locations.items())
    found: list[tuple[Ident, Ident]] = []
    around: list[tuple[str, Ident]] = []
    for folder, ident in ordered:
        # Sorted with their trailing slash, folders follow the folders that contain them.
        while around and not folder.startswith(around[-1][0]):
            around.pop()
        if around:
            found.append((ident, around[-1][1]))
        around.append((folder, ident))
    return found


def _folder(location: str) -> str:
    scheme, separator, rest = location.partition("://")
    if not separator:
        scheme, rest = "file", location.removeprefix("file:")
    # A bucket has several URI schemes.
    scheme = "s3" if scheme in ("s3a", "s3n") else scheme
    return f"{scheme}://{rest.strip('/') if scheme == 'file' else rest.rstrip('/')}/"

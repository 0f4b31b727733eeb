"""From a URI to a catalog, its storage and its warehouse."""

from __future__ import annotations

import difflib
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from frazil.catalog._sql import DEFAULT_NAME, SqlStore
from frazil.catalog._uri import mask_uri
from frazil.catalog.base import OpenedCatalog
from frazil.catalog.memory import MemoryStore
from frazil.catalog.pointer import PointerCatalog
from frazil.catalog.sqlite import SqliteStore
from frazil.errors import InvalidInput
from frazil.format.storage import Storage, canonical, local_path, make_folder, storage_error
from frazil.runtime import SYSTEM, Runtime

__all__ = ["CATALOG_FILE", "WAREHOUSE_FOLDER", "OpenedCatalog", "mask_uri", "open_catalog"]

CATALOG_FILE, WAREHOUSE_FOLDER = "catalog.db", "warehouse"
_POSTGRES = ("postgresql", "postgres", "postgresql+psycopg", "postgresql+psycopg2", "jdbc:postgresql")
_FOREIGN = ("http", "https", "pyiceberg", "glue", "thrift")
_KNOWN = ("file", "sqlite", "postgresql", "memory", "http", "https", "pyiceberg", "glue", "thrift")
_SCHEME = re.compile(r"(?i)^(jdbc:[a-z]+(?=:)|[a-z][a-z0-9+.-]+(?=://|:[^/\\]))")

_CONNECTION_STRING = re.compile(r"(?i)^\s*(host|hostaddr|port|dbname|user|password|service)\s*=")
_NO_BUCKET = re.compile(r"(?i)^(?!file:)[a-z0-9]+:/*$")
_HALF_A_SCHEME = re.compile(r"(?i)^(memory:(?!//)|pyiceberg:$)")

_shared: dict[str, tuple[MemoryStore, Storage, str]] = {}
_shared_lock = threading.Lock()


def open_catalog(
    uri: str,
    *,
    warehouse: str | None = None,
    name: str | None = None,
    properties: Mapping[str, str] | None = None,
    read_only: bool = False,
    create: bool = True,
    runtime: Runtime = SYSTEM,
) -> OpenedCatalog:
    """Open the catalog that ``uri`` names: a folder, file:, sqlite:, postgresql:, memory:, or one that PyIceberg opens.

    ``warehouse`` defaults to a folder beside an embedded catalog. ``create=False`` and ``read_only`` refuse a catalog
    that does not exist yet.
    """
    uri = _checked(uri)
    given = dict(properties or {})
    scheme = _scheme(uri)
    if scheme in _FOREIGN:
        from frazil.catalog.foreign import open_foreign

        # The warehouse is passed on unchanged: to a REST server it may be a name.
        return open_foreign(uri, warehouse=warehouse, name=name, properties=given, read_only=read_only, runtime=runtime)
    opener = _OPENERS.get(scheme)
    if opener is None:
        raise _unknown_scheme(scheme, uri)
    place = None if warehouse is None else absolute_location(warehouse)
    return opener(_Asked(uri, place, name, given, read_only, create, runtime))


@dataclass(frozen=True, slots=True)
class _Asked:
    uri: str
    warehouse: str | None
    name: str | None
    properties: Mapping[str, str]
    read_only: bool
    create: bool
    runtime: Runtime

    def opened(self, store: SqlStore, *, kind: str, warehouse: str | None) -> OpenedCatalog:
        storage = Storage(self.properties)
        return OpenedCatalog(
            catalog=PointerCatalog(store, storage, self.runtime),
            storage=storage,
            warehouse=self.warehouse or warehouse,
            uri_shown=mask_uri(self.uri),
            kind=kind,
            created=store.created,
        )

    def sqlite(self, path: str) -> SqliteStore:
        return SqliteStore(path, name=self.name, read_only=self.read_only, create=self.create, runtime=self.runtime)


def absolute_uri(uri: str | os.PathLike[str]) -> str:
    """The same URI, meaning the same place from every folder of every process on this host."""
    uri = _checked(uri)
    scheme = _scheme(uri)
    if uri and scheme in ("", "file"):
        return os.path.abspath(os.path.expanduser(local_path(uri)))
    if scheme in ("sqlite", "sqlite+pysqlite", "jdbc:sqlite"):
        return f"sqlite:///{os.path.abspath(sqlite_path(uri))}"
    return uri


def _checked(uri: object) -> str:
    text = os.fspath(uri) if isinstance(uri, str | os.PathLike) else None
    if not isinstance(text, str) or not text.strip() or text != text.strip() or "\0" in text:
        raise InvalidInput(f"A catalog's URI must be text, not {uri!r}", advice="For instance frazil.connect('./lake')")
    if _CONNECTION_STRING.match(text):
        raise InvalidInput(
            "This looks like the connection string of a Postgres library, not like a URI",
            advice="Write postgresql://user:password@host/database",
        )
    if _HALF_A_SCHEME.match(text):
        raise InvalidInput(f"The catalog URI {text!r} is not whole", advice="Write memory://, or pyiceberg:NAME")
    if text.lower().startswith("file://") and not text[7:].startswith("/"):
        raise InvalidInput(f"The catalog URI {text!r} names a host", advice="Write file:///absolute/path")
    return text


def absolute_warehouse(warehouse: str | os.PathLike[str], uri: object) -> str:
    """A local warehouse as an absolute location; to a REST server it may be no more than a name."""
    foreign = isinstance(uri, str) and _scheme(uri) in _FOREIGN
    return os.fspath(warehouse) if foreign else absolute_location(os.fspath(warehouse))


def _scheme(uri: str) -> str:
    found = _SCHEME.match(uri)
    return found[1].lower() if found else ""


def _unknown_scheme(scheme: str, uri: str) -> InvalidInput:
    near = difflib.get_close_matches(scheme.removeprefix("jdbc:"), [*_KNOWN, *_POSTGRES], n=1, cutoff=0.5)
    guess = f"Did you mean {near[0]}? " if near else ""
    return InvalidInput(
        f"The catalog URI {mask_uri(uri)} has the unknown scheme {scheme!r}",
        advice=f"{guess}Known are a folder, {', '.join(f'{each}:' for each in _KNOWN)}",
    )


def absolute_location(path: str) -> str:
    """A warehouse as an absolute location. Iceberg's own engines need the scheme, and do not percent-encode."""
    path = os.fspath(path)
    if not path.strip() or _NO_BUCKET.match(path):
        raise InvalidInput(f"The warehouse {path!r} names no place", advice="Write a folder, or s3://bucket/path")
    if "://" in path and not path.startswith("file:"):
        return canonical(path)
    return "file://" + os.path.abspath(os.path.expanduser(local_path(path)))


def _open_folder(asked: _Asked) -> OpenedCatalog:
    folder = os.path.abspath(os.path.expanduser(local_path(asked.uri)))
    file = os.path.join(folder, CATALOG_FILE)
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise InvalidInput(
            f"{folder} is a file, not a lake's folder", advice=f"For a SQLite catalog write sqlite:///{folder}"
        )
    if not os.path.exists(file):
        if asked.read_only or not asked.create:
            raise InvalidInput(
                f"There is no lake in {folder}",
                evidence=f"It has no {CATALOG_FILE}",
                advice="Check the path, or connect with create=True and without read_only to make one",
            )
        _check_new_folder(folder)
        _make_folder(folder)
    return asked.opened(
        asked.sqlite(file), kind="embedded", warehouse=absolute_location(os.path.join(folder, WAREHOUSE_FOLDER))
    )


def _check_new_folder(folder: str) -> None:
    """Other engines take a table's location for a URI, in which these characters mean something else."""
    if bad := sorted(set(folder) & set("#?%\n")):
        raise InvalidInput(
            f"The folder {folder!r} holds the character {bad[0]!r}, with which PyIceberg could not open its tables",
            advice="Choose another folder for a new lake",
        )


def _make_folder(folder: str) -> None:
    try:
        make_folder(folder)
    except OSError as error:
        raise storage_error(error, f"Cannot create the folder {folder}") from error


def _open_sqlite(asked: _Asked) -> OpenedCatalog:
    path = os.path.abspath(sqlite_path(asked.uri))
    warehouse = absolute_location(os.path.join(os.path.dirname(path), WAREHOUSE_FOLDER))
    return asked.opened(asked.sqlite(path), kind="sqlite", warehouse=warehouse)


def sqlite_path(uri: str) -> str:
    """SQLAlchemy's form (three slashes and a relative path, four and an absolute one) or JDBC's (jdbc:sqlite:path)."""
    rest = uri.partition(":")[2].partition("?")[0]
    if uri.lower().startswith("jdbc:"):
        path = rest.partition(":")[2]
    elif rest.startswith("///"):
        path = rest[3:]
    else:
        raise InvalidInput(
            f"The SQLite URI {uri!r} names a host",
            advice="Write sqlite:///relative/path.db or sqlite:////absolute/path.db",
        )
    if path in ("", ":memory:"):
        raise InvalidInput(f"The SQLite URI {uri!r} names no file", advice="For a catalog in memory write memory://")
    return os.path.expanduser(path)


def _open_postgres(asked: _Asked) -> OpenedCatalog:
    # Not at the top: the driver is an extra.
    from frazil.catalog.postgres import PostgresStore

    store = PostgresStore(asked.uri, name=asked.name, read_only=asked.read_only, create=asked.create)
    return asked.opened(store, kind="postgres", warehouse=None)


def _open_memory(asked: _Asked) -> OpenedCatalog:
    """``memory://`` is new each time; ``memory://name`` is the same one for the whole process."""
    key = asked.uri.partition("://")[2].strip("/")
    with _shared_lock:
        known = _shared.get(key) if key else None
        store, storage, place = known or _new_memory(asked)
        if key:
            _shared[key] = store, storage, place
    return OpenedCatalog(
        catalog=PointerCatalog(store.read_only_view() if asked.read_only else store, storage, asked.runtime),
        storage=storage,
        warehouse=asked.warehouse or place,
        uri_shown=asked.uri,
        kind="memory",
        created=known is None,
    )


def _new_memory(asked: _Asked) -> tuple[MemoryStore, Storage, str]:
    store = MemoryStore(name=asked.name or DEFAULT_NAME, runtime=asked.runtime)
    return store, Storage(asked.properties), f"memory://{asked.runtime.new_hex()[:12]}/{WAREHOUSE_FOLDER}"


_OPENERS: dict[str, Callable[[_Asked], OpenedCatalog]] = {
    **dict.fromkeys(("", "file"), _open_folder),
    **dict.fromkeys(("sqlite", "sqlite+pysqlite", "jdbc:sqlite"), _open_sqlite),
    **dict.fromkeys(_POSTGRES, _open_postgres),
    "memory": _open_memory,
}

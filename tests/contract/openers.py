"""The catalogs that the contract suite runs over. To add one, append an Opener to OPENERS."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from frazil.catalog._sql import SqlStore
from frazil.catalog.base import OpenedCatalog
from frazil.catalog.open import open_catalog
from frazil.catalog.postgres import PostgresStore
from frazil.catalog.sqlite import SqliteStore
from rest_service import RestService, serving


@dataclass(frozen=True)
class Address:
    """Where a catalog is; picklable, so that other processes open the same one."""

    uri: str
    warehouse: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None

    def open(self) -> OpenedCatalog:
        return open_catalog(self.uri, warehouse=self.warehouse, name=self.name, properties=self.properties)


@dataclass(frozen=True)
class Opener:
    name: str
    address: Callable[[pytest.FixtureRequest, Path], Address]
    """Makes an empty catalog for one test and says where it is; request.addfinalizer cleans up."""
    processes: bool = True
    """May other processes open it?"""
    ours: bool = True
    """Does it keep changes and name all tables at one instant? Said here, so that a catalog that stops is noticed."""
    swaps: bool = False
    """A catalog that is not ours: does it take several tables in one swap?"""
    notyet: Mapping[str, str] = field(default_factory=dict)
    """Tests that the software behind this catalog cannot pass, each with the reason; they are skipped with it."""


def _memory(_request: pytest.FixtureRequest, _folder: Path) -> Address:
    return Address(f"memory://{uuid.uuid4().hex}")


def _folder(_request: pytest.FixtureRequest, folder: Path) -> Address:
    return Address(str(folder / "lake"))


def _postgres(request: pytest.FixtureRequest, folder: Path) -> Address:
    return Address(request.getfixturevalue("postgres_uri"), warehouse=str(folder / "warehouse"))


def _pyiceberg_sql(_request: pytest.FixtureRequest, folder: Path) -> Address:
    uri = f"sqlite:///{folder}/pyiceberg.db"
    return Address("pyiceberg:standin", (folder / "warehouse").as_uri(), {"type": "sql", "uri": uri})


def _glue(request: pytest.FixtureRequest, _folder: Path) -> Address:
    server = request.getfixturevalue("aws")
    server.forget_everything()
    return Address("glue://", server.create_bucket("lake") + "/wh", server.properties)


def _rest(request: pytest.FixtureRequest, folder: Path) -> Address:
    running = serving(RestService(folder / "warehouse"))
    service = running.__enter__()
    request.addfinalizer(lambda: running.__exit__(None, None, None))
    return Address(service.url)


OPENERS: list[Opener] = [
    Opener("memory", _memory, processes=False),
    Opener("sqlite", _folder),
    Opener("postgres", _postgres),
    Opener(
        "pyiceberg-sql",
        _pyiceberg_sql,
        ours=False,
        notyet={
            "test_a_table_and_the_drop_of_its_namespace_exclude_each_other": "PyIceberg looks for tables, then drops",
            "test_a_drop_and_a_swap_never_bring_a_dropped_table_back": "PyIceberg's drop does not say what it dropped",
        },
    ),
    Opener(
        "glue",
        _glue,
        ours=False,
        notyet={
            "test_a_table_and_the_drop_of_its_namespace_exclude_each_other": "PyIceberg looks for tables, then drops",
            "test_a_drop_and_a_swap_never_bring_a_dropped_table_back": "PyIceberg's drop does not say what it dropped",
            "test_two_renames_of_one_table_move_it_once": "PyIceberg's rename creates the new name, then drops the old",
            "test_a_rename_and_a_swap_lose_nothing": "PyIceberg's rename creates the new name, then drops the old",
        },
    ),
]
REST = Opener("rest", _rest, ours=False, swaps=True)
"""Only for swaps of several tables: Iceberg's own server decides the rest (tests/interop/test_rest_catalog.py)."""


# The databases below the SQL catalogs


@dataclass(frozen=True)
class Database:
    """A SQLite file or a Postgres database, and how to open and ask it."""

    open_store: Callable[..., SqlStore]
    ask: Callable[[str], list[Any]]
    _opened: list[SqlStore] = field(default_factory=list)

    def open(self, **options: Any) -> SqlStore:
        store = self.open_store(**options)
        self._opened.append(store)
        return store

    def close(self) -> None:
        for store in self._opened:
            store.close()


def sqlite_database(path: Path) -> Database:
    def ask(sql: str) -> list[Any]:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            return connection.execute(sql).fetchall()

    return Database(lambda **options: SqliteStore(path, **options), ask)


def postgres_database(uri: str) -> Database:
    def ask(sql: str) -> list[Any]:
        with psycopg.connect(uri, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    return Database(lambda **options: PostgresStore(uri, **options), ask)

"""One database and warehouse, opened by Frazil, PyIceberg and Iceberg Java alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import frazil
from frazil.lake import Lake
from frazil.read.scan import Scan
from interop.iceberg_java import IcebergJava, JavaCatalog, postgres_options, sqlite_options, start_iceberg_java
from interop.rest_server import RestServer, start_rest_server


@dataclass(frozen=True, slots=True)
class Place:
    """Where one catalog and its warehouse are, in each engine's words."""

    folder: Path
    frazil_uri: str
    warehouse: str
    pyiceberg_uri: str
    java_options: dict[str, Any]
    java: IcebergJava

    def lake(self, name: str | None = None) -> Lake:
        return frazil.connect(self.frazil_uri, warehouse=self.warehouse, name=name)

    def pyiceberg(self) -> SqlCatalog:
        return SqlCatalog(self.java_options["name"], uri=self.pyiceberg_uri, warehouse=self.warehouse)

    def iceberg_java(self) -> JavaCatalog:
        return JavaCatalog(self.java, self.java_options)


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergJava]:
    with start_iceberg_java(tmp_path_factory.mktemp("java")) as running:
        yield running


@pytest.fixture(scope="session")
def rest_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    with start_rest_server(tmp_path_factory.mktemp("rest")) as running:
        yield running


@pytest.fixture
def sqlite_place(tmp_path: Path, java: IcebergJava) -> Place:
    """An embedded lake: a folder with its database and warehouse."""
    return sqlite_in(tmp_path / "lake", java)


def sqlite_in(folder: Path, java: IcebergJava, name: str = "frazil") -> Place:
    folder.mkdir()
    database, warehouse = folder / "catalog.db", (folder / "warehouse").as_uri()
    return Place(
        folder=folder,
        frazil_uri=str(folder),
        warehouse=warehouse,
        # Thirty writers may hold each other up for longer than SQLite's usual five seconds.
        pyiceberg_uri=f"sqlite:///{database}?timeout=60",
        java_options=sqlite_options(database, warehouse, name),
        java=java,
    )


@pytest.fixture
def postgres_place(tmp_path: Path, java: IcebergJava, postgres_uri: str) -> Place:
    warehouse = (tmp_path / "warehouse").as_uri()
    return Place(
        folder=tmp_path,
        frazil_uri=postgres_uri,
        warehouse=warehouse,
        pyiceberg_uri=postgres_uri.replace("postgresql://", "postgresql+psycopg2://"),
        java_options=postgres_options(postgres_uri, warehouse),
        java=java,
    )


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> Place:
    """The test runs on SQLite and on Postgres."""
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found


def ids(scan: Scan) -> list[int]:
    """The scan's ``id`` column, sorted."""
    values: list[Any] = scan.to_arrow()["id"].to_pylist()
    return sorted(values)

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.openers import OPENERS, Address, Database, Opener, postgres_database, sqlite_database
from frazil.catalog.base import Catalog, OpenedCatalog


@pytest.fixture(params=OPENERS, ids=lambda opener: opener.name)
def opener(request: pytest.FixtureRequest) -> Opener:
    found: Opener = request.param
    reason = found.notyet.get(request.node.originalname)
    if reason is not None:
        pytest.skip(f"not yet: {reason}")
    return found


@pytest.fixture
def address(opener: Opener, request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    """An empty catalog of each kind in turn."""
    return opener.address(request, tmp_path)


@pytest.fixture
def opened(address: Address) -> Iterator[OpenedCatalog]:
    found = address.open()
    yield found
    found.catalog.close()


@pytest.fixture
def catalog(opened: OpenedCatalog) -> Catalog:
    return opened.catalog


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database of each kind in turn, with nothing in it."""
    is_sqlite = request.param == "sqlite"
    found = (
        sqlite_database(tmp_path / "catalog.db")
        if is_sqlite
        else postgres_database(request.getfixturevalue("postgres_uri"))
    )
    yield found
    found.close()


@pytest.fixture
def sqlite_db(tmp_path: Path) -> Iterator[Database]:
    found = sqlite_database(tmp_path / "catalog.db")
    yield found
    found.close()


@pytest.fixture
def postgres_db(postgres_uri: str) -> Iterator[Database]:
    found = postgres_database(postgres_uri)
    yield found
    found.close()

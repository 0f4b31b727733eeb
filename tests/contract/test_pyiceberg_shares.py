"""PyIceberg's SqlCatalog and Frazil on one database: the same names, the same tables, one race."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from contract.samples import EVENTS, commit, create_table, prepared
from frazil.catalog.base import Committed, OpenedCatalog, Stale
from frazil.catalog.open import open_catalog
from frazil.errors import NoSuchTable
from frazil.model import Ident

SCHEMA = Schema(NestedField(1, "id", LongType()))


@pytest.fixture(params=["sqlite", "postgres"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/catalog.db"
    return str(request.getfixturevalue("postgres_uri")).replace("postgresql://", "postgresql+psycopg2://")


@pytest.fixture
def opened(uri: str, tmp_path: Path) -> Iterator[OpenedCatalog]:
    found = open_catalog(uri, warehouse=f"{tmp_path}/warehouse")
    yield found
    found.catalog.close()


@pytest.fixture
def theirs(uri: str, opened: OpenedCatalog, tmp_path: Path) -> Iterator[SqlCatalog]:
    found = SqlCatalog("frazil", uri=uri, warehouse=f"file://{tmp_path}/warehouse")
    yield found
    found.engine.dispose()


def test_pyiceberg_sees_our_namespaces_and_tables(opened: OpenedCatalog, theirs: SqlCatalog) -> None:
    head = create_table(opened)
    opened.catalog.create_namespace(("empty", "below"), {"owner": "ann"})
    assert set(theirs.list_namespaces()) == {("shop",), ("empty",)}
    assert theirs.load_namespace_properties(("empty", "below"))["owner"] == "ann"
    assert theirs.list_tables("shop") == [("shop", "events")]
    table = theirs.load_table("shop.events")
    assert table.metadata_location == head.location
    assert str(table.metadata.table_uuid) == head.metadata.uuid


def test_we_see_pyicebergs_namespaces_and_tables(opened: OpenedCatalog, theirs: SqlCatalog) -> None:
    theirs.create_namespace("ours")
    theirs.create_namespace("deep.er", {"owner": "bob"})
    table = theirs.create_table("deep.er.t", SCHEMA)
    assert opened.catalog.namespaces() == {("deep",): {}, ("deep", "er"): {"owner": "bob"}, ("ours",): {}}
    ident = Ident(("deep", "er"), "t")
    assert opened.catalog.tables() == [ident]
    assert opened.catalog.load(ident).location == table.metadata_location
    assert isinstance(commit(opened.catalog, "1", ident), Committed)
    assert theirs.load_table("deep.er.t").properties["k"] == "1"
    opened.catalog.drop(ident)
    with pytest.raises(NoSuchTableError):
        theirs.load_table("deep.er.t")


def test_each_loses_to_the_other_on_one_table(opened: OpenedCatalog, theirs: SqlCatalog) -> None:
    create_table(opened)
    ready = prepared(opened.catalog, "ours")
    table = theirs.load_table("shop.events")
    table.transaction().set_properties(k="theirs").commit_transaction()
    outcome = opened.catalog.swap(ready)
    assert outcome == Stale(theirs.load_table("shop.events").metadata_location)
    assert isinstance(commit(opened.catalog, "ours again"), Committed)
    assert theirs.load_table("shop.events").properties["k"] == "ours again"


def test_pyiceberg_loses_to_us_between_its_read_and_its_write(
    opened: OpenedCatalog, theirs: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_table(opened)
    table = theirs.load_table("shop.events")
    write = theirs._write_metadata

    def while_we_commit(*args: object, **kwargs: object) -> None:
        assert isinstance(commit(opened.catalog, "ours"), Committed)
        write(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(theirs, "_write_metadata", while_we_commit)
    with pytest.raises(CommitFailedException):
        theirs.commit_table(table, (), table.transaction().set_properties(k="theirs")._updates)
    assert opened.catalog.load(EVENTS).metadata.properties["k"] == "ours"


def test_p13_a_database_made_by_pyiceberg_is_adopted_by_its_name(uri: str, tmp_path: Path) -> None:
    theirs = SqlCatalog("prod", uri=uri, warehouse=f"file://{tmp_path}/warehouse")
    theirs.create_namespace("shop")
    table = theirs.create_table("shop.events", SCHEMA)
    opened = open_catalog(uri)
    try:
        assert opened.catalog.name == "prod"
        assert opened.catalog.load(EVENTS).location == table.metadata_location
        assert not opened.created
    finally:
        opened.catalog.close()
        theirs.engine.dispose()


def test_a_renamed_table_is_found_by_both(opened: OpenedCatalog, theirs: SqlCatalog) -> None:
    create_table(opened)
    theirs.rename_table("shop.events", "shop.moved")
    moved = Ident(("shop",), "moved")
    assert opened.catalog.tables() == [moved]
    with pytest.raises(NoSuchTable):
        opened.catalog.load(EVENTS)
    opened.catalog.rename(moved, EVENTS)
    assert theirs.load_table("shop.events").name() == ("shop", "events")

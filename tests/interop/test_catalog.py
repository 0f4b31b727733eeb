"""One database, three catalogs: whoever made it, the others open it and see the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import frazil
from interop.conftest import Place, ids, sqlite_in
from interop.iceberg_java import IcebergJava, JavaCatalog, JavaError

pytestmark = pytest.mark.interop

IDS = Schema(NestedField(1, "id", LongType()))


def test_what_frazil_creates_java_and_pyiceberg_list_and_load(place: Place) -> None:
    with place.lake() as lake:
        lake.create_namespace("shop")
        lake.create_namespace("shop.eu")
        lake.create_table("shop.events", IDS)
        lake.create_table("shop.eu.events", IDS).append([{"id": 1}])
        theirs = place.iceberg_java()
        assert theirs.namespaces() == ["shop"]
        assert theirs.tables("shop") == ["shop.events"]
        assert theirs.tables("shop.eu") == ["shop.eu.events"]
        assert theirs.table("shop.eu.events").rows() == [{"id": 1}]
        python = place.pyiceberg()
        assert python.list_tables("shop.eu") == [("shop", "eu", "events")]
        assert python.load_table("shop.eu.events").scan().to_arrow()["id"].to_pylist() == [1]


def test_what_java_creates_frazil_lists_loads_and_appends_to(place: Place) -> None:
    theirs = place.iceberg_java()
    theirs.create_namespace("shop")
    table = theirs.create("shop.events", IDS)
    table.append([{"id": 1}])
    with place.lake() as lake:
        assert lake.namespaces() == ["shop"]
        assert lake.tables("shop") == ["shop.events"]
        lake.table("shop.events").append([{"id": 2}])
        assert sorted(row["id"] for row in table.rows()) == [1, 2]
        lake.rename_table("shop.events", "shop.renamed")
        assert theirs.tables("shop") == ["shop.renamed"]
        lake.drop_table("shop.renamed")
        with pytest.raises(JavaError, match="NoSuchTableException"):
            theirs.table("shop.renamed").metadata()


def test_a_lake_that_java_made_under_another_name_is_adopted(tmp_path: Path, java: IcebergJava) -> None:
    place = sqlite_in(tmp_path / "lake", java, name="prod")
    theirs = place.iceberg_java()
    theirs.create_namespace("shop")
    table = theirs.create("shop.events", IDS)
    with frazil.connect(str(place.folder)) as lake:
        assert lake.catalog.name == "prod"
        lake.table("shop.events").append([{"id": 1}])
        lake.create_table("shop.more", IDS)
    assert table.rows() == [{"id": 1}]
    assert theirs.tables("shop") == ["shop.events", "shop.more"]


def test_a_database_with_several_catalogs_is_refused_with_their_names(tmp_path: Path, java: IcebergJava) -> None:
    place = sqlite_in(tmp_path / "lake", java, name="prod")
    for name in ("prod", "staging"):
        catalog = JavaCatalog(java, {**place.java_options, "name": name})
        catalog.create_namespace("shop")
        catalog.create("shop.events", IDS)
    with pytest.raises(frazil.InvalidInput, match=r"(?s)prod.*staging"):
        frazil.connect(str(place.folder))
    with place.lake(name="staging") as lake:
        assert lake.tables() == ["shop.events"]


def test_a_database_of_the_older_jdbc_layout_is_opened(tmp_path: Path, java: IcebergJava) -> None:
    place = sqlite_in(tmp_path / "lake", java)
    old = {**place.java_options["properties"], "jdbc.schema-version": "V0"}
    theirs = JavaCatalog(java, {"name": "frazil", "properties": old})
    theirs.create_namespace("shop")
    table = theirs.create("shop.events", IDS)
    with place.lake() as lake:
        assert lake.tables() == ["shop.events"]
        lake.table("shop.events").append([{"id": 1}])
    assert table.rows() == [{"id": 1}]


def test_an_old_version_1_table_is_read_and_not_written(sqlite_place: Place) -> None:
    theirs = sqlite_place.iceberg_java()
    theirs.create_namespace("shop")
    table = theirs.create("shop.old", IDS, version=1)
    table.append([{"id": 1}])
    table.append([{"id": 2}], fast=True)
    files = set(sqlite_place.folder.rglob("*.parquet"))
    with sqlite_place.lake() as lake:
        events = lake.table("shop.old")
        assert ids(events.scan()) == [1, 2]
        assert len(events.history()) == 2
        with pytest.raises(frazil.Unsupported, match="version"):
            events.append([{"id": 3}])
    assert set(sqlite_place.folder.rglob("*.parquet")) == files
    assert sorted(row["id"] for row in table.rows()) == [1, 2]

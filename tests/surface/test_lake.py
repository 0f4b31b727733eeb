"""Namespaces and tables through the public surface."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

import frazil
from frazil.catalog.base import Head
from frazil.format.metadata import TableMetadata
from frazil.model import Ident


@pytest.fixture
def lake(tmp_path: Path) -> frazil.Lake:
    lake = frazil.connect(str(tmp_path / "lake"))
    lake.create_namespace("shop")
    return lake


def test_a_new_lake_says_once_that_it_was_created(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frazil.connect(str(tmp_path / "lake"))
    assert "Created a new lake" in caplog.text
    caplog.clear()
    frazil.connect(str(tmp_path / "lake"))
    assert "Created" not in caplog.text


def test_p6_a_new_lakes_folder_is_durable_in_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def spy(fd: int) -> None:
        real(fd)
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "fsync", spy)
    frazil.connect(str(tmp_path / "a" / "lake")).close()
    assert {str(tmp_path), str(tmp_path / "a")} <= set(synced)


def test_create_list_rename_drop(lake: frazil.Lake) -> None:
    lake.create_table("shop.a", "id bigint")
    lake.create_table(("shop", "with.dot"), "id bigint")
    assert lake.tables() == ["shop.`with.dot`", "shop.a"]
    assert lake.tables("shop") == lake.tables()
    assert lake.exists("shop.a")
    assert lake.exists("shop.`with.dot`")
    lake.rename_table("shop.a", "shop.b")
    assert not lake.exists("shop.a")
    lake.drop_table("shop.b")
    lake.drop_table("shop.`with.dot`")
    lake.drop_namespace("shop")
    assert lake.namespaces() == []


def test_namespaces_have_levels(lake: frazil.Lake) -> None:
    lake.create_namespace("shop.eu.de")
    lake.create_namespace("shop", exists_ok=True)
    lake.create_table("shop.eu.de.t", "id bigint")
    assert lake.tables("shop.eu.de") == ["shop.eu.de.t"]
    assert lake.tables("shop") == []
    assert "shop.eu" in lake.namespaces()


def test_exists_ok_returns_the_table_that_is_there(lake: frazil.Lake) -> None:
    first = lake.create_table("shop.t", "id bigint")
    assert lake.create_table("shop.t", "other string", exists_ok=True).uuid == first.uuid


def test_a_table_remembers_everything_it_was_created_with(lake: frazil.Lake) -> None:
    table = lake.create_table(
        "shop.t",
        "id bigint, ts timestamp comment 'when', name string",
        partition_by=["day(ts)", "bucket(4, id)"],
        sort_by=["ts desc", "id"],
        keys=["id"],
        properties={"owner": "me"},
        comment="A table",
    )
    assert [field.name for field in table.spec.fields] == ["ts_day", "id_bucket"]
    assert [str(field.direction) for field in table.sort_order.fields] == ["DESC", "ASC"]
    assert table.keys == ("id",)
    assert table.schema.find_field("id").required
    assert table.schema.find_field("ts").doc == "when"
    assert (table.properties["owner"], table.properties["comment"]) == ("me", "A table")
    assert table.format_version == 2


def test_create_from_rows(lake: frazil.Lake) -> None:
    table = lake.create_table("shop.t", as_=pa.table({"id": [1, 2], "name": ["a", None]}))
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]


def test_create_from_a_pandas_frame_keeps_its_named_index(lake: frazil.Lake) -> None:
    frame = pd.DataFrame({"id": [1, 2], "day": ["mon", "tue"], "name": ["a", "b"]})
    wanted = frame.to_dict("records")
    one = lake.create_table("shop.one", as_=frame.set_index("id"))
    assert one.scan().to_arrow().to_pylist() == wanted
    one.append(frame.set_index("id"))
    assert one.scan().count() == 4
    two = lake.create_table("shop.two", as_=frame.set_index(["id", "day"]), keys=["id"])
    assert two.scan().to_arrow().to_pylist() == wanted
    plain = lake.create_table("shop.plain", as_=frame)
    assert [each.name for each in plain.schema.fields] == ["id", "day", "name"]


def test_create_from_bad_rows_leaves_no_table(lake: frazil.Lake) -> None:
    with pytest.raises(frazil.SchemaMismatch):
        lake.create_table("shop.t", "id bigint not null", as_=pa.table({"id": pa.array([None], pa.int64())}))
    assert not lake.exists("shop.t")


def test_p13_a_table_created_under_a_used_name_has_a_folder_of_its_own(lake: frazil.Lake) -> None:
    old = lake.create_table("shop.t", "id bigint")
    old.append([{"id": 1}])
    moved = lake.rename_table("shop.t", "shop.old")
    new = lake.create_table("shop.t", "id bigint")
    new.append([{"id": 2}])
    assert new.location != moved.location
    lake.drop_table("shop.t", purge=True)
    assert moved.scan().to_arrow().to_pylist() == [{"id": 1}]


def test_purge_removes_what_was_dropped_not_what_was_there_before(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.create_table("shop.t", "id bigint").append([{"id": 1}])
    drop = lake.catalog.drop

    def renamed_meanwhile(ident: Ident) -> str:
        lake.rename_table("shop.t", "shop.kept")
        lake.create_table("shop.t", "id bigint").append([{"id": 2}])
        return drop(ident)

    monkeypatch.setattr(lake.catalog, "drop", renamed_meanwhile)
    lake.drop_table("shop.t", purge=True)
    assert lake.table("shop.kept").scan().to_arrow().to_pylist() == [{"id": 1}]


def test_purge_respects_gc_enabled(lake: frazil.Lake) -> None:
    lake.create_table("shop.t", "id bigint", properties={"gc.enabled": "false"})
    with pytest.raises(frazil.InvalidInput, match=r"gc\.enabled"):
        lake.drop_table("shop.t", purge=True)
    assert lake.exists("shop.t")


def test_a_failed_fill_leaves_a_table_with_other_writers_rows(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = lake.catalog.create

    def written_at_once(ident: Ident, metadata: TableMetadata) -> Head:
        head = create(ident, metadata)
        lake.table("shop.t").append([{"id": 7}])
        return head

    monkeypatch.setattr(lake.catalog, "create", written_at_once)
    with pytest.raises(frazil.SchemaMismatch):
        lake.create_table("shop.t", "id bigint not null", as_=pa.table({"id": pa.array([None], pa.int64())}))
    assert lake.table("shop.t").scan().to_arrow().to_pylist() == [{"id": 7}]


def test_a_lake_is_the_same_after_a_change_of_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    lake = frazil.connect("lake")
    lake.create_namespace("shop")
    lake.create_table("shop.t", "id bigint").append([{"id": 1}])
    data = pickle.dumps(lake.table("shop.t"))
    monkeypatch.chdir(tmp_path / "b")
    assert pickle.loads(data).scan().count() == 1
    assert lake.pyiceberg().list_tables("shop") == [("shop", "t")]
    assert not list((tmp_path / "b").iterdir())


def test_a_connection_string_is_refused_without_showing_its_password(tmp_path: Path) -> None:
    with pytest.raises(frazil.InvalidInput) as caught:
        frazil.connect("host=db password=s3cret dbname=lake")
    assert "s3cret" not in str(caught.value)


def test_drop_keeps_the_files_and_purge_removes_them(lake: frazil.Lake, tmp_path: Path) -> None:
    for purge in (False, True):
        table = lake.create_table("shop.t", "id bigint")
        table.append([{"id": 1}])
        table.append([{"id": 2}])
        folder = Path(table.location.removeprefix("file://"))
        lake.drop_table("shop.t", purge=purge)
        left = [path for path in folder.rglob("*") if path.is_file()]
        assert bool(left) is not purge


def test_a_dropped_table_is_registered_again_from_its_metadata(lake: frazil.Lake) -> None:
    table = lake.create_table("shop.t", "id bigint")
    table.append([{"id": 1}])
    location = table.metadata_location
    lake.drop_table("shop.t")
    assert lake.register_table("shop.back", location).scan().count() == 1


def test_pyiceberg_sees_what_frazil_made_and_the_other_way_round(lake: frazil.Lake) -> None:
    table = lake.create_table("shop.ours", "id bigint, name string", partition_by=["bucket(4, id)"])
    table.append([{"id": number, "name": str(number)} for number in range(20)])
    theirs = lake.pyiceberg()
    assert ("shop",) in theirs.list_namespaces()
    assert theirs.list_tables("shop") == [("shop", "ours")]
    assert theirs.load_table("shop.ours").scan("id = 7").to_arrow().to_pylist() == [{"id": 7, "name": "7"}]
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
    made = theirs.create_table("shop.theirs", schema)
    made.append(pa.table({"id": pa.array([1], pa.int64()), "name": ["x"]}))
    ours = lake.table("shop.theirs")
    ours.append([{"id": 2, "name": "y"}])
    assert sorted(row["id"] for row in ours.scan().to_arrow().to_pylist()) == [1, 2]
    assert made.refresh().scan().to_arrow().num_rows == 2


def test_a_foreign_catalog_is_the_one_pyiceberg_opened(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/theirs.db"}
    lake = frazil.connect("pyiceberg:theirs", warehouse=f"file://{tmp_path}/wh", properties=properties)
    lake.create_namespace("shop")
    table = lake.create_table("shop.t", "id bigint")
    table.append([{"id": 1}], commit_id="once")
    assert table.append([{"id": 1}], commit_id="once").already_committed
    assert lake.pyiceberg().load_table("shop.t").scan().to_arrow().to_pylist() == [{"id": 1}]
    table.set_properties({"k": "v"}, commit_id="change")
    assert [key for key in table.properties if key.startswith("frazil.")] == []
    lake.close()


def test_a_database_with_one_other_name_is_adopted_and_with_several_refused(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/prod.db"
    prod = SqlCatalog("prod", uri=uri, warehouse=f"file://{tmp_path}/wh")
    prod.create_namespace("shop")
    adopted = frazil.connect(uri)
    assert (adopted.catalog.name, adopted.namespaces()) == ("prod", ["shop"])
    SqlCatalog("test", uri=uri, warehouse=f"file://{tmp_path}/wh").create_namespace("other")
    with pytest.raises(frazil.InvalidInput) as caught:
        frazil.connect(uri)
    assert "prod" in str(caught.value)
    assert "test" in str(caught.value)
    assert "name=" in str(caught.value)
    assert frazil.connect(uri, name="test").namespaces() == ["other"]


def test_read_only_creates_nothing_and_refuses_writes(lake: frazil.Lake, tmp_path: Path) -> None:
    lake.create_table("shop.t", "id bigint").append([{"id": 1}])
    reader = frazil.connect(str(tmp_path / "lake"), read_only=True)
    table = reader.table("shop.t")
    assert table.scan().count() == 1
    calls: list[Callable[[], object]] = [
        lambda: table.append([{"id": 2}]),
        lambda: table.set_properties({"a": "b"}),
        lambda: reader.create_namespace("x"),
        lambda: reader.create_table("shop.u", "id bigint"),
        lambda: reader.drop_table("shop.t"),
    ]
    for call in calls:
        with pytest.raises(frazil.InvalidInput, match="read_only"):
            call()


def test_memory_lakes_are_separate_unless_named() -> None:
    one, two = frazil.connect("memory://"), frazil.connect("memory://")
    one.create_namespace("shop")
    assert two.namespaces() == []
    table = one.create_table("shop.t", "id bigint")
    table.append([{"id": 1}])
    assert table.scan().to_arrow().num_rows == 1

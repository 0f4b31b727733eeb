"""Every Iceberg type, value by value, in both directions."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from interop.canonical import canonical, in_order
from interop.conftest import Place
from interop.samples import EVERY_ROW, EVERY_TYPE, arrow

pytestmark = pytest.mark.interop

EXPECTED = canonical(EVERY_ROW, EVERY_TYPE)


@pytest.mark.parametrize("version", [1, 2])
def test_what_java_writes_frazil_reads_value_by_value(sqlite_place: Place, version: int) -> None:
    catalog = sqlite_place.iceberg_java()
    catalog.create_namespace("shop")
    table = catalog.create("shop.every", EVERY_TYPE, version=version)
    table.append(EXPECTED)

    with sqlite_place.lake() as lake:
        events = lake.table("shop.every")
        assert events.format_version == version
        assert in_order(canonical(events.scan().to_arrow(), EVERY_TYPE), "id") == EXPECTED
        assert events.scan().count() == len(EXPECTED)


@pytest.mark.parametrize("form", ["arrow", "dicts"])
def test_what_frazil_writes_java_reads_value_by_value(place: Place, form: str) -> None:
    with place.lake() as lake:
        lake.create_namespace("shop")
        events = lake.create_table("shop.every", EVERY_TYPE)
        commit = events.append(arrow(EVERY_ROW, EVERY_TYPE) if form == "arrow" else EVERY_ROW)
        assert commit.rows_inserted == len(EVERY_ROW)
        assert in_order(canonical(events.scan().to_arrow(), events.schema), "id") == EXPECTED

    assert in_order(place.iceberg_java().table("shop.every").rows(), "id") == EXPECTED


def test_a_schema_means_the_same_to_frazil_pyiceberg_and_java(sqlite_place: Place) -> None:
    with sqlite_place.lake() as lake:
        lake.create_namespace("shop")
        ours = lake.create_table("shop.every", EVERY_TYPE).schema
    theirs = sqlite_place.iceberg_java().table("shop.every").metadata()["schema"]
    assert Schema.model_validate(theirs).as_struct() == ours.as_struct()
    assert sqlite_place.pyiceberg().load_table("shop.every").schema().as_struct() == ours.as_struct()


def test_required_columns_and_keys_reach_java(sqlite_place: Place) -> None:
    schema = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType()))
    with sqlite_place.lake() as lake:
        lake.create_namespace("shop")
        lake.create_table("shop.people", schema, keys=["id"], sort_by=["name desc"])
        lake.table("shop.people").append([{"id": 1, "name": "b"}, {"id": 2, "name": "a"}])
    table = sqlite_place.iceberg_java().table("shop.people")
    seen = table.metadata()["schema"]
    assert seen["identifier-field-ids"] == [1]
    assert [field["required"] for field in seen["fields"]] == [True, False]
    assert in_order(table.rows(), "id") == [{"id": 1, "name": "b"}, {"id": 2, "name": "a"}]


def test_row_groups_and_several_files_read_back_whole_by_java(sqlite_place: Place) -> None:
    rows = pa.table({"id": pa.array(range(50_000), pa.int64()), "text": [f"row {n} " * 4 for n in range(50_000)]})
    with sqlite_place.lake() as lake:
        lake.create_namespace("shop")
        properties = {
            "write.target-file-size-bytes": str(256 * 1024),
            "write.parquet.row-group-size-bytes": str(64 * 1024),
        }
        events = lake.create_table("shop.large", rows.schema, properties=properties)
        commit = events.append(rows)
    table = sqlite_place.iceberg_java().table("shop.large")
    files = table.plan()
    assert len(files) == commit.files_added
    assert sum(file["records"] for file in files) == 50_000
    assert sorted(row["id"] for row in table.rows()) == list(range(50_000))
    found = table.rows({"type": "eq", "term": "id", "value": 49_999})
    assert json.dumps(found) == json.dumps([{"id": 49_999, "text": "row 49999 " * 4}])

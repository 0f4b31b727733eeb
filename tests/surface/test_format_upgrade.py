"""Tables of format version 1 become version 2: what other writers left there stays readable, for them as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

import frazil

COLUMNS: dict[str, Any] = {"id": pa.int64(), "region": pa.string()}
SCHEMA = pa.schema(COLUMNS)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[frazil.Lake]:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("s")
        yield lake


def rows(*numbers: int) -> pa.Table:
    found = [{"id": number, "region": "ab"[number % 2]} for number in numbers]
    return pa.Table.from_pylist(found, SCHEMA)


def old_table(lake: frazil.Lake) -> frazil.Table:
    """Made and written by PyIceberg as format version 1, partitioned by region."""
    schema = Schema(
        NestedField(1, "id", LongType(), required=False), NestedField(2, "region", StringType(), required=False)
    )
    by_region = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
    properties = {"format-version": "1"}
    theirs = lake.pyiceberg().create_table("s.old", schema, partition_spec=by_region, properties=properties)
    theirs.append(rows(0, 1))
    theirs.append(rows(2, 3))
    table = lake.table("s.old")
    assert table.format_version == 1
    return table


def ids(table: frazil.Table) -> list[int]:
    return sorted(row["id"] for row in table.scan().to_arrow().to_pylist())


def their_ids(lake: frazil.Lake) -> list[int]:
    return sorted(row["id"] for row in lake.pyiceberg().load_table("s.old").scan().to_arrow().to_pylist())


def test_an_upgraded_table_is_written_by_frazil_and_by_pyiceberg(lake: frazil.Lake) -> None:
    table = old_table(lake)
    with pytest.raises(frazil.Unsupported, match="set_properties"):
        table.append(rows(4))
    before = table.history()
    done = table.set_properties({"format-version": "2", "owner": "us"})
    assert (done.changed, table.format_version, table.properties["owner"]) == (True, 2, "us")
    assert [each.snapshot_id for each in table.history()] == [each.snapshot_id for each in before]
    assert ids(table) == [0, 1, 2, 3]
    table.append(rows(4, 5))
    table.delete("id = 0", mode="merge-on-read")
    assert their_ids(lake) == ids(table) == [1, 2, 3, 4, 5]
    lake.pyiceberg().load_table("s.old").append(rows(6))
    table.update({"region": "'c'"}, "id = 1")
    table.compact()
    assert ids(table) == their_ids(lake) == [1, 2, 3, 4, 5, 6]
    assert not table.set_properties({"format-version": "2"}).changed
    assert table.scan(snapshot=before[0].snapshot_id).count() == 2


def test_an_upgrade_is_replayed_over_an_append_of_the_older_version(lake: frazil.Lake) -> None:
    table = old_table(lake)
    with lake.transaction() as tx:
        mine = tx.table("s.old")
        mine.set_properties({"format-version": "2"})
        mine.append(rows(8))
        lake.pyiceberg().load_table("s.old").append(rows(9))
    assert (table.format_version, ids(table)) == (2, [0, 1, 2, 3, 8, 9])
    assert their_ids(lake) == [0, 1, 2, 3, 8, 9]


@pytest.mark.parametrize("version", ["1", "3", "two", ""])
def test_other_versions_are_refused_and_nothing_changes(lake: frazil.Lake, version: str) -> None:
    old, new = old_table(lake), lake.create_table("s.new", "id bigint")
    for table, found in ((old, 1), (new, 2)):
        with pytest.raises(frazil.Unsupported, match=rf"cannot be set to '{version}'.*has format version {found}"):
            table.set_properties({"format-version": version, "owner": "us"})
        assert (table.format_version, "owner" in table.properties) == (found, False)


def test_sql_upgrades_a_table(lake: frazil.Lake) -> None:
    table = old_table(lake)
    lake.sql("ALTER TABLE s.old SET TBLPROPERTIES ('format-version' = '2')")
    assert table.format_version == 2


def test_fields_that_only_version_1_has_become_those_of_version_2(lake: frazil.Lake) -> None:
    table = old_table(lake)
    raw: dict[str, Any] = orjson.loads(lake.storage.read(table.metadata_location))
    (fields,) = [spec["fields"] for spec in raw["partition-specs"] if spec["spec-id"] == raw["default-spec-id"]]
    (schema,) = [each for each in raw["schemas"] if each["schema-id"] == raw["current-schema-id"]]
    for key in ("schemas", "current-schema-id", "partition-specs", "default-spec-id", "last-partition-id"):
        del raw[key]
    for key in ("sort-orders", "default-sort-order-id", "refs", "last-sequence-number"):
        raw.pop(key, None)
    unnumbered = [{key: value for key, value in each.items() if key != "field-id"} for each in fields]
    bare = {key: value for key, value in schema.items() if key != "schema-id"}
    path = f"{table.location}/metadata/oldest.metadata.json"
    lake.storage.write(path, orjson.dumps({**raw, "schema": bare, "partition-spec": unnumbered}))
    oldest = lake.register_table("s.oldest", path)
    oldest.set_properties({"format-version": "2"})
    oldest.append(rows(7))
    assert ids(oldest) == [0, 1, 2, 3, 7]
    theirs = lake.pyiceberg().load_table("s.oldest")
    assert sorted(row["id"] for row in theirs.scan().to_arrow().to_pylist()) == [0, 1, 2, 3, 7]
    assert theirs.spec().fields[0].field_id == 1000

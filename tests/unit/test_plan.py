"""Planning: which files a scan reads, and which deletes apply to each."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestamptzType

from frazil.errors import CorruptMetadata, InvalidInput, Unsupported
from frazil.expr import parse_filter
from frazil.format import manifests
from frazil.format._avro_entries import Unusual, read_records
from frazil.format.manifests import read_manifest, read_manifest_list
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import PATH_FIELD, DataFile
from frazil.read.plan import ScanPlan, plan
from unit.written import Written


def optional(field_id: int, name: str, kind: Any) -> NestedField:
    return NestedField(field_id, name, kind, required=False)


SCHEMA = Schema(optional(1, "id", LongType()), optional(2, "region", StringType()), optional(3, "v", DoubleType()))
KEY = Schema(optional(1, "id", LongType()))
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"), spec_id=1)
NO_SPEC = PartitionSpec(spec_id=0)


@pytest.fixture
def table(tmp_path: Path) -> Written:
    return Written(tmp_path, [SCHEMA], [NO_SPEC, BY_REGION])


def planned(table: Written, where: str | None = None) -> ScanPlan:
    metadata = table.metadata()
    return plan(metadata, metadata.head_snapshot(), parse_filter(where, SCHEMA), table.storage)


def deletes_of(table: Written, file: DataFile) -> list[str]:
    (task,) = [each for each in planned(table).tasks if each.file.file_path == file.file_path]
    return sorted(ref.file.file_path for ref in task.deletes)


def region(table: Written, name: str, *ids: int | None) -> DataFile:
    return table.data([{"id": each, "region": name} for each in ids], spec_id=1, partition=(name,))


# Pruning


def test_each_step_rules_out_what_it_can(table: Written) -> None:
    table.commit(region(table, "eu", 1, 2), region(table, "eu", 5), region(table, "us", 5))
    table.commit(region(table, "asia", 5))
    found = planned(table, "region in ('eu', 'us') and id = 5 and region <> 'us'")
    assert [task.file.partition for task in found.tasks] == [("eu",)]
    counts = found.counts
    assert (counts.manifests, counts.manifests_pruned) == (2, 1)
    assert (counts.files, counts.files_pruned_by_partition, counts.files_pruned_by_bounds) == (3, 1, 1)
    assert counts.files_matching_whole == 1


def test_a_file_that_matches_whole_has_nothing_left_to_filter(table: Written) -> None:
    table.commit(table.data([{"id": 5}, {"id": 6}]), table.data([{"id": 5}, {"id": None}]), table.data([{"id": 1}]))
    residuals = [task.residual for task in planned(table, "id > 4").tasks]
    assert [residual is None for residual in residuals] == [True, False]
    assert [task.residual for task in planned(table).tasks] == [None, None, None]


def test_an_impossible_filter_reads_nothing(table: Written) -> None:
    table.commit(table.data([{"id": 5}]))
    assert planned(table, "id = 1.5").tasks == ()


def test_only_the_statistics_that_planning_needs_are_decoded_unless_all_are_wanted(table: Written) -> None:
    table.commit(table.data([{"id": 5, "region": "eu", "v": 1.0}]))
    metadata = table.metadata()
    (task,) = planned(table, "id = 5").tasks
    assert set(task.file.lower_bounds) == {1}
    (task,) = plan(
        metadata, metadata.head_snapshot(), parse_filter("id = 5", SCHEMA), table.storage, all_statistics=True
    ).tasks
    assert set(task.file.lower_bounds) == {1, 2, 3}


def test_random_filters_over_a_partitioned_pyiceberg_table_lose_no_row(tmp_path: Path) -> None:
    catalog = InMemoryCatalog("c", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    schema = Schema(
        optional(1, "id", LongType()), optional(2, "name", StringType()), optional(3, "ts", TimestamptzType())
    )
    spec = PartitionSpec(
        PartitionField(1, 1000, BucketTransform(3), "b"),
        PartitionField(2, 1001, TruncateTransform(1), "t"),
        PartitionField(3, 1002, DayTransform(), "d"),
    )
    peer = catalog.create_table("n.t", schema, partition_spec=spec)
    chance = random.Random(7)
    moments = [dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=18 * i) for i in range(-3, 4)]
    rows = [
        {
            "id": chance.choice([None, *range(-4, 5)]),
            "name": chance.choice([None, "", "a", "ab", "b", "zz"]),
            "ts": chance.choice([None, *moments]),
        }
        for _ in range(60)
    ]
    peer.append(pa.Table.from_pylist(rows, schema_to_pyarrow(peer.schema(), include_field_ids=False)))
    storage = Storage()
    metadata = TableMetadata.parse(storage.read(peer.metadata_location), peer.metadata_location)
    tests = [
        "id = {id}", "id > {id}", "id in ({id}, 2)", "id <> {id}", "id is null", "name = '{name}'", "name is null",
        "name like '{name}%'", "name >= '{name}'", "ts < '{ts}'", "date(ts) = '{day}'", "ts <> '{ts}'",
        "not (ts > '{ts}')",
    ]  # fmt: skip
    for _ in range(60):
        row = next(each for each in chance.sample(rows, len(rows)) if None not in each.values())
        values = {**row, "ts": row["ts"].isoformat(), "day": row["ts"].date()}
        text = chance.choice([" and ", " or "]).join(chance.choice(tests).format(**values) for _ in range(2))
        made = parse_filter(text, metadata.schema())
        found = plan(metadata, metadata.head_snapshot(), made, storage)
        expected = peer.scan().to_arrow()
        kept = made.mask(expected).true_count
        held = sum(task.file.record_count for task in found.tasks)
        whole = sum(task.file.record_count for task in found.tasks if task.residual is None)
        assert whole <= kept <= held, text


# Deletes


def test_position_deletes_apply_to_files_no_newer_than_themselves(table: Written) -> None:
    old = table.data([{"id": 1}])
    table.commit(old)
    same = table.data([{"id": 2}])
    deletes = table.position_deletes([(old.file_path, 0), (same.file_path, 0)])
    table.commit(same, deletes)
    new = table.data([{"id": 3}])
    table.commit(new)
    wide = replace(deletes, lower_bounds={}, upper_bounds={})
    assert deletes_of(table, old) == deletes_of(table, same) == [deletes.file_path]
    assert deletes_of(table, new) == []
    assert wide.lower_bounds == {}


def test_position_deletes_apply_within_their_partition_and_their_bounds(table: Written) -> None:
    eu, us = region(table, "eu", 1), region(table, "us", 1)
    table.commit(eu, us)
    everywhere = table.position_deletes([(eu.file_path, 0), (us.file_path, 0)], spec_id=1, partition=("eu",))
    everywhere = replace(everywhere, lower_bounds={}, upper_bounds={})
    elsewhere = table.position_deletes([(eu.file_path + "1", 0), (eu.file_path + "2", 0)], spec_id=1, partition=("eu",))
    table.commit(everywhere, elsewhere)
    assert deletes_of(table, eu) == [everywhere.file_path]
    assert deletes_of(table, us) == []


@pytest.mark.parametrize("named", [True, False])
def test_a_position_delete_that_names_one_file_applies_to_that_one(table: Written, named: bool) -> None:
    one, other = table.data([{"id": 1}]), table.data([{"id": 2}])
    table.commit(one, other)
    deletes = table.position_deletes([(one.file_path, 0)], named=named)
    if named:
        deletes = replace(deletes, lower_bounds={}, upper_bounds={})
    else:
        assert deletes.lower_bounds[PATH_FIELD] == deletes.upper_bounds[PATH_FIELD]
    table.commit(deletes)
    assert deletes_of(table, one) == [deletes.file_path]
    assert deletes_of(table, other) == []


def test_equality_deletes_apply_only_to_strictly_older_files(table: Written) -> None:
    old = table.data([{"id": 1}])
    table.commit(old)
    same, deletes = table.data([{"id": 1}]), table.equality_deletes([{"id": 1}], KEY)
    table.commit(same, deletes)
    assert deletes_of(table, old) == [deletes.file_path]
    assert deletes_of(table, same) == []


def test_p21_equality_deletes_reach_their_partition_or_everything_when_unpartitioned(table: Written) -> None:
    eu, us, plain = region(table, "eu", 1), region(table, "us", 1), table.data([{"id": 1}])
    table.commit(eu, us, plain)
    local = table.equality_deletes([{"id": 1}], KEY, spec_id=1, partition=("eu",))
    everywhere = table.equality_deletes([{"id": 1}], KEY)
    table.commit(local, everywhere)
    assert deletes_of(table, eu) == sorted([local.file_path, everywhere.file_path])
    assert deletes_of(table, us) == deletes_of(table, plain) == [everywhere.file_path]


def test_equality_deletes_are_narrowed_by_bounds_but_null_matches_null(table: Written) -> None:
    low, high, nulls = table.data([{"id": 1}]), table.data([{"id": 50}]), table.data([{"id": 70}, {"id": None}])
    silent = table.data([{"id": 50}], statistics=False)
    table.commit(low, high, nulls, silent)
    some, null = table.equality_deletes([{"id": 1}, {"id": 9}], KEY), table.equality_deletes([{"id": None}], KEY)
    table.commit(some, null)
    assert deletes_of(table, low) == [some.file_path]
    assert deletes_of(table, high) == []
    assert deletes_of(table, nulls) == [null.file_path]
    assert deletes_of(table, silent) == sorted([some.file_path, null.file_path])


def test_deletes_survive_a_filter_that_prunes(table: Written) -> None:
    eu, us = region(table, "eu", 1, 2), region(table, "us", 1)
    table.commit(eu, us)
    table.commit(
        table.equality_deletes([{"id": 1}], KEY),
        table.position_deletes([(eu.file_path, 1)], spec_id=1, partition=("eu",)),
    )
    assert table.rows("region = 'eu'") == []
    assert table.rows("region = 'eu' or v > 3") == []


# What cannot be read


@pytest.mark.parametrize("kind", ["ORC", "AVRO"])
def test_data_files_of_other_formats_are_refused_whole(table: Written, kind: str) -> None:
    table.commit(table.data([{"id": 1}]), replace(table.data([{"id": 2}]), file_format=kind))
    with pytest.raises(Unsupported, match=kind):
        planned(table)


def test_deletion_vectors_and_encrypted_files_are_refused_whole(table: Written) -> None:
    file = table.data([{"id": 1}])
    table.commit(file, replace(table.position_deletes([(file.file_path, 0)]), file_format="PUFFIN"))
    with pytest.raises(Unsupported, match="PUFFIN"):
        planned(table)
    other = Written(table.root, [SCHEMA])
    other.commit(replace(other.data([{"id": 1}]), key_metadata=b"k"))
    metadata = other.metadata()
    with pytest.raises(Unsupported, match="encrypted"):
        plan(metadata, metadata.head_snapshot(), parse_filter(None, SCHEMA), other.storage, all_statistics=True)


def test_a_damaged_manifest_is_an_error_that_names_it(table: Written) -> None:
    table.commit(table.data([{"id": 1}]))
    (path,) = Path(table.root).glob("m-*.avro")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptMetadata, match=path.name):
        planned(table)


def test_a_filter_must_be_bound_to_columns_of_the_table(table: Written) -> None:
    table.commit(table.data([{"id": 1}]))
    with pytest.raises(InvalidInput):
        planned(table, "nothing = 1")


# The fast way through manifests gives what the plain way gives


def test_fast_reading_of_manifests_equals_plain_reading(table: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    file = region(table, "eu", 1, 2)
    table.commit(file, table.data([{"id": 3, "v": 1.5}]))
    table.commit(table.equality_deletes([{"id": 1}], KEY), table.position_deletes([(file.file_path, 1)], named=True))
    metadata = table.metadata()
    snapshot = metadata.head_snapshot()
    assert snapshot is not None
    assert snapshot.manifest_list is not None
    listed = read_manifest_list(table.storage, snapshot.manifest_list)

    def everything() -> list[Any]:
        found = []
        for stats in (None, frozenset[int](), frozenset({1})):
            for manifest in listed:
                for entry in read_manifest(table.storage, manifest, stats=stats):
                    fields = {name: getattr(entry.file, name) for name in DataFile.__slots__}
                    if stats is not None:
                        fields.pop("column_sizes")
                    found.append((entry.status, entry.snapshot_id, entry.sequence_number, fields))
        return found

    def refuse(*_: Any) -> Any:
        raise Unusual

    fast = everything()
    monkeypatch.setattr(manifests, "read_records", refuse)
    assert everything() == fast
    assert len(fast) == 12


def test_manifests_with_another_codec_or_schema_go_the_plain_way(table: Written) -> None:
    table.commit(table.data([{"id": 1}]))
    (path,) = Path(table.root).glob("m-*.avro")
    with path.open("rb") as source:
        reader = fastavro.reader(source)
        schema, records, header = reader.writer_schema, list(reader), dict(reader.metadata)
    for key in ("avro.codec", "avro.schema"):
        header.pop(key, None)
    with path.open("wb") as target:
        fastavro.writer(target, schema, records, codec="bzip2", metadata=header)
    with pytest.raises(Unusual):
        read_records(path.read_bytes(), None)
    assert [task.file.record_count for task in planned(table).tasks] == [1]

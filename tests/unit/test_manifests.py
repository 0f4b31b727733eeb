from __future__ import annotations

import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.manifest import read_manifest_list as pyiceberg_read_list
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil.errors import CorruptMetadata
from frazil.format.manifests import (
    read_manifest,
    read_manifest_list,
    summarize_partitions,
    write_manifest,
    write_manifest_list,
)
from frazil.format.storage import Storage
from frazil.model import Content, DataFile, Entry, Manifest, Status

SCHEMA = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "ts", TimestamptzType()))


def data_file(path: str = "/d/1.parquet", **changes: Any) -> DataFile:
    values: dict[str, Any] = {
        "file_path": path,
        "record_count": 10,
        "file_size_in_bytes": 1000,
        "column_sizes": {1: 40},
        "value_counts": {1: 10, 2: 10},
        "null_value_counts": {1: 0, 2: 3},
        "lower_bounds": {1: (1).to_bytes(8, "little")},
        "upper_bounds": {1: (9).to_bytes(8, "little")},
        "split_offsets": (4,),
        "sort_order_id": 0,
    }
    return DataFile(**{**values, **changes})


def same(left: DataFile, right: DataFile) -> bool:
    return all(getattr(left, name) == getattr(right, name) for name in DataFile.__slots__)


def written(storage: Storage, folder: Path, entries: list[Entry], spec: PartitionSpec, schema: Schema) -> Manifest:
    new = write_manifest(storage, f"{folder}/m.avro", entries, spec=spec, schema=schema)
    return new.named_by(snapshot_id=77, sequence_number=5)


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    storage = Storage()
    manifest = written(storage, tmp_path, [Entry(Status.ADDED, data_file())], UNPARTITIONED_PARTITION_SPEC, SCHEMA)
    (entry,) = read_manifest(storage, manifest)
    assert same(entry.file, data_file())


def test_p14_added_entries_inherit_snapshot_and_sequence_number_from_the_list(tmp_path: Path) -> None:
    storage = Storage()
    entries = [
        Entry(Status.ADDED, data_file("/d/new.parquet")),
        Entry(Status.EXISTING, data_file("/d/old.parquet"), 3, 2, 2),
    ]
    new = write_manifest(storage, f"{tmp_path}/m.avro", entries, spec=UNPARTITIONED_PARTITION_SPEC, schema=SCHEMA)
    # The same file named by two attempts: what its entries are follows from the list, not from the file.
    for snapshot_id, number in ((77, 5), (78, 6)):
        found = {e.file.file_path: e for e in read_manifest(storage, new.named_by(snapshot_id, number))}
        added, existing = found["/d/new.parquet"], found["/d/old.parquet"]
        assert (added.snapshot_id, added.sequence_number, added.file_sequence_number) == (snapshot_id, number, number)
        assert (existing.snapshot_id, existing.sequence_number, existing.file_sequence_number) == (3, 2, 2)
    # A list line whose minimum were higher than a live file's number would let a reader drop live deletes.
    assert new.named_by(77, 5).min_sequence_number == 2


def test_pyiceberg_reads_manifests_and_lists_with_the_inherited_values(tmp_path: Path) -> None:
    storage = Storage()
    spec = PartitionSpec(PartitionField(2, 1000, DayTransform(), "ts_day"), spec_id=3)
    entry = Entry(Status.ADDED, data_file(partition=(20_000,), spec_id=3))
    manifest = written(storage, tmp_path, [entry], spec, SCHEMA)
    path = f"{tmp_path}/list.avro"
    write_manifest_list(storage, path, [manifest], snapshot_id=77, parent_snapshot_id=None, sequence_number=5)
    io = PyArrowFileIO()
    (theirs,) = pyiceberg_read_list(io.new_input(path))
    assert (theirs.added_files_count, theirs.added_rows_count, theirs.partition_spec_id) == (1, 10, 3)
    (found,) = theirs.fetch_manifest_entry(io)
    assert found.status == ManifestEntryStatus.ADDED
    assert (found.snapshot_id, found.sequence_number) == (77, 5)
    assert found.data_file.partition[0] == 20_000
    assert found.data_file.lower_bounds == {1: (1).to_bytes(8, "little")}


EVERY_PARTITION_TYPE = [
    (BooleanType(), True, True),
    (LongType(), -(2**40), -(2**40)),
    (DoubleType(), 2.5, 2.5),
    (StringType(), "naïve/τ=1", "naïve/τ=1"),
    (BinaryType(), b"\x00\xff", b"\x00\xff"),
    (FixedType(4), b"abcd", b"abcd"),
    (DateType(), -3, -3),
    (TimeType(), 86_399_999_999, 86_399_999_999),
    (TimestampType(), -1_000_001, -1_000_001),
    (TimestamptzType(), 1_700_000_000_123_456, 1_700_000_000_123_456),
    (DecimalType(9, 2), Decimal("-1234567.89"), Decimal("-1234567.89")),
    (DecimalType(38, 10), Decimal("1.0000000001"), Decimal("1.0000000001")),
    (UUIDType(), uuid.UUID(int=7), uuid.UUID(int=7)),
]


@pytest.mark.parametrize(("kind", "value", "expected"), EVERY_PARTITION_TYPE, ids=lambda v: str(v)[:20])
def test_partition_values_of_every_type_come_back_in_internal_form(
    tmp_path: Path, kind: Any, value: Any, expected: Any
) -> None:
    storage = Storage()
    schema = Schema(NestedField(1, "p q.r", kind, required=False))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p q.r"), spec_id=1)
    entries = [Entry(Status.ADDED, data_file(partition=(value,))), Entry(Status.ADDED, data_file(partition=(None,)))]
    manifest = written(storage, tmp_path, entries, spec, schema)
    found = [entry.file.partition[0] for entry in read_manifest(storage, manifest)]
    read = uuid.UUID(bytes=found[0]) if isinstance(kind, UUIDType) and isinstance(found[0], bytes) else found[0]
    assert read == expected
    assert found[1] is None
    assert manifest.partitions[0].contains_null
    io = PyArrowFileIO()
    path = f"{tmp_path}/list.avro"
    write_manifest_list(storage, path, [manifest], snapshot_id=77, parent_snapshot_id=1, sequence_number=5)
    (theirs,) = pyiceberg_read_list(io.new_input(path))
    assert [entry.data_file.partition[0] for entry in theirs.fetch_manifest_entry(io)] == [expected, None]


def test_summaries_bound_every_partition_and_know_nulls_and_nans() -> None:
    schema = Schema(NestedField(1, "a", LongType()), NestedField(2, "x", DoubleType()))
    spec = PartitionSpec(
        PartitionField(1, 1000, BucketTransform(8), "a_bucket"), PartitionField(2, 1001, IdentityTransform(), "x")
    )
    bucket, x = summarize_partitions([(3, 1.0), (1, float("nan")), (None, -2.0)], spec, schema)
    assert (bucket.contains_null, bucket.contains_nan) == (True, False)
    assert (bucket.lower_bound, bucket.upper_bound) == ((1).to_bytes(4, "little"), (3).to_bytes(4, "little"))
    assert (x.contains_null, x.contains_nan) == (False, True)


def test_deleted_entries_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    storage = Storage()
    entries = [Entry(Status.ADDED, data_file()), Entry(Status.DELETED, data_file("/d/gone.parquet"), None, 1, 1)]
    manifest = written(storage, tmp_path, entries, UNPARTITIONED_PARTITION_SPEC, SCHEMA)
    assert [e.file.file_path for e in read_manifest(storage, manifest)] == ["/d/1.parquet"]
    assert len(read_manifest(storage, manifest, live_only=False)) == 2


def test_statistics_are_decoded_only_where_wanted(tmp_path: Path) -> None:
    storage = Storage()
    manifest = written(storage, tmp_path, [Entry(Status.ADDED, data_file())], UNPARTITIONED_PARTITION_SPEC, SCHEMA)
    (some,) = read_manifest(storage, manifest, stats=frozenset({2}))
    assert (some.file.null_value_counts, some.file.lower_bounds) == ({2: 3}, {})
    (none,) = read_manifest(storage, manifest, stats=frozenset())
    assert (none.file.value_counts, none.file.record_count) == ({}, 10)


def test_delete_files_keep_their_content_and_keys(tmp_path: Path) -> None:
    storage = Storage()
    deletes = data_file(content=Content.EQUALITY_DELETES, equality_ids=(1, 2), referenced_data_file="/d/1.parquet")
    new = write_manifest(
        storage,
        f"{tmp_path}/m.avro",
        [Entry(Status.ADDED, deletes)],
        spec=UNPARTITIONED_PARTITION_SPEC,
        schema=SCHEMA,
        content=1,
    )
    (entry,) = read_manifest(storage, new.named_by(1, 1))
    assert same(entry.file, deletes)
    assert new.named_by(1, 1).content == 1


@pytest.mark.parametrize("damage", [b"", b"not avro", "half"])
def test_a_damaged_manifest_is_corrupt_not_empty(tmp_path: Path, damage: bytes | str) -> None:
    storage = Storage()
    manifest = written(storage, tmp_path, [Entry(Status.ADDED, data_file())], UNPARTITIONED_PARTITION_SPEC, SCHEMA)
    whole = Path(manifest.manifest_path).read_bytes()
    Path(manifest.manifest_path).write_bytes(whole[: len(whole) // 2] if isinstance(damage, str) else damage)
    with pytest.raises(CorruptMetadata, match="damaged"):
        read_manifest(storage, manifest)


def test_a_missing_manifest_list_is_corrupt_and_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptMetadata, match=r"gone\.avro"):
        read_manifest_list(Storage(), f"{tmp_path}/gone.avro")

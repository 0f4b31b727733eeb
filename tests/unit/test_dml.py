"""Which rows change and how: each verb's write, laid onto a table by hand and read back."""

from __future__ import annotations

import datetime as dt
import math
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, Transform, TruncateTransform
from pyiceberg.types import (
    DateType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)
from pyroaring import BitMap64

from frazil.commit.operations import Base, Kind, RowCounts, Write
from frazil.dml.append import append
from frazil.dml.delete import delete
from frazil.dml.engine import ARROW
from frazil.dml.overwrite import overwrite, replace_partitions
from frazil.dml.row_delta import row_delta
from frazil.dml.update import update
from frazil.dml.upsert import UpsertMode, key_spec, upsert
from frazil.dml.view import COPY_ON_WRITE, MERGE_ON_READ, Mode, Settings, View
from frazil.errors import InvalidInput, SchemaMismatch, StorageError, Unsupported
from frazil.expr import Filter, lit, parse_filter
from frazil.format.manifests import DATA_MANIFEST, DELETE_MANIFEST, read_manifest, write_manifest, write_manifest_list
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import Content, DataFile, Entry, Isolation, Predicate, Status
from frazil.runtime import SYSTEM
from frazil.services.compaction import Compaction
from frazil.services.options import rewrite_options
from unit.written import Row, Written

MODES: tuple[Mode, ...] = (MERGE_ON_READ, COPY_ON_WRITE)
SETTINGS = Settings()


def field(field_id: int, name: str, kind: Any, required: bool = False) -> NestedField:
    return NestedField(field_id, name, kind, required=required)


ROWS = Schema(
    field(1, "id", LongType(), True), field(2, "s", StringType()), field(3, "n", IntegerType()), schema_id=0,
    identifier_field_ids=[1],
)  # fmt: skip


@dataclass
class Lake(Written):
    """A table that takes writes, without a catalog or other writers."""

    def view(self) -> View:
        return View(self.storage, SYSTEM, self.metadata(), "main", "shop.t")

    def where(self, text: str) -> Filter:
        return parse_filter(text, self.schema)

    def land(self, write: Write) -> None:
        """A snapshot after the last one, with exactly what the write says."""
        assert write.base == self.view().base
        number = len(self.snapshots) + 1
        gone = {file.file_path for file in (*write.removed, *write.removed_deletes)}
        entries = [
            Entry(Status.EXISTING, each.file, each.snapshot_id, each.sequence_number, each.file_sequence_number)
            for manifest in self._manifests
            for each in read_manifest(self.storage, manifest)
            if each.file.file_path not in gone
        ]
        for file in (*write.added, *write.deletes):
            explicit = write.base.sequence_number if file.file_path in write.copies else None
            entries.append(Entry(Status.ADDED, file, sequence_number=explicit))
        manifests = []
        for content in (DATA_MANIFEST, DELETE_MANIFEST):
            for spec in self.specs:
                mine = [
                    each
                    for each in entries
                    if each.file.spec_id == spec.spec_id and (each.file.content != Content.DATA) == bool(content)
                ]
                if mine:
                    path = f"{self.root}/m-{uuid.uuid4().hex}.avro"
                    new = write_manifest(self.storage, path, mine, spec=spec, schema=self.schema, content=content)
                    manifests.append(new.named_by(number, number))
        listed = f"{self.root}/snap-{uuid.uuid4().hex}.avro"
        write_manifest_list(
            self.storage, listed, manifests, snapshot_id=number, parent_snapshot_id=number - 1 or None,
            sequence_number=number,
        )  # fmt: skip
        self._manifests = manifests
        self.snapshots.append(
            {
                "snapshot-id": number, "sequence-number": number, "timestamp-ms": 1_000 * number,
                "manifest-list": listed, "summary": {"operation": "overwrite"}, "schema-id": self.schema.schema_id,
            }
        )  # fmt: skip

    def files(self) -> list[DataFile]:
        return [task.file for task in self.scan().tasks()]

    def staged(self) -> set[str]:
        """Every file the verbs wrote."""
        found = (Path(self.root) / name for name in ("data", "metadata"))
        return {str(path) for folder in found if folder.exists() for path in folder.rglob("*") if path.is_file()}

    def arrow(self, rows: list[Row]) -> pa.Table:
        return pa.Table.from_pylist(rows, schema_to_pyarrow(self.schema, include_field_ids=False))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path, [ROWS])


def numbered(*ids: int) -> list[Row]:
    return [{"id": each, "s": f"s{each}", "n": each % 10} for each in ids]


def ids(rows: list[Row]) -> list[int]:
    return sorted(row["id"] for row in rows)


def stored(lake: Lake, *groups: list[Row]) -> list[DataFile]:
    files = [lake.data(rows) for rows in groups]
    lake.commit(*files)
    return files


def check_runs(write: Write) -> None:
    """Every copy holds exactly the rows that its runs name, and nothing in it was deleted."""
    assert set(write.copies) <= {file.file_path for file in write.added}
    by_path = {file.file_path: file for file in write.added}
    for path, runs in write.copies.items():
        copied = pq.read_table(path)["id"].to_pylist()
        named: list[Any] = []
        for run in runs:
            named += pq.read_table(run.source)["id"].to_pylist()[run.first : run.first + run.length]
        assert copied == named
        assert by_path[path].record_count == sum(run.length for run in runs)
    # What is kept of them is about files that go: a row that is marked in a file that stays is not lost.
    assert write.lineage.outputs == write.copies
    assert write.lineage.changed.keys() == write.moved.keys() & {file.file_path for file in write.removed}


# Append


def test_append_says_what_it_brings(lake: Lake) -> None:
    stored(lake, numbered(1))
    write = append(lake.view(), lake.arrow(numbered(2, 3)), Settings(Isolation.SNAPSHOT, "abort", {"k": "v"}, {}))
    assert (write.kind, write.rows, write.base) == (Kind.APPEND, RowCounts(inserted=2), Base(1, 1))
    assert (write.isolation, write.on_deleted, write.snapshot_properties) == (Isolation.SNAPSHOT, "abort", {"k": "v"})
    assert (write.written_ids, write.nullable_ids) == ({1: "id", 2: "s", 3: "n"}, frozenset())
    lake.land(write)
    assert ids(lake.rows()) == [1, 2, 3]


def test_appending_nothing_is_empty(lake: Lake) -> None:
    write = append(lake.view(), lake.arrow([]), SETTINGS)
    assert (write.is_empty, write.base) == (True, Base())


def test_appended_nulls_are_named(lake: Lake) -> None:
    write = append(lake.view(), lake.arrow([{"id": 1, "s": None, "n": 2}]), SETTINGS)
    assert write.nullable_ids == frozenset({2})


# Delete


@pytest.mark.parametrize("mode", MODES)
def test_delete_takes_out_what_matches(lake: Lake, mode: Mode) -> None:
    first, second, third = stored(lake, numbered(1, 2, 3), numbered(4, 5, 6), numbered(7, 8, 9))
    write = delete(lake.view(), lake.where("id in (2, 4, 5, 6)"), SETTINGS, mode)
    assert (write.kind, write.rows) == (Kind.DELETE, RowCounts(deleted=4))
    assert write.predicate == Predicate("id in (2, 4, 5, 6)", 0)
    assert [read.where.text for read in write.reads] == ["id in (2, 4, 5, 6)"]
    check_runs(write)
    removed = {file.file_path for file in write.removed}
    if mode == MERGE_ON_READ:
        assert removed == {second.file_path}
        assert (write.positions, set(write.touched)) == ({first.file_path: BitMap64([1])}, {first.file_path})
        assert [each.referenced_data_file for each in write.deletes] == [first.file_path]
        assert (write.added, write.written_ids) == ((), {})
    else:
        assert removed == {first.file_path, second.file_path}
        assert (write.deletes, write.positions) == ((), {})
        assert write.written_ids
    assert not write.moved
    lake.land(write)
    assert ids(lake.rows()) == [1, 3, 7, 8, 9]
    assert third.file_path in {file.file_path for file in lake.files()}


@pytest.mark.parametrize("mode", MODES)
def test_a_delete_that_matches_nothing_is_empty(lake: Lake, mode: Mode) -> None:
    stored(lake, numbered(1, 3))
    write = delete(lake.view(), lake.where("id = 2"), SETTINGS, mode)
    assert (write.is_empty, write.rows) == (True, RowCounts())
    assert lake.staged() == set()
    assert delete(lake.view(), lake.where("false"), SETTINGS, mode).is_empty


@pytest.mark.parametrize("mode", MODES)
def test_deleting_from_an_empty_table_is_empty(lake: Lake, mode: Mode) -> None:
    write = delete(lake.view(), lake.where("true"), SETTINGS, mode)
    assert (write.is_empty, write.base) == (True, Base())


@pytest.mark.parametrize("mode", MODES)
def test_files_that_match_whole_are_not_opened(lake: Lake, mode: Mode) -> None:
    (file,) = stored(lake, numbered(1, 2))
    Path(file.file_path).unlink()
    write = delete(lake.view(), lake.where("id >= 1"), SETTINGS, mode)
    assert [each.file_path for each in write.removed] == [file.file_path]
    assert write.rows == RowCounts(deleted=2)
    # What a manifest says of the file is kept: it goes into the entry that removes it.
    assert write.removed[0].lower_bounds.keys() == {1, 2, 3}


@pytest.mark.parametrize("mode", MODES)
def test_deleted_rows_are_not_deleted_again(lake: Lake, mode: Mode) -> None:
    one, two = stored(lake, numbered(1, 2, 3, 4), numbered(5, 6))
    mine = lake.position_deletes([(one.file_path, 0)], named=True)
    shared = lake.position_deletes([(one.file_path, 1), (two.file_path, 0)])
    lake.commit(mine, shared)
    write = delete(lake.view(), lake.where("id in (1, 2, 3, 5)"), SETTINGS, mode)
    assert write.rows == RowCounts(deleted=1)
    check_runs(write)
    lake.land(write)
    assert ids(lake.rows()) == [4, 6]
    # Two has only its dead row among those asked for.
    assert two.file_path in {file.file_path for file in lake.files()}
    removed_deletes = [each.file_path for each in write.removed_deletes]
    assert removed_deletes == ([mine.file_path] if mode == COPY_ON_WRITE else [])


@pytest.mark.parametrize("mode", MODES)
def test_a_file_goes_whole_when_its_last_live_rows_match(lake: Lake, mode: Mode) -> None:
    one, two = stored(lake, numbered(1, 2, 3), numbered(4, 5, 6))
    lake.commit(lake.position_deletes([(one.file_path, 0)], named=True))
    lake.commit(lake.equality_deletes(numbered(4), Schema(ROWS.fields[0])))
    write = delete(lake.view(), lake.where("id in (2, 3, 5, 6)"), SETTINGS, mode)
    assert {each.file_path for each in write.removed} == {one.file_path, two.file_path}
    assert (write.added, write.deletes, write.rows) == ((), (), RowCounts(deleted=4))
    assert len(write.removed_deletes) == 1
    lake.land(write)
    assert lake.rows() == []


@pytest.mark.parametrize("mode", MODES)
def test_a_file_without_live_rows_is_left_alone(lake: Lake, mode: Mode) -> None:
    (one,) = stored(lake, numbered(1))
    lake.commit(lake.position_deletes([(one.file_path, 0)]))
    assert delete(lake.view(), lake.where("true"), SETTINGS, mode).is_empty


@pytest.mark.parametrize("mode", MODES)
def test_rows_that_the_condition_is_null_for_stay(tmp_path: Path, mode: Mode) -> None:
    schema = Schema(field(1, "id", LongType(), True), field(2, "x", DoubleType()), schema_id=0)
    lake = Lake(tmp_path, [schema])
    rows: list[Row] = [{"id": 1, "x": None}, {"id": 2, "x": math.nan}, {"id": 3, "x": 1.0}, {"id": 4, "x": 9.0}]
    lake.commit(lake.data(rows, statistics=False))
    lake.land(delete(lake.view(), lake.where("x < 5"), SETTINGS, mode))
    assert ids(lake.rows()) == [1, 2, 4]
    lake.land(delete(lake.view(), lake.where("not (x < 5)"), SETTINGS, mode))  # NaN is above every number
    assert ids(lake.rows()) == [1]


def test_copies_stay_in_the_spec_and_order_of_their_file(tmp_path: Path) -> None:
    by_s = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"), spec_id=0)
    lake = Lake(tmp_path, [ROWS], specs=[by_s, PartitionSpec(spec_id=1)])
    rows = [{"id": i, "s": None, "n": 0} for i in (5, 3, 4, 1)]
    file = lake.data(rows, spec_id=0, partition=(None,))
    lake.commit(file)
    write = delete(lake.view(), lake.where("id = 4"), SETTINGS, COPY_ON_WRITE)
    (copy,) = write.added
    assert (copy.spec_id, copy.partition, copy.sort_order_id) == (0, (None,), file.sort_order_id)
    assert pq.read_table(copy.file_path)["id"].to_pylist() == [5, 3, 1]
    lake.land(write)
    assert ids(lake.rows()) == [1, 3, 5]


def test_a_copy_is_as_old_as_the_base(lake: Lake) -> None:
    """Rule P20: what was deleted by key before stays deleted, what came after its deletion stays."""
    stored(lake, numbered(1, 2, 3))
    lake.commit(lake.equality_deletes(numbered(1), Schema(ROWS.fields[0])), lake.data(numbered(1, 9)))
    write = delete(lake.view(), lake.where("id in (2, 9)"), SETTINGS, COPY_ON_WRITE)
    check_runs(write)
    lake.land(write)
    assert ids(lake.rows()) == [1, 3]


def test_a_delete_can_go_by_a_column_whose_name_has_a_dot(tmp_path: Path) -> None:
    lake = Lake(tmp_path, [Schema(field(1, "id", LongType()), field(2, "a.b c", StringType()), schema_id=0)])
    lake.land(append(lake.view(), lake.arrow([{"id": 1, "a.b c": "x"}, {"id": 2, "a.b c": "y"}]), SETTINGS))
    lake.land(delete(lake.view(), lake.where("`a.b c` = 'x'"), SETTINGS, COPY_ON_WRITE))
    assert lake.rows() == [{"id": 2, "a.b c": "y"}]


def test_a_filter_of_an_older_schema_follows_its_columns(lake: Lake) -> None:
    stored(lake, numbered(1, 2))
    where = lake.where("id = 1")
    lake.schemas.append(Schema(field(1, "key", LongType(), True), field(2, "s", StringType()), schema_id=1))
    write = delete(lake.view(), where, SETTINGS, MERGE_ON_READ)
    assert write.predicate == Predicate("id = 1", 0)
    lake.land(write)
    assert lake.rows() == [{"key": 2, "s": "s2"}]


@pytest.mark.parametrize("mode", MODES)
def test_old_files_of_an_evolved_table(tmp_path: Path, mode: Mode) -> None:
    """Columns were renamed, widened, added and dropped since the file was written, by another tool without ids."""
    old = Schema(
        field(1, "id", IntegerType()), field(2, "s", StringType()), field(3, "gone", StringType()), schema_id=0
    )
    new = Schema(field(1, "id", LongType()), field(2, "text", StringType()), field(4, "more", LongType()), schema_id=1)
    lake = Lake(tmp_path, [old])
    lake.properties["schema.name-mapping.default"] = create_mapping_from_schema(old).model_dump_json()
    columns: Any = {"id": pa.int32(), "s": pa.string(), "gone": pa.string()}
    plain = pa.schema(columns)
    lake.commit(lake.data([{"id": i, "s": f"s{i}", "gone": "x"} for i in range(4)], arrow=plain))
    lake.schemas.append(new)
    lake.land(delete(lake.view(), lake.where("text = 's1' and more is null"), SETTINGS, mode))
    lake.land(update(lake.view(), {"more": "id * 3000000000"}, lake.where("id = 2"), SETTINGS, mode))
    assert sorted(lake.rows(), key=str) == [
        {"id": 0, "text": "s0", "more": None},
        {"id": 2, "text": "s2", "more": 6_000_000_000},
        {"id": 3, "text": "s3", "more": None},
    ]


class Failing(Storage):
    """Fails at the n-th file that is written, as a full disk does."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._left = at

    def open_output(self, path: str) -> pa.NativeFile:
        self._count()
        return super().open_output(path)

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        self._count()
        super().write(path, data, sync=sync)

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise StorageError("The disk is full")


@pytest.mark.parametrize("at", [1, 2, 3, 4])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("verb", ["delete", "update", "overwrite", "upsert"])
def test_nothing_is_left_when_a_verb_fails_in_the_middle(lake: Lake, verb: str, mode: Mode, at: int) -> None:
    stored(lake, numbered(1, 2), numbered(3, 4), numbered(5, 6))
    lake.storage = Failing(at)
    where = lake.where("id in (1, 3, 5)")
    verbs: dict[str, Callable[[], Write]] = {
        "delete": lambda: delete(lake.view(), where, SETTINGS, mode),
        "update": lambda: update(lake.view(), {"n": 7}, where, SETTINGS, mode),
        "overwrite": lambda: overwrite(lake.view(), lake.arrow(numbered(1)), where, SETTINGS),
        "upsert": lambda: upsert(
            lake.view(), lake.arrow(numbered(1, 3, 5)), SETTINGS,
            "position" if mode == MERGE_ON_READ else "copy-on-write",
        ),
    }  # fmt: skip
    if verb == "delete" and at == 4:
        return  # three files of deletes, or three copies, need no fourth
    with pytest.raises(StorageError, match="full"):
        verbs[verb]()
    assert lake.staged() == set()


def test_an_interrupted_verb_leaves_nothing(lake: Lake) -> None:
    stored(lake, numbered(1, 2), numbered(3, 4))

    class Interrupted(Storage):
        def open_input(self, path: str) -> pa.NativeFile:
            if "data-" in path and lake.staged():
                raise KeyboardInterrupt
            return super().open_input(path)

    lake.storage = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        delete(lake.view(), lake.where("id in (1, 3)"), SETTINGS, COPY_ON_WRITE)
    assert lake.staged() == set()


def test_a_table_of_format_version_1_is_read_only(lake: Lake) -> None:
    view = lake.view()
    old = View(view.storage, view.runtime, TableMetadata({**view.metadata.raw, "format-version": 1}), "main", "t")
    with pytest.raises(Unsupported, match="version 1"):
        delete(old, lake.where("true"), SETTINGS, MERGE_ON_READ)


# Update


@pytest.mark.parametrize("mode", MODES)
def test_update_changes_what_matches(lake: Lake, mode: Mode) -> None:
    first, second = stored(lake, numbered(1, 2, 3), numbered(4, 5))
    write = update(
        lake.view(), {"s": "concat(s, '!')", "N": "n + id", "id": 50}, lake.where("id = 2 or id >= 4"), SETTINGS, mode
    )
    assert (write.kind, write.rows, write.predicate) == (Kind.UPDATE, RowCounts(updated=3), None)
    assert write.moved == {first.file_path: BitMap64([1]), second.file_path: BitMap64([0, 1])}
    removed = {file.file_path for file in write.removed}
    assert removed == ({second.file_path} if mode == MERGE_ON_READ else {first.file_path, second.file_path})
    assert write.positions == ({first.file_path: BitMap64([1])} if mode == MERGE_ON_READ else {})
    check_runs(write)
    lake.land(write)
    assert sorted(lake.rows(), key=str) == sorted(
        [*numbered(1, 3), *({"id": 50, "s": f"s{i}!", "n": i % 10 + i} for i in (2, 4, 5))], key=str
    )


@pytest.mark.parametrize("mode", MODES)
def test_an_update_sees_old_values_only(lake: Lake, mode: Mode) -> None:
    stored(lake, numbered(7))
    lake.land(update(lake.view(), {"id": "n", "n": "id + 1"}, lake.where("true"), SETTINGS, mode))
    assert lake.rows() == [{"id": 7, "s": "s7", "n": 8}]


@pytest.mark.parametrize("mode", MODES)
def test_rows_whose_values_stay_count_as_updated(lake: Lake, mode: Mode) -> None:
    stored(lake, numbered(1, 2))
    write = update(lake.view(), {"s": "s"}, lake.where("id = 1"), SETTINGS, mode)
    assert write.rows == RowCounts(updated=1)
    lake.land(write)
    assert ids(lake.rows()) == [1, 2]


@pytest.mark.parametrize("mode", MODES)
def test_an_update_that_matches_nothing_is_empty(lake: Lake, mode: Mode) -> None:
    stored(lake, numbered(1, 3))
    assert update(lake.view(), {"n": 1}, lake.where("id = 2"), SETTINGS, mode).is_empty
    assert lake.staged() == set()


@pytest.mark.parametrize("mode", MODES)
def test_an_updated_row_moves_to_its_new_partition(tmp_path: Path, mode: Mode) -> None:
    by_s = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"), spec_id=0)
    lake = Lake(tmp_path, [ROWS], specs=[by_s])
    lake.land(append(lake.view(), lake.arrow([{"id": i, "s": "a", "n": 0} for i in (1, 2)]), SETTINGS))
    lake.land(update(lake.view(), {"s": "case when id = 1 then 'b' end"}, lake.where("true"), SETTINGS, mode))
    assert {file.partition for file in lake.files()} == {("b",), (None,)}
    assert lake.rows("s = 'b'") == [{"id": 1, "s": "b", "n": 0}]


def test_python_values_and_lit_stand_for_themselves(lake: Lake) -> None:
    stored(lake, numbered(1))
    lake.land(update(lake.view(), {"s": lit("n + 1"), "n": 42}, lake.where("true"), SETTINGS, MERGE_ON_READ))
    assert lake.rows() == [{"id": 1, "s": "n + 1", "n": 42}]
    lake.land(update(lake.view(), {"s": None, "n": "NULL"}, lake.where("true"), SETTINGS, MERGE_ON_READ))
    assert lake.rows() == [{"id": 1, "s": None, "n": None}]


@pytest.mark.parametrize(
    ("assignments", "error", "said"),
    [
        ({}, InvalidInput, "no column"),
        ({"ids": "1"}, InvalidInput, "Did you mean id"),
        ({"n": "'7'"}, SchemaMismatch, "CAST"),
        ({"n": "id + 3000000000"}, SchemaMismatch, "does not fit"),
        ({"n": "1.5"}, SchemaMismatch, "does not fit"),
        ({"id": "NULL"}, SchemaMismatch, "required"),
        ({"id": None}, SchemaMismatch, "required"),
        ({"id": "nullif(id, 1)"}, SchemaMismatch, "null in some row"),
        ({"n": 3_000_000_000}, SchemaMismatch, "does not fit"),
        ({"n": lit("x")}, SchemaMismatch, "whole number"),
        ({"n": "n", "N": "1"}, InvalidInput, "twice"),
        ({"n": "m + 1"}, InvalidInput, "The expression names the column 'm'"),
        ({"n": "n +"}, InvalidInput, "The expression 'n +' is not valid SQL"),
        ({"n": "1 / 0"}, InvalidInput, "zero"),
        ({"n.x": "1"}, Unsupported, "its parts cannot be set"),
    ],
)
def test_a_wrong_assignment_is_refused_and_leaves_nothing(
    lake: Lake, assignments: dict[str, object], error: type[Exception], said: str
) -> None:
    stored(lake, numbered(1, 2))
    with pytest.raises(error, match=said.replace("+", r"\+")):
        update(lake.view(), assignments, lake.where("true"), SETTINGS, COPY_ON_WRITE)
    assert lake.staged() == set()


def test_fields_of_structs_are_set_and_the_others_stay(tmp_path: Path) -> None:
    inner = StructType(field(3, "x", IntegerType()), field(4, "y", StringType()))
    more = ListType(6, IntegerType(), element_required=False)
    lake = Lake(tmp_path, [Schema(field(1, "id", LongType()), field(2, "s", inner), field(5, "l", more), schema_id=0)])
    rows: list[Row] = [{"id": 1, "s": {"x": 1, "y": "a"}, "l": [1]}, {"id": 2, "s": None, "l": None}]
    lake.commit(lake.data(rows, statistics=False))
    where = lake.where("true")
    lake.land(update(lake.view(), {"s.x": "id * 10", "l": [7, None]}, where, SETTINGS, MERGE_ON_READ))
    assert lake.rows() == [
        {"id": 1, "s": {"x": 10, "y": "a"}, "l": [7, None]},
        {"id": 2, "s": {"x": 20, "y": None}, "l": [7, None]},
    ]
    lake.land(update(lake.view(), {"s": {"x": 0}}, where, SETTINGS, MERGE_ON_READ))
    assert [row["s"] for row in lake.rows()] == [{"x": 0, "y": None}] * 2
    with pytest.raises(InvalidInput, match="twice"):
        update(lake.view(), {"s": {"x": 0}, "s.y": "'b'"}, where, SETTINGS, MERGE_ON_READ)
    with pytest.raises(Unsupported, match="one by one"):
        update(lake.view(), {"s": "s"}, where, SETTINGS, MERGE_ON_READ)


# Overwrite


def test_overwrite_replaces_what_matches(lake: Lake) -> None:
    first, second, third = stored(lake, numbered(1, 2, 3), numbered(4, 5), numbered(8, 9))
    rows = [{"id": 2, "s": "new", "n": None}, {"id": 6, "s": "new", "n": None}]
    write = overwrite(lake.view(), lake.arrow(rows), lake.where("id between 2 and 6"), SETTINGS)
    assert (write.kind, write.rows) == (Kind.OVERWRITE, RowCounts(inserted=2, deleted=4))
    assert {file.file_path for file in write.removed} == {first.file_path, second.file_path}
    assert write.predicate == Predicate("id between 2 and 6", 0)
    assert (write.deletes, write.moved) == ((), {})
    check_runs(write)
    lake.land(write)
    assert ids(lake.rows()) == [1, 2, 6, 8, 9]
    assert third.file_path in {file.file_path for file in lake.files()}


def test_overwrite_with_nothing_deletes(lake: Lake) -> None:
    stored(lake, numbered(1, 2))
    lake.land(overwrite(lake.view(), lake.arrow([]), lake.where("id = 1"), SETTINGS))
    assert ids(lake.rows()) == [2]


def test_overwriting_nothing_appends(lake: Lake) -> None:
    write = overwrite(lake.view(), lake.arrow(numbered(1)), lake.where("true"), SETTINGS)
    assert (write.removed, write.rows) == ((), RowCounts(inserted=1))


def test_a_row_outside_the_condition_is_shown_and_nothing_is_left(lake: Lake) -> None:
    stored(lake, numbered(1, 2))
    reader = pa.Table.from_batches(
        [*lake.arrow(numbered(1, 2)).to_batches(), *lake.arrow(numbered(3, 44, 55)).to_batches()]
    ).to_reader(2)
    with pytest.raises(InvalidInput, match=r"where='id < 10'.*'id': 44.*"):
        overwrite(lake.view(), reader, lake.where("id < 10"), SETTINGS)
    assert lake.staged() == set()


def test_a_row_the_condition_is_null_for_is_outside(lake: Lake) -> None:
    with pytest.raises(InvalidInput, match="does not match"):
        overwrite(lake.view(), [{"id": 1, "s": None}], lake.where("s <> 'x'"), SETTINGS)


# Partitions


TIMES = Schema(
    field(1, "id", LongType(), True), field(2, "s", StringType()), field(3, "at", TimestamptzType()),
    field(4, "d", DateType()), field(5, "x", DoubleType()), schema_id=0,
)  # fmt: skip


def spec(spec_id: int, *fields: tuple[int, Transform[Any, Any]]) -> PartitionSpec:
    made = (PartitionField(source, 1000 + 10 * spec_id + i, how, f"p{i}") for i, (source, how) in enumerate(fields))
    return PartitionSpec(*made, spec_id=spec_id)


def timed(i: int) -> Row:
    at = dt.datetime(2026, 11, 1, tzinfo=dt.UTC) + dt.timedelta(hours=7 * i)
    texts = [None, "ab", "abc", "abcd", "abd", "a'\\b", "é"]
    numbers = [None, math.nan, 0.0, 1.5]
    return {"id": i, "s": texts[i % 7], "at": at if i % 5 else None, "d": at.date(), "x": numbers[i % 4]}


SPECS: dict[str, list[tuple[int, Transform[Any, Any]]]] = {
    "identity": [(2, IdentityTransform())],
    "truncate": [(2, TruncateTransform(3))],
    "truncate ids": [(1, TruncateTransform(10))],
    "bucket": [(1, BucketTransform(4))],
    "bucket of text": [(2, BucketTransform(3))],
    "day": [(3, DayTransform())],
    "date": [(4, IdentityTransform())],
    "double": [(5, IdentityTransform())],
    "two": [(3, DayTransform()), (1, BucketTransform(2))],
}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("before", ["same", "unpartitioned", "other"])
def test_replace_partitions_empties_exactly_those_partitions(tmp_path: Path, name: str, before: str) -> None:
    """Rule P27: files of every live spec are looked at."""
    current = spec(2, *SPECS[name])
    earlier = {"same": current, "unpartitioned": spec(1), "other": spec(1, (1, BucketTransform(3)))}[before]
    specs = [current] if before == "same" else [earlier, current]
    lake = Lake(tmp_path, [TIMES], specs=[earlier])
    old = [timed(i) for i in range(60)]
    lake.land(append(lake.view(), lake.arrow(old), SETTINGS))
    lake.specs = specs
    more = [timed(i) for i in range(60, 80)]
    lake.land(append(lake.view(), lake.arrow(more), SETTINGS))
    incoming = [{**timed(i), "id": i} for i in (0, 1, 9, 23)]
    write = replace_partitions(lake.view(), lake.arrow(incoming), SETTINGS)
    single = Lake(tmp_path / "judge", [TIMES], specs=[current])
    replaced = {repr(file.partition) for file in append(single.view(), lake.arrow(incoming), SETTINGS).added}
    kept = []
    for row in [*old, *more]:
        (file,) = append(single.view(), lake.arrow([row]), SETTINGS).added
        if repr(file.partition) not in replaced:
            kept.append(row)
    assert write.kind == Kind.REPLACE_PARTITIONS
    assert write.rows == RowCounts(inserted=4, deleted=80 - len(kept))
    check_runs(write)
    (read,) = write.reads
    judged = read.where.mask(lake.arrow([*old, *more])).to_pylist()
    assert [row["id"] for row, gone in zip([*old, *more], judged, strict=True) if not gone] == [r["id"] for r in kept]
    assert (write.predicate is None) == ("bucket" in name or name == "two")
    if before == "same":
        assert not write.copies
    lake.land(write)
    assert sorted(ids(lake.rows())) == sorted([*ids(kept), *ids(incoming)])


def test_replacing_partitions_of_the_current_spec_opens_no_file(tmp_path: Path) -> None:
    lake = Lake(tmp_path, [TIMES], specs=[spec(0, (2, TruncateTransform(3)))])
    lake.land(append(lake.view(), lake.arrow([timed(i) for i in range(20)]), SETTINGS))
    for file in lake.files():
        Path(file.file_path).unlink()
    write = replace_partitions(lake.view(), lake.arrow([timed(3)]), SETTINGS)
    assert [file.partition for file in write.removed] == [("abc",)]


def test_replace_partitions_refuses_a_table_without(lake: Lake) -> None:
    with pytest.raises(InvalidInput, match="not partitioned"):
        replace_partitions(lake.view(), lake.arrow(numbered(1)), SETTINGS)


def test_replacing_no_partition_is_empty(tmp_path: Path) -> None:
    lake = Lake(tmp_path, [TIMES], specs=[spec(0, (2, IdentityTransform()))])
    assert replace_partitions(lake.view(), lake.arrow([]), SETTINGS).is_empty


# Upsert


def test_an_upsert_by_equality_reads_nothing(lake: Lake) -> None:
    (file,) = stored(lake, numbered(1, 2))
    write = upsert(lake.view(), lake.arrow([{"id": 2, "s": "new", "n": 0}, *numbered(3)]), SETTINGS, "equality")
    assert (write.kind, write.rows, write.keys) == (Kind.UPSERT, RowCounts(inserted=2), (1,))
    assert (write.reads, write.moved, write.key_spec_id) == ((), {}, None)
    assert [(each.content, each.equality_ids) for each in write.deletes] == [(Content.EQUALITY_DELETES, (1,))]
    lake.land(write)
    assert sorted(lake.rows(), key=str) == [*numbered(1), {"id": 2, "s": "new", "n": 0}, *numbered(3)]
    assert file.file_path in {each.file_path for each in lake.files()}


@pytest.mark.parametrize("mode", ["position", "copy-on-write"])
def test_an_upsert_that_looks_finds_the_rows_with_its_keys(lake: Lake, mode: UpsertMode) -> None:
    first, second, third = stored(lake, numbered(1, 2, 3), numbered(4), numbered(100, 200))
    rows = [{"id": i, "s": "new", "n": 0} for i in (2, 4, 9)]
    write = upsert(lake.view(), lake.arrow(rows), SETTINGS, mode)
    assert (write.rows, write.keys) == (RowCounts(inserted=1, updated=2), (1,))
    assert write.moved == {first.file_path: BitMap64([1]), second.file_path: BitMap64([0])}
    (read,) = write.reads
    assert read.keys is not None
    assert read.keys.holds([pa.array([2, 3, 9])]).to_pylist() == [True, False, True]
    assert read.where.mask(lake.arrow(numbered(1, 2, 4, 9, 10))).to_pylist() == [False, True, True, True, False]
    assert not write.has_equality_deletes
    check_runs(write)
    lake.land(write)
    assert sorted(lake.rows(), key=str) == sorted([*numbered(1, 3, 100, 200), *rows], key=str)
    assert third.file_path in {each.file_path for each in lake.files()}


@pytest.mark.parametrize("mode", ["position", "copy-on-write"])
def test_many_keys_become_a_range(lake: Lake, mode: UpsertMode) -> None:
    stored(lake, numbered(*range(0, 4000, 2)), numbered(*range(9000, 9010)))
    rows = numbered(*range(1000, 3000))
    write = upsert(lake.view(), lake.arrow(rows), SETTINGS, mode)
    assert write.rows == RowCounts(inserted=1000, updated=1000)
    assert write.reads[0].where.text == "(`id` >= 1000) AND (`id` <= 2999)"
    lake.land(write)
    assert ids(lake.rows()) == sorted({*range(0, 4000, 2), *range(1000, 3000), *range(9000, 9010)})


@pytest.mark.parametrize("mode", ["position", "copy-on-write"])
def test_a_key_that_is_there_twice_is_left_once(lake: Lake, mode: UpsertMode) -> None:
    stored(lake, numbered(1, 2), numbered(1))
    write = upsert(lake.view(), lake.arrow(numbered(1)), SETTINGS, mode)
    assert write.rows == RowCounts(updated=1, deleted=1)
    lake.land(write)
    assert ids(lake.rows()) == [1, 2]


@pytest.mark.parametrize("mode", ["equality", "position", "copy-on-write"])
def test_upserting_again_and_again(lake: Lake, mode: UpsertMode) -> None:
    model: dict[int, Row] = {}
    for turn in range(5):
        rows: list[Row] = [{"id": i, "s": f"{turn}", "n": turn} for i in range(turn, turn + 4)]
        lake.land(upsert(lake.view(), lake.arrow(rows), SETTINGS, mode))
        model.update((row["id"], row) for row in rows)
    assert sorted(lake.rows(), key=str) == sorted(model.values(), key=str)


@pytest.mark.parametrize("mode", ["equality", "position", "copy-on-write"])
def test_two_rows_of_one_key_are_refused(lake: Lake, mode: UpsertMode) -> None:
    stored(lake, numbered(1))
    with pytest.raises(InvalidInput, match="2 of the rows have the same key id=7"):
        upsert(lake.view(), lake.arrow(numbered(1, 7, 8, 7)), SETTINGS, mode)
    assert lake.staged() == set()


def test_upsert_wants_keys_and_no_nulls_in_them(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match="required"):
        upsert(lake.view(), [{"id": None, "s": "x"}], SETTINGS, "equality")
    keyless = Lake(tmp_path, [Schema(field(1, "id", LongType()), schema_id=0)])
    with pytest.raises(InvalidInput, match="no key columns"):
        upsert(keyless.view(), [{"id": 1}], SETTINGS, "equality")
    assert upsert(lake.view(), [], SETTINGS, "equality").is_empty


TWO_KEYS = Schema(
    field(1, "id", LongType(), True), field(2, "s", StringType(), True), field(3, "n", IntegerType()), schema_id=0,
    identifier_field_ids=[1, 2],
)  # fmt: skip


@pytest.mark.parametrize("mode", ["equality", "position", "copy-on-write"])
def test_keys_of_several_columns(tmp_path: Path, mode: UpsertMode) -> None:
    lake = Lake(tmp_path, [TWO_KEYS])
    stored(lake, [{"id": i, "s": s, "n": 0} for i in (1, 2) for s in "ab"])
    lake.land(upsert(lake.view(), [{"id": 1, "s": "b", "n": 9}, {"id": 2, "s": "c", "n": 9}], SETTINGS, mode))
    found = {(row["id"], row["s"]): row["n"] for row in lake.rows()}
    assert found == {(1, "a"): 0, (1, "b"): 9, (2, "a"): 0, (2, "b"): 0, (2, "c"): 9}
    with pytest.raises(InvalidInput, match="id=1, s=b"):
        upsert(lake.view(), [{"id": 1, "s": "b"}, {"id": 1, "s": "a"}, {"id": 1, "s": "b"}], SETTINGS, mode)


def test_where_deletes_by_key_are_written(tmp_path: Path) -> None:
    """Rule P21."""

    def chosen(specs: list[PartitionSpec], schema: Schema = TWO_KEYS) -> int | None:
        return key_spec(Lake(tmp_path, [schema], specs=specs).metadata())

    by_key, by_value = spec(3, (2, IdentityTransform())), spec(4, (3, IdentityTransform()))
    assert chosen([spec(0)]) == 0
    assert chosen([by_value]) is None
    assert chosen([by_value, spec(7)]) == 7
    assert chosen([by_key]) == 3
    assert chosen([by_key, spec(5, (1, BucketTransform(4)))]) is None
    assert chosen([spec(6, (2, IdentityTransform()), (3, IdentityTransform()))]) is None


def test_deletes_by_key_under_the_only_spec(tmp_path: Path) -> None:
    lake = Lake(tmp_path, [TWO_KEYS], specs=[spec(3, (2, IdentityTransform()))])
    rows = [{"id": i, "s": s, "n": 0} for i in (1, 2) for s in "ab"]
    lake.land(upsert(lake.view(), rows, SETTINGS, "equality"))
    write = upsert(lake.view(), [{"id": 1, "s": "b", "n": 9}], SETTINGS, "equality")
    assert write.key_spec_id == 3
    assert [each.partition for each in write.deletes] == [("b",)]
    lake.land(write)
    assert sorted(row["n"] for row in lake.rows()) == [0, 0, 0, 9]


def test_deletes_by_key_need_a_spec_that_reaches_everything(tmp_path: Path) -> None:
    lake = Lake(tmp_path, [TWO_KEYS], specs=[spec(4, (3, IdentityTransform()))])
    with pytest.raises(Unsupported, match="no spec"):
        upsert(lake.view(), [{"id": 1, "s": "b", "n": 9}], SETTINGS, "equality")
    assert lake.staged() == set()
    lake.specs = [spec(9), *lake.specs]
    lake.land(upsert(lake.view(), [{"id": 1, "s": "b", "n": 9}], SETTINGS, "equality"))
    lake.land(upsert(lake.view(), [{"id": 1, "s": "b", "n": 5}], SETTINGS, "equality"))
    assert lake.rows() == [{"id": 1, "s": "b", "n": 5}]


# Row delta


def test_a_row_delta_does_what_it_is_told(lake: Lake) -> None:
    one, _ = stored(lake, numbered(1, 2, 3), numbered(4, 5))
    lake.commit(lake.position_deletes([(one.file_path, 0)]))
    write = row_delta(
        lake.view(), SETTINGS, rows=numbered(9), positions={one.file_path: [0, 1]}, keys=[{"id": 5}, {"id": 77}]
    )
    assert (write.kind, write.rows, write.keys) == (Kind.ROW_DELTA, RowCounts(inserted=1, deleted=1), (1,))
    assert write.positions == {one.file_path: BitMap64([1])}
    lake.land(write)
    assert ids(lake.rows()) == [3, 4, 9]


def test_a_row_delta_refuses_what_is_not_there(lake: Lake) -> None:
    (one,) = stored(lake, numbered(1, 2))
    for positions, said in (({"nope": [0]}, "no data file"), ({one.file_path: [2]}, "has no row 2")):
        with pytest.raises(InvalidInput, match=said):
            row_delta(lake.view(), SETTINGS, rows=numbered(9), positions=positions)
    with pytest.raises(InvalidInput, match="not row numbers"):
        row_delta(lake.view(), SETTINGS, positions={one.file_path: [-1]})
    assert lake.staged() == set()


# Compaction


def compact(view: View, settings: Settings, where: Filter | None = None) -> Write:
    metadata = view.metadata
    options = rewrite_options(settings.options, metadata.properties, metadata.specs(), is_ordered=False)
    compaction = Compaction(ARROW.rewrite, options, where)
    return compaction.write(view, settings, compaction.plan(view).groups, drops_unneeded=True)


def test_compact_puts_small_files_together(lake: Lake) -> None:
    files = stored(lake, numbered(1, 2), numbered(3), numbered(4, 5))
    write = compact(lake.view(), SETTINGS)
    assert (write.kind, write.rows, write.reads, write.predicate) == (Kind.REWRITE, RowCounts(), (), None)
    assert {file.file_path for file in write.removed} == {file.file_path for file in files}
    assert len(write.added) == 1
    check_runs(write)
    lake.land(write)
    assert [row["id"] for row in lake.rows()] == [1, 2, 3, 4, 5]
    assert compact(lake.view(), SETTINGS).is_empty


def test_compact_leaves_deleted_rows_out(lake: Lake) -> None:
    one, two = stored(lake, numbered(1, 2, 3), numbered(4, 5))
    named, shared = (
        lake.position_deletes([(one.file_path, 1)], named=True),
        lake.position_deletes([(two.file_path, 0), ("x", 1)]),
    )
    lake.commit(named, shared)
    by_key = lake.equality_deletes(numbered(3), Schema(ROWS.fields[0]))
    lake.commit(by_key, lake.data(numbered(3)))
    write = compact(lake.view(), SETTINGS)
    assert {each.file_path for each in write.removed_deletes} == {each.file_path for each in (named, shared, by_key)}
    assert write.unneeded == {shared.file_path: 2, by_key.file_path: 3}
    check_runs(write)
    lake.land(write)
    assert ids(lake.rows()) == [1, 3, 5]
    assert compact(lake.view(), SETTINGS).is_empty


def test_compact_takes_one_file_alone_only_for_its_deletes(lake: Lake) -> None:
    (one,) = stored(lake, numbered(1, 2, 3))
    assert compact(lake.view(), SETTINGS).is_empty
    lake.commit(lake.position_deletes([(one.file_path, 1)], named=True))
    write = compact(lake.view(), SETTINGS)
    assert [each.file_path for each in write.removed] == [one.file_path]
    check_runs(write)


def test_compact_removes_a_file_whose_rows_are_all_deleted(lake: Lake) -> None:
    (one,) = stored(lake, numbered(1))
    lake.commit(lake.position_deletes([(one.file_path, 0)], named=True))
    write = compact(lake.view(), SETTINGS)
    assert (len(write.removed), write.added, write.copies) == (1, (), {})


def test_compact_keeps_partitions_and_specs_apart(tmp_path: Path) -> None:
    lake = Lake(tmp_path, [ROWS], specs=[spec(0), spec(1, (2, IdentityTransform()))])
    rows = [{"id": i, "s": [None, "a", "b"][i % 3], "n": 0} for i in range(12)]
    for row in rows[:6]:
        lake.land(append(lake.view(), [row], SETTINGS))
    lake.specs.reverse()
    for row in rows[6:]:
        lake.land(append(lake.view(), [row], SETTINGS))
    write = compact(lake.view(), SETTINGS)
    assert Counter((file.spec_id, file.partition) for file in write.added) == {
        (1, (None,)): 1, (1, ("a",)): 1, (1, ("b",)): 1, (0, ()): 1
    }  # fmt: skip
    check_runs(write)
    lake.land(write)
    assert sorted(lake.rows(), key=str) == sorted(rows, key=str)


def test_compact_takes_its_options(lake: Lake) -> None:
    files = stored(lake, *(numbered(*range(i, i + 50)) for i in range(0, 250, 50)))
    size = files[0].file_size_in_bytes
    view = lake.view()
    assert compact(view, Settings(options={"min-input-files": "6"})).is_empty
    assert compact(view, Settings(options={"target-file-size-bytes": str(size)})).is_empty
    two = compact(view, Settings(options={"target-file-size-bytes": str(int(size * 2.5))}))
    assert len(two.copies) >= 2
    assert len(two.removed) == 4
    check_runs(two)
    assert len(compact(view, SETTINGS, lake.where("id < 100")).removed) == 2
    for options in ({"min-input-files": "0"}, {"target-file-size-bytes": "x"}, {"nope": "1"}):
        with pytest.raises(InvalidInput):
            compact(view, Settings(options=options))


# Many rows


def test_a_million_rows_pass_through_in_pieces(tmp_path: Path) -> None:
    lake = Lake(tmp_path, [ROWS], properties={"write.target-file-size-bytes": "4000000"})
    count, step = 1_000_000, 50_000

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, count, step):
            numbers = pa.array(range(start, start + step), pa.int64())
            texts = pa.array([None] * step, pa.large_string())
            yield pa.RecordBatch.from_arrays([numbers, texts, numbers.cast(pa.int32())], names=["id", "s", "n"])

    lake.land(append(lake.view(), batches(), SETTINGS))
    before = pa.total_allocated_bytes()
    lake.land(delete(lake.view(), lake.where("id % 1000 = 7"), SETTINGS, COPY_ON_WRITE))
    lake.land(update(lake.view(), {"n": "-1"}, lake.where("id % 2000 = 9"), SETTINGS, MERGE_ON_READ))
    lake.land(upsert(lake.view(), batches(), SETTINGS, "position"))
    # Row groups of some megabytes come and go; all of it at once would be many times as much.
    assert (pa.default_memory_pool().max_memory() or 0) - before < 400_000_000
    assert lake.scan().count() == count


# Everything at once, against a model


CONDITIONS: list[tuple[str, Callable[[Row], bool]]] = [
    ("n = 2", lambda row: row["n"] == 2),
    ("s = 'a' and n > 1", lambda row: row["s"] == "a" and row["n"] > 1),
    ("s is null", lambda row: row["s"] is None),
    ("id % 3 = 0", lambda row: row["id"] % 3 == 0),
    ("s <> 'b'", lambda row: row["s"] not in (None, "b")),
    ("true", lambda _: True),
]


class Twin:
    """A table and the rows it should have; each method does one random thing to both."""

    def __init__(self, lake: Lake, seed: int) -> None:
        self.lake = lake
        self.rows: dict[int, Row] = {}
        self.chance = random.Random(seed)
        self._unused = iter(range(1_000_000))

    def some(self, count: int) -> list[Row]:
        choice = self.chance.choice
        return [{"id": next(self._unused), "s": choice([None, "a", "b"]), "n": choice(range(5))} for _ in range(count)]

    def condition(self) -> tuple[Filter, Callable[[Row], bool], list[int]]:
        ((text, test),) = self.chance.choices(CONDITIONS, [5, 5, 5, 5, 5, 1])
        return self.lake.where(text), test, [key for key, row in self.rows.items() if test(row)]

    def put(self, rows: list[Row]) -> None:
        self.rows.update((row["id"], row) for row in rows)

    def drop(self, keys: list[int]) -> None:
        for key in keys:
            del self.rows[key]

    def append(self) -> Write:
        rows = self.some(self.chance.randrange(1, 30))
        self.put(rows)
        return append(self.lake.view(), self.lake.arrow(rows), SETTINGS)

    def delete(self) -> Write:
        where, _, matching = self.condition()
        write = delete(self.lake.view(), where, SETTINGS, self.chance.choice(MODES))
        assert write.rows == RowCounts(deleted=len(matching))
        self.drop(matching)
        return write

    def update(self) -> Write:
        where, _, matching = self.condition()
        new = {"n": "(n + 1) % 5", "s": lit("b")}
        write = update(self.lake.view(), new, where, SETTINGS, self.chance.choice(MODES))
        assert write.rows == RowCounts(updated=len(matching))
        for key in matching:
            self.rows[key] = {**self.rows[key], "n": (self.rows[key]["n"] + 1) % 5, "s": "b"}
        return write

    def overwrite(self) -> Write:
        where, test, matching = self.condition()
        rows = [row for row in self.some(10) if test(row)]
        write = overwrite(self.lake.view(), self.lake.arrow(rows), where, SETTINGS)
        assert write.rows == RowCounts(inserted=len(rows), deleted=len(matching))
        self.drop(matching)
        self.put(rows)
        return write

    def upsert(self) -> Write:
        known = self.chance.sample(sorted(self.rows), min(5, len(self.rows)))
        rows = [*self.some(3), *({"id": key, "s": "u", "n": self.chance.randrange(5)} for key in known)]
        modes: tuple[UpsertMode, ...] = ("equality", "position", "copy-on-write")
        mode = self.chance.choice(modes)
        write = upsert(self.lake.view(), self.lake.arrow(rows), SETTINGS, mode)
        if mode != "equality":
            assert write.rows == RowCounts(inserted=3, updated=len(known))
        self.put(rows)
        return write

    def compact(self) -> Write:
        return compact(self.lake.view(), SETTINGS)


@pytest.mark.parametrize("seed", range(6))
def test_random_writes_equal_a_model(tmp_path: Path, seed: int) -> None:
    specs = [spec(0), spec(1, (2, IdentityTransform())), spec(2, (1, BucketTransform(3)))]
    lake = Lake(tmp_path, [ROWS], specs=[specs[0]])
    twin = Twin(lake, seed)
    verbs = (twin.append, twin.delete, twin.update, twin.overwrite, twin.upsert, twin.compact)
    for _ in range(20):
        if twin.chance.random() < 0.2 and len(lake.specs) < len(specs):
            lake.specs.append(specs[len(lake.specs)])
        write = twin.chance.choice(verbs)()
        check_runs(write)
        if not write.is_empty:
            lake.land(write)
        assert sorted(lake.rows(), key=str) == sorted(twin.rows.values(), key=str)

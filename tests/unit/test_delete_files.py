"""Delete files, copies and lineage files, read back as any reader would."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, StructType
from pyroaring import BitMap64

from frazil.errors import CorruptMetadata, StorageError
from frazil.expr import parse_filter
from frazil.format.storage import Storage
from frazil.model import PATH_FIELD, POSITION_FIELD, Content, DataFile, Lineage, Run
from frazil.read.arrow import ReadContext
from frazil.read.deletes import Deletes, Keys
from frazil.read.plan import FileTask
from frazil.read.positions import key_positions, matching_positions, rows_with_matches, rows_with_positions
from frazil.runtime import SYSTEM
from frazil.stage import deletes as staged_deletes
from frazil.stage.arrow import stage_copies
from frazil.stage.deletes import key_schema, stage_keys, stage_positions
from frazil.stage.lineage import read_lineage, write_lineage
from unit.written import Row, Written


def field(field_id: int, name: str, kind: Any, required: bool = False) -> NestedField:
    return NestedField(field_id, name, kind, required=required)


ROWS = Schema(field(1, "id", LongType(), True), field(2, "name", StringType()), schema_id=0, identifier_field_ids=[1])
BY_NAME = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"), spec_id=1)


@pytest.fixture
def table(tmp_path: Path) -> Written:
    return Written(tmp_path / "t", [ROWS])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()


def numbered(*ids: int) -> list[Row]:
    return [{"id": each, "name": f"n{each}"} for each in ids]


def ids(rows: list[Row]) -> list[int]:
    return sorted(row["id"] for row in rows)


def positions(table: Written, by_file: dict[str, BitMap64], *files: DataFile) -> tuple[DataFile, ...]:
    return stage_positions(
        by_file, {file.file_path: file for file in files}, metadata=table.metadata(), storage=table.storage
    )


def ids_in_file(path: str) -> dict[str, int]:
    schema: Any = pq.read_schema(path)
    return {each.name: int(each.metadata[b"PARQUET:field_id"]) for each in schema}


def left_behind(table: Written) -> list[str]:
    data = Path(table.metadata().location) / "data"
    return [str(path) for path in data.rglob("*") if path.is_file()] if data.exists() else []


def task_of(table: Written, where: str | None = None) -> FileTask:
    (task,) = table.scan(where).tasks()
    return task


def reading(table: Written, schema: Schema | None = None, batch_rows: int = 3) -> ReadContext:
    return ReadContext.of(table.storage, table.metadata(), schema or table.schema, batch_rows)


# Position deletes


def test_position_deletes_take_their_rows_out(table: Written) -> None:
    one, two = table.data(numbered(1, 2, 3)), table.data(numbered(4, 5, 6))
    table.commit(one, two)
    made = positions(table, {one.file_path: BitMap64([0, 2]), two.file_path: BitMap64([1])}, one, two)
    table.commit(*made)
    assert ids(table.rows()) == [2, 4, 6]


def test_a_position_delete_file_is_as_the_specification_says(table: Written) -> None:
    # Longer than the 16 characters that bounds of other columns are cut to.
    data = table.data(numbered(*range(10)))
    (made,) = positions(table, {data.file_path: BitMap64([7, 3])}, data)
    assert (made.content, made.record_count) == (Content.POSITION_DELETES, 2)
    assert made.referenced_data_file == data.file_path
    assert made.lower_bounds[PATH_FIELD] == made.upper_bounds[PATH_FIELD] == data.file_path.encode()
    assert [struct.unpack("<q", bound[POSITION_FIELD])[0] for bound in (made.lower_bounds, made.upper_bounds)] == [3, 7]
    assert made.file_size_in_bytes == Path(made.file_path).stat().st_size
    assert made.sort_order_id is None
    held = pq.ParquetFile(made.file_path)
    assert held.read().to_pylist() == [
        {"file_path": data.file_path, "pos": 3},
        {"file_path": data.file_path, "pos": 7},
    ]
    assert ids_in_file(made.file_path) == {"file_path": 2147483546, "pos": 2147483545}
    assert [held.schema.column(i).max_definition_level for i in range(2)] == [0, 0]  # both required
    assert held.metadata.row_group(0).column(0).compression == "ZSTD"


def test_a_position_delete_is_written_under_the_partition_of_its_file(tmp_path: Path) -> None:
    """Rule P15: also under an older spec than the table's default."""
    table = Written(tmp_path / "t", [ROWS], specs=[BY_NAME, PartitionSpec(spec_id=2)])
    data = table.data(numbered(1, 2), spec_id=1, partition=("n1",))
    nulls = table.data([{"id": 3, "name": None}], spec_id=1, partition=(None,))
    table.commit(data, nulls)
    made = positions(table, {data.file_path: BitMap64([0]), nulls.file_path: BitMap64([0])}, data, nulls)
    assert [(each.spec_id, each.partition) for each in made] == [(1, ("n1",)), (1, (None,))]
    assert "/data/name=n1/" in made[0].file_path
    table.commit(*made)
    assert ids(table.rows()) == [2]


def test_many_positions_are_written_in_several_row_groups(table: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_deletes, "_GROUP_ROWS", 100)
    data = table.data(numbered(*range(1000)))
    rows = BitMap64(range(0, 1000, 3))
    (made,) = positions(table, {data.file_path: rows}, data)
    assert pq.ParquetFile(made.file_path).metadata.num_row_groups == 4
    assert len(made.split_offsets) == 4
    assert Deletes(table.storage, table.metadata()).rows_by_file(made) == {data.file_path: rows}


def test_positions_beyond_32_bits_survive(table: Written) -> None:
    data = table.data(numbered(1))
    (made,) = positions(table, {data.file_path: BitMap64([2**40])}, data)
    assert pq.read_table(made.file_path)["pos"].to_pylist() == [2**40]


def test_a_file_without_rows_to_take_out_gets_no_delete_file(table: Written) -> None:
    data = table.data(numbered(1))
    assert positions(table, {data.file_path: BitMap64()}, data) == ()
    assert left_behind(table) == []


class Failing(Storage):
    """Fails at the n-th file opened for writing, as a full disk does."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._left = at

    def open_output(self, path: str) -> pa.NativeFile:
        self._left -= 1
        if self._left == 0:
            raise StorageError("The disk is full")
        return super().open_output(path)


def test_nothing_is_left_when_writing_position_deletes_fails(table: Written) -> None:
    files = [table.data(numbered(i)) for i in range(3)]
    table.storage = Failing(at=3)
    with pytest.raises(StorageError, match="full"):
        positions(table, {file.file_path: BitMap64([0]) for file in files}, *files)
    assert left_behind(table) == []


# Equality deletes


def keys(table: Written, rows: list[Row], spec_id: int = 0, field_ids: tuple[int, ...] = (1,)) -> tuple[DataFile, ...]:
    arrow = pa.Table.from_pylist(rows, schema_to_pyarrow(table.schema, include_field_ids=False))
    return stage_keys(arrow, field_ids, spec_id, metadata=table.metadata(), storage=table.storage)


def test_equality_deletes_take_out_older_rows_with_their_keys(table: Written) -> None:
    table.commit(table.data(numbered(1, 2, 3)))
    (made,) = keys(table, numbered(2, 9))
    assert (made.content, made.equality_ids, made.record_count) == (Content.EQUALITY_DELETES, (1,), 2)
    table.commit(made, table.data(numbered(2)))
    assert ids(table.rows()) == [1, 2, 3]
    assert table.scan("id = 2").count() == 1


def test_an_equality_delete_file_holds_its_key_alone_with_bounds(table: Written) -> None:
    table.properties["write.metadata.metrics.default"] = "none"
    (made,) = keys(table, numbered(7, 3))
    assert ids_in_file(made.file_path) == {"id": 1}
    bounds: list[Any] = [from_bytes(LongType(), bound[1]) for bound in (made.lower_bounds, made.upper_bounds)]
    assert bounds == [3, 7]
    assert (made.value_counts, made.null_value_counts) == ({1: 2}, {1: 0})


def test_keys_are_split_by_partition_under_a_partitioned_spec(tmp_path: Path) -> None:
    schema = Schema(*ROWS.fields[:1], field(2, "name", StringType(), True), schema_id=0, identifier_field_ids=[1, 2])
    table = Written(tmp_path / "t", [schema], specs=[BY_NAME])
    table.commit(*(table.data([row], spec_id=1, partition=(row["name"],)) for row in numbered(1, 2, 3)))
    made = keys(table, numbered(1, 2), spec_id=1, field_ids=(2, 1))
    assert sorted(each.partition for each in made) == [("n1",), ("n2",)]
    assert {each.equality_ids for each in made} == {(1, 2)}
    table.commit(*made)
    assert ids(table.rows()) == [3]


def test_a_key_inside_a_struct_brings_only_itself(tmp_path: Path) -> None:
    inner = StructType(field(3, "a", IntegerType(), True), field(4, "b", StringType()))
    schema = Schema(field(1, "x", LongType()), field(2, "s", inner, True), schema_id=0)
    table = Written(tmp_path / "t", [schema])
    rows = [{"x": i, "s": {"a": i, "b": "t"}} for i in range(3)]
    table.commit(table.data(rows, statistics=False))
    assert [each.name for each in key_schema(schema, [3]).fields] == ["s"]
    (made,) = keys(table, rows[1:2], field_ids=(3,))
    assert pq.read_table(made.file_path).to_pylist() == [{"s": {"a": 1}}]
    table.commit(made)
    assert [row["x"] for row in table.rows()] == [0, 2]


def test_no_keys_make_no_file(table: Written) -> None:
    assert keys(table, []) == ()


# Rows with their numbers


def test_rows_come_with_their_numbers(table: Written) -> None:
    data = table.data(numbered(*range(10)), row_group=4)
    table.commit(data)
    table.commit(table.position_deletes([(data.file_path, 1), (data.file_path, 8)]))
    found = list(rows_with_positions(task_of(table, "id % 2 = 1 or id >= 8"), reading(table)))
    rows = [row for batch, _ in found for row in batch.to_pylist()]
    numbers = [number for _, each in found for number in each.to_pylist()]
    assert [row["id"] for row in rows] == numbers == [3, 5, 7, 9]


def test_row_groups_without_a_match_do_not_shift_the_numbers(table: Written) -> None:
    table.commit(table.data(numbered(*range(20)), row_group=5))
    found = list(rows_with_positions(task_of(table, "id in (6, 19)"), reading(table)))
    assert [each.to_pylist() for _, each in found] == [[6], [19]]
    assert matching_positions(task_of(table, "id in (6, 19)"), reading(table, Schema())) == BitMap64([6, 19])


def test_every_live_row_comes_with_whether_it_matches(table: Written) -> None:
    data = table.data(numbered(*range(8)), row_group=4)
    table.commit(data)
    table.commit(table.equality_deletes(numbered(2), key_schema(ROWS, [1])))
    found = list(rows_with_matches(task_of(table, "id > 5"), reading(table)))
    assert [number for _, each, _ in found for number in each.to_pylist()] == [0, 1, 3, 4, 5, 6, 7]
    assert [mask for _, _, each in found for mask in each.to_pylist()] == [False] * 5 + [True] * 2


def test_a_file_that_matches_whole_is_not_opened_for_its_numbers(table: Written) -> None:
    data = table.data(numbered(*range(5)))
    table.commit(data)
    table.commit(table.position_deletes([(data.file_path, 2)]))
    task = task_of(table)
    Path(data.file_path).unlink()
    assert matching_positions(task, reading(table)) == BitMap64([0, 1, 3, 4])


def test_equality_deletes_count_even_where_the_file_matches_whole(table: Written) -> None:
    table.commit(table.data(numbered(*range(5))))
    table.commit(table.equality_deletes(numbered(2), key_schema(ROWS, [1])))
    assert matching_positions(task_of(table), reading(table)) == BitMap64([0, 1, 3, 4])


def test_rows_are_found_by_key(table: Written) -> None:
    table.commit(table.data(numbered(*range(10))))
    wanted = Keys.of((1,), [pa.array([3, 8, 99], pa.int64())])
    assert key_positions(task_of(table, "id < 8"), reading(table, Schema()), wanted) == BitMap64([3])
    assert key_positions(task_of(table), reading(table), wanted) == BitMap64([3, 8])


KEY_VALUES: dict[str, tuple[Any, list[Any]]] = {
    "bigint": (pa.int64(), [5, None, -3, 2**62, 0, 7]),
    "double": (pa.float64(), [0.5, None, float("nan"), -0.0, 0.0, float("inf")]),
    "string": (pa.string(), ["b", None, "", "a", "é", "bb"]),
    "timestamp": (pa.timestamp("us"), [3, None, -1, 0, 10**12, 4]),
    "decimal": (
        pa.decimal128(9, 2),
        [Decimal("1.50"), None, Decimal("-2.25"), Decimal(0), Decimal("7.00"), Decimal(1)],
    ),
}


@pytest.mark.parametrize("kind", KEY_VALUES)
@pytest.mark.parametrize("width", [1, 2, 3])
def test_few_rows_are_looked_up_among_many_keys_as_many_rows_are(kind: str, width: int) -> None:
    """Whichever side is indexed: the number of a row's key is its place among the distinct keys."""
    arrow_type, values = KEY_VALUES[kind]
    combinations = list(itertools.product(range(len(values)), repeat=width))
    chosen = [each for number, each in enumerate(combinations) if number % 3 != 1]

    def columns(rows: list[tuple[int, ...]]) -> list[Any]:
        return [pa.array([values[row[n]] for row in rows], arrow_type) for n in range(width)]

    # Others, so that there are many more keys than rows in each column.
    make: Any = {"decimal": Decimal, "string": str, "double": float}.get(kind, int)
    others = pa.array([make(each) for each in range(100, 500)], arrow_type)
    keys = Keys.of(tuple(range(width)), [pa.concat_arrays([each, others]) for each in columns([*chosen, *chosen])])
    for rows in (combinations, *([each] for each in combinations[:20]), combinations[:2] * 2, []):
        found = keys.numbers(columns(rows)).to_pylist()
        assert found == [chosen.index(row) if row in chosen else None for row in rows]
        assert keys.holds(columns(rows)).to_pylist() == [row in chosen for row in rows]


# Copies


def pieces(table: Written, where: str | None = None) -> Iterator[tuple[str, pa.RecordBatch, pa.Int64Array]]:
    for task in table.scan(where).tasks():
        for batch, numbers in rows_with_positions(task, reading(table)):
            yield task.file.file_path, batch, numbers


def copies(table: Written, where: str | None = None, **options: str) -> Any:
    return stage_copies(
        pieces(table, where), metadata=table.metadata(), storage=table.storage, spec_id=0, partition=(),
        sort_order_id=5, options={"target-file-size-bytes": "100000000", **options},
    )  # fmt: skip


def test_copies_say_where_each_row_came_from(table: Written) -> None:
    one, two = table.data(numbered(*range(7))), table.data(numbered(*range(10, 13)))
    table.commit(one, two)
    made = copies(table, "id not in (3, 4)")
    (file,) = made.files
    assert made.runs == {file.file_path: (Run(one.file_path, 0, 3), Run(one.file_path, 5, 2), Run(two.file_path, 0, 3))}
    assert (file.record_count, file.sort_order_id) == (8, 5)
    assert pq.read_table(file.file_path)["id"].to_pylist() == [0, 1, 2, 5, 6, 10, 11, 12]


def test_copies_that_roll_over_split_their_runs(table: Written) -> None:
    data = table.data(numbered(*range(100)))
    table.commit(data)
    made = copies(table, "id <> 50", **{"target-file-size-bytes": "200"})
    assert len(made.files) > 2
    for file in made.files:
        runs = made.runs[file.file_path]
        numbers = [number for run in runs for number in range(run.first, run.first + run.length)]
        assert pq.read_table(file.file_path)["id"].to_pylist() == numbers
        assert sum(run.length for run in runs) == file.record_count
    assert sum(file.record_count for file in made.files) == 99


def test_copies_are_in_the_current_schema(table: Written) -> None:
    table.commit(table.data(numbered(1, 2)))
    table.schemas.append(Schema(field(1, "key", LongType(), True), field(3, "new", StringType()), schema_id=1))
    (file,) = copies(table).files
    assert pq.read_table(file.file_path).to_pylist() == [{"key": 1, "new": None}, {"key": 2, "new": None}]


def test_files_of_others_are_copied_with_field_ids(tmp_path: Path) -> None:
    table = Written(tmp_path / "t", [ROWS])
    table.properties["schema.name-mapping.default"] = create_mapping_from_schema(ROWS).model_dump_json()
    columns: Any = {"id": pa.int32(), "name": pa.string()}
    table.commit(table.data(numbered(1, 2), arrow=pa.schema(columns)))
    (file,) = copies(table).files
    assert ids_in_file(file.file_path) == {"id": 1, "name": 2}


def test_no_rows_make_no_copy(table: Written) -> None:
    table.commit(table.data(numbered(1)))
    made = copies(table, "id = 5")
    assert (made.files, made.runs) == ((), {})
    assert left_behind(table) == []


def test_nothing_is_left_when_the_rows_fail_in_the_middle(table: Written) -> None:
    table.commit(table.data(numbered(*range(50))))

    def failing() -> Iterator[Any]:
        yield from pieces(table)
        raise StorageError("The file is gone")

    with pytest.raises(StorageError, match="gone"):
        stage_copies(
            failing(), metadata=table.metadata(), storage=table.storage, spec_id=0, partition=(),
            options={"target-file-size-bytes": "200"},
        )  # fmt: skip
    assert left_behind(table) == []


# Lineage


LINEAGE = Lineage(
    outputs={"new-1": (Run("a", 0, 3), Run("b", 7, 1)), "new-2": (Run("a", 5, 2**40),)},
    changed={"a": BitMap64([3, 4, 9, 2**40]), "b": BitMap64()},
)


def test_a_lineage_file_reads_back(table: Written) -> None:
    metadata = table.metadata()
    path = write_lineage(table.storage, SYSTEM, metadata, LINEAGE)
    assert path.startswith(f"{metadata.location}/metadata/")
    found = read_lineage(table.storage, path)
    assert (found.outputs, found.changed) == (LINEAGE.outputs, LINEAGE.changed)


def test_a_lineage_may_have_rows_without_a_source(table: Written) -> None:
    outputs = {"new": (Run("old", 0, 2), Run("", 0, 3), Run("old", 5, 1))}
    path = write_lineage(table.storage, SYSTEM, table.metadata(), Lineage(outputs))
    assert read_lineage(table.storage, path).outputs == outputs


def test_a_lineage_of_many_single_rows_stays_small(table: Written) -> None:
    runs = tuple(Run("s3://bucket/some/long/path/to/a/file.parquet", 2 * i, 1) for i in range(50_000))
    path = write_lineage(table.storage, SYSTEM, table.metadata(), Lineage({"new": runs}))
    assert Path(path).stat().st_size < 200_000
    assert read_lineage(table.storage, path).outputs == {"new": runs}


@pytest.mark.parametrize(
    "json",
    [
        b"[]",
        b"{}",
        b"null",
        b'{"version": 2, "sources": [], "outputs": {}, "changed": {}}',
        b'{"version": 1, "sources": ["a"], "outputs": {"n": [0, 1]}, "changed": {}}',
        b'{"version": 1, "sources": ["a"], "outputs": {"n": [1, 0, 1]}, "changed": {}}',
        b'{"version": 1, "sources": ["a"], "outputs": {"n": [-1, 0, 1]}, "changed": {}}',
        b'{"version": 1, "sources": ["a"], "outputs": {"n": [0, 0, 0]}, "changed": {}}',
        b'{"version": 1, "sources": ["a"], "outputs": {"n": [0, "0", 1]}, "changed": {}}',
        b'{"version": 1, "sources": [3], "outputs": {}, "changed": {}}',
        b'{"version": 1, "sources": [], "outputs": [], "changed": {}}',
        b'{"version": 1, "sources": [], "outputs": {}, "changed": {"a": [-5, 2]}}',
        b'{"version": 1, "sources": [], "outputs": {}, "changed": {"a": [true, 2]}}',
    ],
)
def test_a_strange_lineage_file_is_refused(table: Written, json: bytes) -> None:
    path = str(table.root / "x.json.zst")
    table.storage.write(path, pa.Codec("zstd").compress(json, asbytes=True))
    with pytest.raises(CorruptMetadata, match="damaged"):
        read_lineage(table.storage, path)


def test_a_damaged_or_missing_lineage_file_is_refused(table: Written) -> None:
    path = write_lineage(table.storage, SYSTEM, table.metadata(), LINEAGE)
    data = Path(path).read_bytes()
    for number, damaged in enumerate((b"", data[: len(data) // 2], b"not compressed", data[:-1] + b"?")):
        other = str(table.root / f"{number}.json.zst")
        table.storage.write(other, damaged)
        with pytest.raises(CorruptMetadata):
            read_lineage(table.storage, other)
    with pytest.raises(CorruptMetadata, match="cannot be read"):
        read_lineage(table.storage, str(table.root / "missing"))


def test_a_task_of_another_filter_reads_the_same_file(table: Written) -> None:
    """A plan's task may be given another filter: what commits look at again are single files."""
    table.commit(table.data(numbered(1, 2, 3)))
    narrowed = replace(task_of(table), residual=parse_filter("id = 2", table.schema))
    assert matching_positions(narrowed, reading(table)) == BitMap64([1])

"""Plans of random tables for random filters, beside a look at every row of every file."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from frazil.expr import Filter, parse_filter
from frazil.model import Content, DataFile
from frazil.read.plan import FileTask, plan
from unit.written import Row, Written, described

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "v", DoubleType(), required=False),
)
KEY = Schema(NestedField(1, "id", LongType(), required=False))
SPECS = [
    PartitionSpec(spec_id=0),
    PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"), spec_id=1),
    PartitionSpec(PartitionField(1, 1001, BucketTransform(3), "bucket"), spec_id=2),
    PartitionSpec(
        PartitionField(2, 1002, TruncateTransform(1), "first"),
        PartitionField(1, 1003, TruncateTransform(4), "id_4"),
        spec_id=3,
    ),
    PartitionSpec(PartitionField(3, 1004, IdentityTransform(), "v"), spec_id=4),
]
IDS = st.sampled_from([None, -5, -1, 0, 1, 2, 3, 7, 2**62])
ROWS = st.fixed_dictionaries(
    {
        "id": IDS,
        "region": st.sampled_from([None, "", "a", "ab", "b", "\ud7ff", "\ue000", "\U0010ffff"]),
        "v": st.sampled_from([None, math.nan, -math.inf, -1.5, -0.0, 0.0, 1.5, math.inf]),
    }
)
LEAVES = st.one_of(
    st.builds("id {} {}".format, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), st.integers(-6, 8)),
    st.builds("region {} '{}'".format, st.sampled_from(["=", "<>", "<", ">="]), st.sampled_from(["", "a", "ab", "é"])),
    st.builds("v {} {}".format, st.sampled_from(["=", "<>", "<", ">="]), st.sampled_from(["0", "-0.0", "1.5", "-2"])),
    st.sampled_from(["id is null", "region is not null", "v is null", "region like 'a%'", "id in (1, 2, 7)"]),
)
CONDITIONS = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.builds("({} and {})".format, parts, parts),
        st.builds("({} or {})".format, parts, parts),
        st.builds("not ({})".format, parts),
    ),
    max_leaves=4,
)


def partition_of(row: Row, spec: PartitionSpec) -> tuple[Any, ...]:
    names = {1: "id", 2: "region", 3: "v"}
    return tuple(
        each.transform.transform(SCHEMA.find_type(each.source_id))(row[names[each.source_id]]) for each in spec.fields
    )


@dataclass
class Table:
    """What is in each file, and since when."""

    written: Written
    rows: dict[str, list[Row]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    files: dict[str, DataFile] = field(default_factory=dict)
    keys: dict[str, list[int | None]] = field(default_factory=dict)
    positions: dict[str, set[tuple[str, int]]] = field(default_factory=dict)

    def commit(self, files: Sequence[DataFile]) -> None:
        number = self.written.commit(*files)
        for each in files:
            self.files[each.file_path], self.numbers[each.file_path] = each, number

    def reaches(self, deletes: DataFile, data: DataFile) -> bool:
        """The specification's words: scan planning."""
        older = self.numbers[data.file_path] < self.numbers[deletes.file_path]
        together = (data.spec_id, repr(data.partition)) == (deletes.spec_id, repr(deletes.partition))
        if deletes.content == Content.EQUALITY_DELETES:
            return older and (not SPECS[deletes.spec_id].fields or together)
        return older or self.numbers[data.file_path] == self.numbers[deletes.file_path]

    def hits(self, deletes: DataFile, data: DataFile) -> set[int]:
        if not self.reaches(deletes, data):
            return set()
        if deletes.content == Content.POSITION_DELETES:
            return {at for path, at in self.positions[deletes.file_path] if path == data.file_path}
        return {at for at, row in enumerate(self.rows[data.file_path]) if row["id"] in self.keys[deletes.file_path]}

    @property
    def data(self) -> list[DataFile]:
        return [each for each in self.files.values() if each.content == Content.DATA]

    @property
    def deletes(self) -> list[DataFile]:
        return [each for each in self.files.values() if each.content != Content.DATA]


@st.composite
def commits(draw: st.DrawFn) -> list[tuple[int, list[Row], str]]:
    """(spec, rows, and what comes in the next commit, or together with the rows: deletes by key or by position).

    The last spec is left out: see the test of partitions that are no numbers.
    """
    deletes = st.sampled_from(["", "key", "position", "together"])
    return draw(
        st.lists(st.tuples(st.integers(0, 3), st.lists(ROWS, min_size=1, max_size=4), deletes), min_size=1, max_size=4)
    )


def built(root: Path, shape: list[tuple[int, list[Row], str]], data: st.DataObject, *, real: bool) -> Table:
    """``real``: with files to read; otherwise manifests alone."""
    table = Table(Written(root, [SCHEMA], SPECS))
    for number, rows, deletes in shape:
        spec = SPECS[number]
        parts: dict[str, list[Row]] = {}
        for row in rows:
            parts.setdefault(repr(partition_of(row, spec)), []).append(row)
        new = [_file(table, found, spec, real=real) for found in parts.values()]
        # A delete by position also applies to files of its own commit.
        table.commit([*new, *([_positions(table, data, new)] if deletes == "together" else [])])
        if deletes == "key":
            table.commit([_keys(table, data.draw(st.lists(IDS, min_size=1, max_size=2)), data, real=real)])
        elif deletes == "position":
            table.commit([_positions(table, data, table.data)])
    return table


def _file(table: Table, rows: list[Row], spec: PartitionSpec, *, real: bool) -> DataFile:
    partition = partition_of(rows[0], spec)
    if real:
        file = table.written.data(rows, spec_id=spec.spec_id, partition=partition)
    else:
        blank = DataFile(table.written.path("data"), len(rows), 9, spec_id=spec.spec_id, partition=partition)
        file = described(blank, rows, SCHEMA)
    table.rows[file.file_path] = rows
    return file


def _keys(table: Table, ids: list[int | None], data: st.DataObject, *, real: bool) -> DataFile:
    near = data.draw(st.sampled_from([None, *table.data]))
    spec_id, partition = (0, ()) if near is None else (near.spec_id, near.partition)
    rows = [{"id": each} for each in ids]
    if real:
        file = table.written.equality_deletes(rows, KEY, spec_id=spec_id, partition=partition)
    else:
        blank = DataFile(
            table.written.path("keys"), len(rows), 9, spec_id=spec_id, partition=partition,
            content=Content.EQUALITY_DELETES, equality_ids=(1,),
        )  # fmt: skip
        file = described(blank, rows, KEY)
    table.keys[file.file_path] = ids
    return file


def _positions(table: Table, data: st.DataObject, files: Sequence[DataFile]) -> DataFile:
    of = data.draw(st.sampled_from(files))
    more = [each for each in files if (each.spec_id, repr(each.partition)) == (of.spec_id, repr(of.partition))]
    named = data.draw(st.booleans())
    chosen = {
        (each.file_path, data.draw(st.integers(0, each.record_count - 1)))
        for each in ([of] if named else data.draw(st.lists(st.sampled_from(more), min_size=1, max_size=2)))
    }
    file = table.written.position_deletes(sorted(chosen), spec_id=of.spec_id, partition=of.partition, named=named)
    table.positions[file.file_path] = chosen
    return file


def matching(rows: list[Row], where: Filter) -> list[bool]:
    mask = where.mask(pa.Table.from_pylist(rows, schema_to_pyarrow(SCHEMA)))
    return [each is True for each in mask.to_pylist()]


def cells(row: Row) -> str:
    return repr((row["id"], row["region"], row["v"]))


@settings(max_examples=120)
@given(commits(), CONDITIONS, st.data())
def test_a_plan_has_every_file_with_a_matching_row_and_every_delete_that_hits_it(
    shape: list[tuple[int, list[Row], str]], condition: str, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = built(Path(folder), shape, data, real=False)
        metadata = table.written.metadata()
        where = parse_filter(condition, SCHEMA)
        found = plan(metadata, metadata.head_snapshot(), where, table.written.storage)
    tasks = {task.file.file_path: task for task in found.tasks}
    assert len(tasks) == len(found.tasks)
    for file in table.data:
        match = matching(table.rows[file.file_path], where)
        task = tasks.get(file.file_path)
        assert task is not None or not any(match), f"{condition} loses {table.rows[file.file_path]}"
        if task is None:
            continue
        assert task.residual is not None or all(match), f"{condition} does not filter {table.rows[file.file_path]}"
        check_deletes(table, task, match)
    counts = found.counts
    assert counts.files == len(tasks) + counts.files_pruned_by_partition + counts.files_pruned_by_bounds or (
        where.may is False
    )


def check_deletes(table: Table, task: FileTask, match: list[bool]) -> None:
    applied = {ref.file.file_path for ref in task.deletes}
    wanted = {at for at, each in enumerate(match) if each}
    for deletes in table.deletes:
        if deletes.file_path in applied:
            assert table.reaches(deletes, task.file)
        else:
            # A delete of rows that the filter excludes may be left out.
            assert not table.hits(deletes, task.file) & wanted


@settings(max_examples=25)
@given(commits(), CONDITIONS, st.data())
def test_a_scan_reads_exactly_the_rows_that_match_and_are_not_deleted(
    shape: list[tuple[int, list[Row], str]], condition: str, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = built(Path(folder), shape, data, real=True)
        found = table.written.rows(condition)
    where = parse_filter(condition, SCHEMA)
    expected = []
    for file in table.data:
        rows = table.rows[file.file_path]
        gone = {at for deletes in table.deletes for at in table.hits(deletes, file)}
        match = matching(rows, where)
        expected += [row for at, row in enumerate(rows) if match[at] and at not in gone]
    assert sorted(map(cells, found)) == sorted(map(cells, expected))


def test_a_delete_in_the_partition_of_no_number_reaches_its_files() -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = Table(Written(Path(folder), [SCHEMA], SPECS))
        rows = [{"id": 1, "region": None, "v": math.nan}]
        table.commit([_file(table, rows, SPECS[4], real=False)])
        blank = DataFile(
            table.written.path("keys"), 1, 9, spec_id=4, partition=(math.nan,), content=Content.EQUALITY_DELETES,
            equality_ids=(1,),
        )  # fmt: skip
        table.commit([described(blank, rows, KEY)])
        metadata = table.written.metadata()
        found = plan(metadata, metadata.head_snapshot(), parse_filter(None, SCHEMA), table.written.storage)
    assert [len(task.deletes) for task in found.tasks] == [1]

"""Known weak points of PyIceberg 0.12, R1 to R10, and Frazil on the same interleavings.

The tests assert the bad outcome, too, so that they fail when PyIceberg is repaired and this page can be shortened. Both
work on one SQLite catalog; no Java is needed.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import CommitTableResponse
from pyiceberg.table import Table as PyIcebergTable
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, StringType

import frazil
from frazil.commit.context import Phase
from frazil.errors import ConflictError, FrazilError
from frazil.lake import Lake
from frazil.table.options import UpsertMode
from frazil.table.table import Table
from interop.race import unreferenced

pytestmark = pytest.mark.interop

NAME = "shop.events"
DDL = "id bigint not null, a string, b string"
_TEXT: Any = pa.string()
ARROW = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("a", _TEXT), pa.field("b", _TEXT)])


class LosesAnswers(SqlCatalog):
    """Commits, and then says 409, as a proxy does that sends a request twice and returns the second answer."""

    lost: ClassVar[int] = 0

    def commit_table(
        self, table: PyIcebergTable, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        answer = super().commit_table(table, requirements, updates)
        if LosesAnswers.lost:
            LosesAnswers.lost -= 1
            raise CommitFailedException("409: branch main was created concurrently")
        return answer


class Interrupted(SqlCatalog):
    """Lets another commit in between its metadata file and its swap."""

    between: Callable[[], object] | None = None

    @staticmethod
    def _write_metadata(metadata: Any, io: Any, metadata_path: str) -> None:
        SqlCatalog._write_metadata(metadata, io, metadata_path)
        if (act := Interrupted.between) is not None:
            Interrupted.between = None
            act()


@dataclass(frozen=True)
class Shared:
    """One catalog, opened by both."""

    folder: Path
    lake: Lake

    def pyiceberg(self, kind: type[SqlCatalog] = SqlCatalog) -> SqlCatalog:
        return kind("frazil", **self.options)

    @property
    def options(self) -> dict[str, str]:
        warehouse = (self.folder / "warehouse").as_uri()
        return {"uri": f"sqlite:///{self.folder / 'catalog.db'}?timeout=60", "warehouse": warehouse}

    def peer(self) -> PyIcebergTable:
        return self.pyiceberg().load_table(NAME)

    def create(self, *rows: dict[str, Any], **options: Any) -> Table:
        retries = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "5"}
        properties = {**retries, **options.pop("properties", {})}
        table = self.lake.create_table(NAME, DDL, properties=properties, **options)
        for row in rows:
            table.append([row])
        return table

    def rows(self) -> list[tuple[int, str | None, str | None]]:
        """Read by both."""
        ours = _tuples(self.lake.table(NAME).scan().to_arrow())
        assert ours == _tuples(self.peer().scan().to_arrow())
        return ours


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    with warnings.catch_warnings(), frazil.connect(str(tmp_path / "lake")) as lake:
        # PyIceberg leaves its SQLite connections to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        lake.create_namespace("shop")
        yield Shared(tmp_path / "lake", lake)


@pytest.fixture(autouse=True)
def _calm() -> Iterator[None]:
    yield
    LosesAnswers.lost, Interrupted.between = 0, None


def _row(number: int, a: str | None = None, b: str | None = None) -> dict[str, Any]:
    return {"id": number, "a": a, "b": b}


def _arrow(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=ARROW)


def _tuples(found: pa.Table) -> list[tuple[int, str | None, str | None]]:
    return sorted(((r["id"], r["a"], r["b"]) for r in found.to_pylist()), key=lambda row: (row[0], str(row[1:])))


def _ids(found: pa.Table) -> list[int]:
    values: list[Any] = found["id"].to_pylist()
    return sorted(values)


def _snapshot(table: Table, ref: str = "main") -> int:
    found = table.snapshot(ref)
    assert found is not None
    return found.snapshot_id


# R1: a delete that is planned again on a retry would take rows it never saw. PyIceberg repaired it in 0.12.0.


def _is_refused(isolation: str, error: type[Exception]) -> contextlib.AbstractContextManager[object]:
    return pytest.raises(error) if isolation == "serializable" else contextlib.nullcontext()


def _r1_table(shared: Shared, isolation: str) -> Table:
    return shared.create(_row(1, "old"), _row(2), properties={"write.delete.isolation-level": isolation})


_R1_LEFT = {
    "serializable": [(1, "new", None), (1, "old", None), (2, None, None)],
    "snapshot": [(1, "new", None), (2, None, None)],
}


@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_r1_pyiceberg_leaves_rows_alone_that_a_delete_never_saw(shared: Shared, isolation: str) -> None:
    table = _r1_table(shared, isolation)
    late = shared.peer().transaction()
    late.delete("id = 1")
    table.append([_row(1, "new")])
    with _is_refused(isolation, ValidationException):
        late.commit_transaction()
    assert shared.rows() == _R1_LEFT[isolation]


@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_r1_frazil_leaves_rows_alone_that_a_delete_never_saw(shared: Shared, isolation: str) -> None:
    table = _r1_table(shared, isolation)
    late = shared.lake.transaction(isolation=isolation)
    late.table(NAME).delete("id = 1")
    table.append([_row(1, "new")])
    with _is_refused(isolation, ConflictError):
        late.commit()
    assert shared.rows() == _R1_LEFT[isolation]


# R2: two upserts of one new key.


def test_r2_pyiceberg_writes_a_new_key_twice(shared: Shared) -> None:
    shared.create(_row(1), keys=["id"])
    first, second = shared.peer().transaction(), shared.peer().transaction()
    for transaction, name in ((first, "first"), (second, "second")):
        transaction.upsert(_arrow(_row(7, name)), join_cols=["id"])
    first.commit_transaction()
    second.commit_transaction()
    assert shared.rows() == [(1, None, None), (7, "first", None), (7, "second", None)]


@pytest.mark.parametrize("mode", ["equality", "position", "copy-on-write"])
def test_r2_frazil_keeps_one_row_for_a_key(shared: Shared, mode: UpsertMode) -> None:
    table = shared.create(_row(1), keys=["id"])
    first, second = shared.lake.transaction(), shared.lake.transaction()
    for transaction, name in ((first, "first"), (second, "second")):
        transaction.table(NAME).upsert([_row(7, name)], mode=mode)
    first.commit()
    # With equality deletes the later commit wins; the other modes read first, and what they read is not true any more.
    with contextlib.nullcontext() if mode == "equality" else pytest.raises(ConflictError):
        second.commit()
    winner = "second" if mode == "equality" else "first"
    assert _tuples(table.scan().to_arrow()) == [(1, None, None), (7, winner, None)]


# R3: a transaction over two branches.


def _two_branches(shared: Shared) -> tuple[Table, int]:
    """Both branches stand at the second snapshot; the answer names the first."""
    table = shared.create(_row(1))
    first = _snapshot(table)
    table.append([_row(2)])
    table.create_branch("a")
    table.create_branch("b")
    return table, first


def _move(shared: Shared, branch: str, snapshot: int) -> None:
    shared.peer().manage_snapshots().remove_branch(branch).commit()
    shared.peer().manage_snapshots().create_branch(snapshot, branch).commit()


def test_r3_pyiceberg_loses_the_move_of_a_second_branch(shared: Shared) -> None:
    table, first = _two_branches(shared)
    both = shared.peer().transaction()
    both.append(_arrow(_row(3)), branch="a")
    both.append(_arrow(_row(4)), branch="b")
    _move(shared, "b", first)
    both.commit_transaction()
    assert _ids(table.scan(ref="b").to_arrow()) == [1, 2, 4], "the branch was moved to where 2 was not"


def test_r3_pyiceberg_loses_an_append_to_a_second_branch_of_a_v1_table(shared: Shared) -> None:
    catalog = shared.pyiceberg()
    created = catalog.create_table(NAME, ARROW, properties={"format-version": "1"})
    created.append(_arrow(_row(1)))
    head = created.current_snapshot()
    assert head is not None
    created.manage_snapshots().create_branch(head.snapshot_id, "a").create_branch(head.snapshot_id, "b").commit()
    both = shared.peer().transaction()
    both.append(_arrow(_row(3)), branch="a")
    both.append(_arrow(_row(4)), branch="b")
    shared.peer().append(_arrow(_row(5)), branch="b")
    both.commit_transaction()
    assert _ids(shared.peer().scan().use_ref("b").to_arrow()) == [1, 4], "5 was acknowledged"


def test_r3_frazil_puts_each_append_on_its_branch_as_it_is_by_then(shared: Shared) -> None:
    table, first = _two_branches(shared)
    with shared.lake.transaction() as both:
        both.table(NAME).append([_row(3)], branch="a")
        both.table(NAME).append([_row(4)], branch="b")
        _move(shared, "b", first)
        shared.peer().append(_arrow(_row(5)), branch="a")
    assert _ids(table.scan(ref="a").to_arrow()) == [1, 2, 3, 5]
    assert _ids(table.scan(ref="b").to_arrow()) == [1, 4]
    assert _ids(table.scan().to_arrow()) == [1, 2]


def test_r3_frazil_refuses_a_delete_on_a_branch_that_was_moved(shared: Shared) -> None:
    table, first = _two_branches(shared)
    both = shared.lake.transaction()
    both.table(NAME).append([_row(3)], branch="a")
    both.table(NAME).delete("id = 2", branch="b")
    _move(shared, "b", first)
    with pytest.raises(ConflictError):
        both.commit()
    assert _ids(table.scan(ref="a").to_arrow()) == [1, 2]
    assert _ids(table.scan(ref="b").to_arrow()) == [1]


# R4: appends to two branches.


def test_r4_pyiceberg_refuses_an_append_beside_one_to_another_branch_and_leaves_files(shared: Shared) -> None:
    _two_branches(shared)
    second = shared.peer().transaction()
    second.append(_arrow(_row(4)), branch="b")
    shared.peer().append(_arrow(_row(3)), branch="a")
    with pytest.raises(ValueError, match="Cannot add snapshot with sequence number"):
        second.commit_transaction()
    assert sorted(path.suffix for path in unreferenced(shared.peer())) == [".avro", ".avro", ".parquet"]


def test_r4_frazil_appends_to_two_branches_at_once(shared: Shared) -> None:
    table, _ = _two_branches(shared)
    second = shared.lake.transaction()
    second.table(NAME).append([_row(4)], branch="b")
    table.append([_row(3)], branch="a")
    second.commit()
    assert _ids(table.scan(ref="a").to_arrow()) == [1, 2, 3]
    assert _ids(table.scan(ref="b").to_arrow()) == [1, 2, 4]
    assert unreferenced(shared.peer()) == set()


# R5: a partition spec that changes while rows are on their way.


def _repartition(shared: Shared) -> None:
    with shared.peer().update_spec() as spec:
        spec.remove_field("a")
        spec.add_field("b", IdentityTransform(), "b")
    shared.lake.table(NAME).append([_row(2, "z", "y")])


def test_r5_pyiceberg_records_files_under_a_partition_they_are_not_in(shared: Shared) -> None:
    shared.create(_row(1, "z", "y"), partition_by=["a"])
    late = shared.peer().transaction()
    late.append(_arrow(_row(3, "x", "y")))
    _repartition(shared)
    late.commit_transaction()
    assert _ids(shared.peer().scan().to_arrow()) == [1, 2, 3]
    assert _ids(shared.peer().scan("b = 'y'").to_arrow()) == [1, 2], "3 has b = 'y' as well"


def test_r5_frazil_keeps_files_under_the_spec_they_were_written_with(shared: Shared) -> None:
    table = shared.create(_row(1, "z", "y"), partition_by=["a"])
    late = shared.lake.transaction()
    late.table(NAME).append([_row(3, "x", "y")])
    _repartition(shared)
    late.commit()
    for where in ("b = 'y'", "true", "b = 'y' and a in ('x', 'z')"):
        assert _ids(table.scan(where=where).to_arrow()) == [1, 2, 3]
    assert _ids(shared.peer().scan("b = 'y'").to_arrow()) == [1, 2, 3]
    assert _ids(table.scan(where="b = 'x'").to_arrow()) == []


# R6: a position delete on a file that a compaction replaces.


def _pyiceberg_compaction(shared: Shared) -> Callable[[], object]:
    """The first two files into one, as PyIceberg's own means allow it; the answer commits."""
    table = shared.peer()
    files = [task.file for task in table.scan("id < 5").plan_files()]
    transaction = table.transaction()
    merged = list(_dataframe_to_data_files(table.metadata, table.scan("id < 5").to_arrow(), table.io))
    with transaction.update_snapshot().overwrite() as rewrite:
        for file in files:
            rewrite.delete_data_file(file)
        for file in merged:
            rewrite.append_data_file(file)
    return transaction.commit_transaction


def _r6_table(shared: Shared, isolation: str) -> Table:
    levels = {f"write.{verb}.isolation-level": isolation for verb in ("delete", "update")}
    table = shared.create(properties={**levels, "write.delete.mode": "merge-on-read"})
    for number in (1, 3, 5):
        table.append([_row(number), _row(number + 1)])
    return table


def _r6_others(table: Table, isolation: str) -> None:
    """A row of the compacted files goes, and then something lands that has nothing to do with the row."""
    table.delete("id = 1")
    if isolation == "snapshot":
        table.append([_row(7)])
    else:
        table.delete("id = 6")


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_r6_pyiceberg_brings_a_deleted_row_back(shared: Shared, isolation: str) -> None:
    table = _r6_table(shared, isolation)
    commit = _pyiceberg_compaction(shared)
    _r6_others(table, isolation)
    commit()
    assert 1 in _ids(table.scan().to_arrow()), "1 was deleted"


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_r6_frazil_carries_the_delete_to_the_compacted_file(shared: Shared, isolation: str) -> None:
    table = _r6_table(shared, isolation)
    compaction = shared.lake.transaction(isolation=isolation)
    compaction.table(NAME).compact(where="id < 5")
    _r6_others(table, isolation)
    compaction.commit()
    assert [row[0] for row in shared.rows()] == [2, 3, 4, 5, *([6, 7] if isolation == "snapshot" else [])]


# R7: an answer that says "no" to a commit that landed.


def test_r7_pyiceberg_deletes_the_manifests_of_a_commit_that_landed(shared: Shared) -> None:
    shared.create(_row(1), properties={"commit.retry.num-retries": "0"})
    table = shared.pyiceberg(LosesAnswers).load_table(NAME)
    LosesAnswers.lost = 1
    with pytest.raises(CommitFailedException, match="409"):
        table.append(_arrow(_row(2)))
    damaged = shared.peer()
    assert len(damaged.snapshots()) == 2, "it landed"
    with pytest.raises(FileNotFoundError):
        damaged.scan().to_arrow()


@pytest.mark.parametrize("tries", [1, 16])
def test_r7_frazil_finds_out_that_its_commit_landed(shared: Shared, tries: int) -> None:
    shared.create(_row(1))
    implementation = {"py-catalog-impl": f"{__name__}.LosesAnswers"}
    with frazil.connect("pyiceberg:frazil", properties={**shared.options, **implementation}) as lossy:
        LosesAnswers.lost = 1
        commit = lossy.table(NAME).append([_row(2)], retry=frazil.Retry(tries=tries))
    assert LosesAnswers.lost == 0
    assert commit.changed
    assert [row[0] for row in shared.rows()] == [1, 2]
    assert unreferenced(shared.peer()) == set()


# R8: what a lost swap leaves behind.


def test_r8_pyiceberg_leaves_a_metadata_file_for_each_lost_swap(shared: Shared) -> None:
    table = shared.create(_row(1))
    Interrupted.between = lambda: table.append([_row(2)])
    shared.pyiceberg(Interrupted).load_table(NAME).append(_arrow(_row(3)))
    assert [row[0] for row in shared.rows()] == [1, 2, 3]
    assert [path.name.endswith(".metadata.json") for path in unreferenced(shared.peer())] == [True]


def test_r8_frazil_leaves_nothing(shared: Shared) -> None:
    table = shared.create(_row(1))

    def others(phase: Phase, attempt: int) -> None:
        if phase is Phase.PREPARED and attempt <= 3:
            shared.peer().append(_arrow(_row(10 + attempt)))

    commit = table.append([_row(3)], on_phase=others)
    assert commit.attempts == 4
    assert [row[0] for row in shared.rows()] == [1, 3, 11, 12, 13]
    assert unreferenced(shared.peer()) == set()


# R9: columns.


def _peer_adds(shared: Shared, name: str, kind: Any) -> Callable[[], object]:
    transaction = shared.peer().transaction()
    with transaction.update_schema() as schema:
        schema.add_column(name, kind)
    return transaction.commit_transaction


@pytest.mark.parametrize("second", ["extra", "other"])
def test_r9_pyiceberg_refuses_every_second_change_of_the_schema(shared: Shared, second: str) -> None:
    shared.create(_row(1))
    late = _peer_adds(shared, second, IntegerType())
    _peer_adds(shared, "extra", IntegerType())()
    with pytest.raises(CommitFailedException, match="current schema id has changed"):
        late()


@pytest.mark.parametrize("second", ["extra", "other"])
def test_r9_frazil_adds_both_columns_or_the_same_one_once(shared: Shared, second: str) -> None:
    table = shared.create(_row(1))
    late = shared.lake.transaction()
    late.table(NAME).add_column(second, "int")
    _peer_adds(shared, "extra", IntegerType())()
    late.commit()
    names = ["id", "a", "b", *dict.fromkeys(("extra", second))]
    assert [field.name for field in table.schema.fields] == names
    assert len({field.field_id for field in table.schema.fields}) == len(names)
    table.append([{**_row(2), **{name: n for n, name in enumerate(names[3:])}}])
    (found,) = table.scan(where="id = 2").to_arrow().to_pylist()
    assert [found[name] for name in names[3:]] == list(range(len(names) - 3))


def test_r9_frazil_refuses_one_column_with_two_types(shared: Shared) -> None:
    table = shared.create(_row(1))
    late = shared.lake.transaction()
    late.table(NAME).add_column("extra", "int")
    _peer_adds(shared, "extra", StringType())()
    with pytest.raises(ConflictError, match="extra"):
        late.commit()
    assert str(table.schema.find_type("extra")) == "string"


def _peer_drops(shared: Shared, name: str) -> None:
    with shared.peer().update_schema(allow_incompatible_changes=True) as schema:
        schema.delete_column(name)


def test_r9_pyiceberg_commits_rows_whose_only_values_are_in_a_column_that_was_dropped(shared: Shared) -> None:
    shared.create(_row(1))
    late = shared.peer().transaction()
    late.append(_arrow(_row(2, "lost")))
    _peer_drops(shared, "a")
    late.commit_transaction()
    found = shared.peer().scan().to_arrow().to_pylist()
    assert {"id": 2, "b": None} in found, "it was acknowledged and its value cannot be read"


def test_r9_frazil_refuses_rows_of_a_column_that_was_dropped(shared: Shared) -> None:
    table = shared.create(_row(1))
    late = shared.lake.transaction()
    late.table(NAME).append([_row(2, "lost")])
    _peer_drops(shared, "a")
    with pytest.raises(FrazilError, match="a"):
        late.commit()
    assert _ids(table.scan().to_arrow()) == [1]
    assert unreferenced(shared.peer()) == set()


# R10: tags and the snapshots they name.

_FUTURE = 10**15


def _old_snapshot(shared: Shared) -> tuple[Table, int]:
    table = shared.create(_row(1))
    old = _snapshot(table)
    table.append([_row(2)])
    return table, old


def test_r10_pyiceberg_expires_a_snapshot_that_was_tagged_meanwhile(shared: Shared) -> None:
    table, old = _old_snapshot(shared)
    expiry = shared.peer().maintenance.expire_snapshots().by_id(old)
    twice = shared.peer().maintenance.expire_snapshots().by_id(old)
    table.create_tag("audit", old)
    expiry.commit()
    assert "audit" not in shared.peer().refs(), "the tag was acknowledged"
    with pytest.raises(ValueError, match="does not exist"):
        twice.commit()


def test_r10_frazil_expires_no_snapshot_that_was_tagged_meanwhile(shared: Shared) -> None:
    table, old = _old_snapshot(shared)
    expiry, twice = shared.lake.transaction(), shared.lake.transaction()
    for late in (expiry, twice):
        late.table(NAME).expire_snapshots(_FUTURE)
    shared.peer().manage_snapshots().create_tag(old, "audit").commit()
    expiry.commit()
    assert shared.peer().refs()["audit"].snapshot_id == old
    assert _ids(table.scan(ref="audit").to_arrow()) == [1]
    shared.peer().manage_snapshots().remove_tag("audit").commit()
    assert table.expire_snapshots(_FUTURE).changed
    twice.commit()
    assert [each.snapshot_id for each in shared.peer().snapshots()] == [_snapshot(table)]
    assert shared.rows() == [(1, None, None), (2, None, None)]


@pytest.mark.parametrize("by", ["PyIceberg", "Frazil"])
def test_r10_frazil_tags_no_snapshot_that_was_expired_meanwhile(shared: Shared, by: str) -> None:
    table, old = _old_snapshot(shared)
    late = shared.lake.transaction()
    late.table(NAME).create_tag("audit", old)
    if by == "Frazil":
        table.expire_snapshots(_FUTURE)
    else:
        shared.peer().maintenance.expire_snapshots().by_id(old).commit()
    with pytest.raises(ConflictError, match=f"snapshot {old} has expired"):
        late.commit()
    assert "audit" not in shared.peer().refs()
    assert _ids(table.scan().to_arrow()) == [1, 2]


def test_r10_frazil_moves_no_tag_that_another_made_meanwhile(shared: Shared) -> None:
    table, old = _old_snapshot(shared)
    late = shared.lake.transaction()
    late.table(NAME).create_tag("audit", old)
    shared.peer().manage_snapshots().create_tag(_snapshot(table), "audit").commit()
    with pytest.raises(FrazilError, match="audit"):
        late.commit()
    assert shared.peer().refs()["audit"].snapshot_id == _snapshot(table)

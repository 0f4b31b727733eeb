"""Interleavings that once went wrong, each with the rows that must be there afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.commit.context import Phase
from surface.matrix import QUICK, files_of, losing_a_race, named_files, once

MODES = ["merge-on-read", "copy-on-write"]


@pytest.fixture
def lake() -> Iterator[frazil.Lake]:
    with frazil.connect("memory://") as lake:
        lake.create_namespace("s")
        yield lake


@pytest.fixture
def table(lake: frazil.Lake) -> frazil.Table:
    return lake.create_table("s.t", "id bigint not null, v bigint", keys=["id"])


def rows(*pairs: tuple[int, int]) -> list[dict[str, int]]:
    return [{"id": key, "v": value} for key, value in pairs]


def pairs(table: Any, ref: str | None = None) -> list[tuple[int, int]]:
    return sorted((row["id"], row["v"]) for row in table.scan(ref=ref).to_arrow().to_pylist())


# Branches that a transaction makes or moves


def test_copies_on_a_branch_made_in_the_transaction_keep_their_rows(lake: frazil.Lake, table: frazil.Table) -> None:
    table.append(rows((1, 0)))
    table.upsert(rows((1, 5), (2, 5)))
    with lake.transaction() as tx:
        tx.table("s.t").create_branch("x")
        tx.table("s.t").delete("id = 2", branch="x", mode="copy-on-write")
    assert pairs(table, "x") == [(1, 5)]


def test_copies_after_a_fast_forward_in_the_transaction_keep_their_rows(lake: frazil.Lake, table: frazil.Table) -> None:
    table.append(rows((1, 0)))
    table.create_branch("b")
    table.upsert(rows((1, 5), (2, 5)), branch="b")
    with lake.transaction() as tx:
        tx.table("s.t").fast_forward("main", "b")
        tx.table("s.t").delete("id = 2", mode="copy-on-write")
    assert pairs(table) == [(1, 5)]


def test_a_branch_starts_where_the_transaction_saw_main(lake: frazil.Lake, table: frazil.Table) -> None:
    table.append(rows((1, 0), (2, 0)))
    table.append(rows((3, 0)))
    with lake.transaction() as tx:
        tx.table("s.t").create_branch("x")
        tx.table("s.t").delete("id = 1", branch="x", mode="merge-on-read")
        table.compact()
    assert pairs(table, "x") == [(2, 0), (3, 0)]
    assert pairs(table) == [(1, 0), (2, 0), (3, 0)]


def test_a_scan_of_a_branch_made_in_the_transaction_is_a_read_of_main(lake: frazil.Lake, table: frazil.Table) -> None:
    table.append(rows((1, 0)))
    tx = lake.transaction()
    mine = tx.table("s.t")
    mine.create_branch("x")
    assert mine.scan(where="id = 1", ref="x").count() == 1
    mine.append(rows((9, 9)))
    table.delete("id = 1")
    with pytest.raises(frazil.ConflictError):
        tx.commit()


# Picking


def test_a_pick_is_not_for_transactions(lake: frazil.Lake, table: frazil.Table) -> None:
    table.append(rows((1, 0)))
    table.create_branch("b")
    done = table.delete("id = 1", branch="b")
    assert done.snapshot_id is not None
    with lake.transaction() as tx, pytest.raises(frazil.Unsupported, match="cherry_pick"):
        tx.table("s.t").cherry_pick(done.snapshot_id)


def test_a_picked_copy_is_never_older_than_a_delete_by_key_that_its_rows_came_after(table: frazil.Table) -> None:
    table.append(rows((5, 5)))
    table.create_branch("b")
    first = table.append(rows((1, 0), (2, 0)), branch="b")
    second = table.delete("id = 2", branch="b", mode="copy-on-write")
    assert first.snapshot_id is not None
    assert second.snapshot_id is not None
    table.row_delta(keys=[{"id": 1}])
    table.cherry_pick(first.snapshot_id)
    with pytest.raises(frazil.InvalidInput, match="deleted by key"):
        table.cherry_pick(second.snapshot_id)
    assert pairs(table) == [(1, 0), (2, 0), (5, 5)]


def test_a_rebased_copy_can_be_picked(lake: frazil.Lake, table: frazil.Table) -> None:
    table.append(rows((1, 0), (2, 0), (3, 0)))
    table.create_branch("b")
    tx = lake.transaction()
    tx.table("s.t").delete("id = 1", branch="b", mode="copy-on-write")
    table.delete("id = 2", branch="b", mode="merge-on-read")
    done = tx.commit()
    assert isinstance(done, frazil.Commit)
    assert done.snapshot_id is not None
    assert pairs(table, "b") == [(3, 0)]
    with pytest.raises(frazil.InvalidInput, match="depends on deletes"):
        table.cherry_pick(done.snapshot_id)


# What a transaction read


def test_what_was_read_is_checked_beside_a_compaction(lake: frazil.Lake, table: frazil.Table) -> None:
    table.append(rows((1, 0)))
    table.append(rows((2, 0)))
    tx = lake.transaction()
    mine = tx.table("s.t")
    assert mine.scan().count() == 2
    mine.compact()
    mine.append(rows((9, 2)))
    table.append(rows((3, 0)))
    with pytest.raises(frazil.ConflictError, match="no added rows"):
        tx.commit()


def test_write_skew_over_two_tables_is_noticed(lake: frazil.Lake, table: frazil.Table) -> None:
    other = lake.create_table("s.u", "id bigint not null, v bigint")
    one, two = lake.transaction(), lake.transaction()
    assert one.table("s.t").scan().count() == 0
    one.table("s.u").append(rows((1, 1)))
    assert two.table("s.u").scan().count() == 0
    two.table("s.t").append(rows((1, 1)))
    one.commit()
    with pytest.raises(frazil.ConflictError):
        two.commit()
    assert (pairs(table), pairs(other)) == ([], [(1, 1)])


def test_a_transaction_does_not_conflict_with_its_own_schema_changes(lake: frazil.Lake, table: frazil.Table) -> None:
    table.append(rows((1, 0)))
    with lake.transaction() as tx:
        mine = tx.table("s.t")
        mine.append(rows((2, 0)))
        mine.add_column("z", "int")
        assert mine.scan(where="z is null").count() == 2
    with lake.transaction() as tx:
        mine = tx.table("s.t")
        assert mine.scan(where="v = 0").count() == 2
        mine.drop_column("v")
        mine.append([{"id": 3, "z": 1}])
    assert sorted(row["id"] for row in table.scan().to_arrow().to_pylist()) == [1, 2, 3]


def test_a_branch_that_was_only_read_is_required_to_stay(lake: frazil.Lake, table: frazil.Table) -> None:
    table.append(rows((1, 0)))
    table.create_branch("b")
    proposals = []
    prepare = lake.catalog.prepare

    def watched(ident: Any, head: Any, proposal: Any) -> Any:
        proposals.append(proposal)
        return prepare(ident, head, proposal)

    with lake.transaction() as tx:
        assert tx.table("s.t").scan(ref="b").count() == 1
        tx.table("s.t").append(rows((2, 0)))
        lake.catalog.prepare = watched  # type: ignore[method-assign]
    refs = {each["ref"] for each in proposals[0].requirements if each["type"] == "assert-ref-snapshot-id"}
    assert refs == {"main", "b"}


# Upserts


@pytest.mark.parametrize("mode", ["position", "copy-on-write"])
def test_two_replaces_of_one_key_leave_one_row_also_at_snapshot(
    lake: frazil.Lake, table: frazil.Table, mode: Any
) -> None:
    table.append(rows((1, 0), (2, 0)))
    tx = lake.transaction(isolation="snapshot")
    tx.table("s.t").upsert(rows((1, 5)), mode=mode)
    table.overwrite(rows((1, 9)), where="id = 1")
    with pytest.raises(frazil.ConflictError, match="one owner"):
        tx.commit()
    assert pairs(table) == [(1, 9), (2, 0)]


@pytest.mark.parametrize("mode", ["equality", "position", "copy-on-write"])
def test_an_upsert_by_other_keys_than_the_tables_aborts(lake: frazil.Lake, mode: Any) -> None:
    table = lake.create_table("s.k", "id bigint not null, p bigint not null", keys=["id"])
    table.append([{"id": 1, "p": 1}])
    tx = lake.transaction()
    tx.table("s.k").upsert([{"id": 1, "p": 2}], mode=mode)
    table.set_keys(["id", "p"])
    with pytest.raises(frazil.ConflictError, match="keys"):
        tx.commit()


def test_two_first_upserts_of_a_partitioned_table_both_land(lake: frazil.Lake) -> None:
    table = lake.create_table("s.p", "id bigint not null, v bigint", partition_by=["v"], keys=["id"])
    table.append(rows((1, 0)))
    one, two = lake.transaction(), lake.transaction()
    one.table("s.p").upsert(rows((1, 1)))
    two.table("s.p").upsert(rows((1, 2), (3, 3)))
    one.commit()
    two.commit()
    assert pairs(table) == [(1, 2), (3, 3)]

    def first(phase: Phase, attempt: int) -> None:
        if phase is Phase.HEAD_READ and attempt == 1:
            other.upsert(rows((1, 1)))

    other = lake.create_table("s.q", "id bigint not null, v bigint", partition_by=["v"], keys=["id"])
    other.append(rows((1, 0)))
    other.upsert(rows((1, 2)), on_phase=first)
    assert pairs(other) == [(1, 2)]


def test_a_row_of_ones_own_is_younger_than_a_delete_by_key(lake: frazil.Lake, table: frazil.Table) -> None:
    with lake.transaction(isolation="snapshot") as tx:
        tx.table("s.t").append(rows((9, 0)))
        tx.table("s.t").update({"v": "1"}, "id = 9")
        table.upsert(rows((9, 5)))
    assert pairs(table) == [(9, 1), (9, 5)]


@pytest.mark.parametrize("first", ["a scan", "an update of no row"])
def test_copies_after_a_step_that_wrote_nothing_keep_their_age(
    lake: frazil.Lake, table: frazil.Table, first: str
) -> None:
    table.append(rows((1, 0), (2, 0), (3, 0)))
    with lake.transaction() as tx:
        mine = tx.table("s.t")
        if first == "a scan":
            assert mine.scan(where="id = 4").count() == 0
        else:
            mine.update({"v": "9"}, where="id = 4")
        mine.update({"v": "7"}, where="id = 2", mode="copy-on-write")
        table.upsert(rows((1, 5)), mode="equality")
    assert pairs(table) == [(1, 5), (2, 7), (3, 0)]


def test_a_later_step_reads_what_an_earlier_one_wrote_also_after_a_lost_race(lake: frazil.Lake) -> None:
    table = lake.create_table("s.l", "id bigint not null, p string", partition_by=["p"], keys=["id"])
    table.append([{"id": 1, "p": "x"}])
    tx = lake.transaction()
    mine = tx.table("s.l")
    mine.upsert([{"id": 3, "p": "c"}, {"id": 9, "p": "a"}])
    mine.update({"id": "4"}, "id = 3")
    with losing_a_race(lake, lambda: table.append([{"id": 2, "p": "x"}])):
        done = tx.commit()
    assert done is not None
    assert done.attempts == 2
    assert sorted(row["id"] for row in table.scan().to_arrow().to_pylist()) == [1, 2, 4, 9]


# Deletes


def test_new_rows_in_place_of_a_row_that_was_deleted_are_a_conflict(lake: frazil.Lake, table: frazil.Table) -> None:
    table.append(rows((1, 0), (2, 0)))
    path = table.files()[0].path
    tx = lake.transaction()
    tx.table("s.t").row_delta(rows=rows((1, 5)), positions={path: [0]})
    table.delete("id = 1", mode="merge-on-read")
    with pytest.raises(frazil.ConflictError, match="one owner"):
        tx.commit()


@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_p24_a_delete_that_includes_what_was_added_does_so_at_both_levels(lake: frazil.Lake, isolation: str) -> None:
    table = lake.create_table("s.d", "id bigint, part string", partition_by=["part"])
    table.append([{"id": 1, "part": "a"}, {"id": 2, "part": "b"}])

    def add(phase: Phase, attempt: int) -> None:
        if phase is Phase.HEAD_READ and attempt == 1 and table.scan(where="id = 3").count() == 0:
            table.append([{"id": 3, "part": "a"}])

    table.delete("part = 'a'", on_added="include", isolation=isolation, on_phase=add)
    assert table.scan().to_arrow().to_pylist() == [{"id": 2, "part": "b"}]


def test_a_rebased_delete_leaves_no_delete_file_without_a_file(lake: frazil.Lake, table: frazil.Table) -> None:
    table.append(rows((1, 0), (2, 0)))
    table.append(rows((3, 0)))
    tx = lake.transaction()
    tx.table("s.t").compact()
    table.delete("id = 1", mode="merge-on-read")
    tx.commit()
    assert pairs(table) == [(2, 0), (3, 0)]
    assert table.history()[-1].summary["total-delete-files"] == "1"
    table.compact()
    assert pairs(table) == [(2, 0), (3, 0)]
    assert table.history()[-1].summary["total-delete-files"] == "0"


def test_a_sidecar_that_cannot_be_read_for_a_moment_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("s")
        table = lake.create_table("s.t", "id bigint not null, v bigint")
        table.append(rows((1, 0), (2, 0)))
        table.append(rows((3, 0)))
        tx = lake.transaction()
        tx.table("s.t").delete("id = 1", mode="merge-on-read")
        table.compact()
        read = lake.storage.read
        failed: list[str] = []

        def flaky(path: str) -> bytes:
            if "lineage" in path and not failed:
                failed.append(path)
                raise frazil.StorageError(f"Cannot read {path} now")
            return read(path)

        monkeypatch.setattr(lake.storage, "read", flaky)
        tx.commit()
        assert failed
        assert pairs(table) == [(2, 0), (3, 0)]


# What an attempt costs


def names(paths: set[str]) -> set[str]:
    """Without their folders, which metadata may spell as a URI."""
    return {Path(path).name for path in paths}


def test_a_record_of_where_rows_went_is_written_once_and_a_manifest_fetched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many races are lost; and nothing of it stays when the write fails."""
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("s")
        table = lake.create_table("s.t", "id bigint not null, v bigint")
        table.append(rows((1, 0), (2, 0)))
        (mine,) = (name for name in names(files_of(table)) if name.endswith("-m0.avro"))
        read, write = lake.storage.read, lake.storage.write
        fetched: list[str] = []
        looked_at: list[str] = []
        written: list[str] = []
        is_full = False

        def count_read(path: str) -> bytes:
            fetched.append(path)
            return read(path)

        def count_write(path: str, data: bytes, **how: bool) -> None:
            if "lineage" in path:
                written.append(path)
                if is_full:
                    raise frazil.InvalidInput("The disk is full")
            write(path, data, **how)

        def in_the_way(phase: Phase, attempt: int) -> None:
            if phase is Phase.HEAD_READ:
                if attempt < 4:
                    table.append(rows((10 + attempt, 0)))
                fetched.clear()
            elif phase is Phase.PREPARED:
                looked_at.extend(path for path in fetched if path.endswith(mine))

        monkeypatch.setattr(lake.storage, "read", count_read)
        monkeypatch.setattr(lake.storage, "write", count_write)
        done = table.update({"v": "1"}, "id = 1", mode="copy-on-write", retry=QUICK, on_phase=in_the_way)
        assert done.attempts == 4
        assert len(looked_at) == 1
        assert [each.summary.get("frazil.lineage") for each in table.history()][-1:] == written
        assert pairs(table) == [(1, 1), (2, 0), (11, 0), (12, 0), (13, 0)]
        assert names(files_of(table)) == names(named_files(table))
        is_full = True
        with pytest.raises(frazil.InvalidInput):
            table.update({"v": "2"}, "id = 1", mode="copy-on-write")
        assert len(written) == 2
        assert names(files_of(table)) == names(named_files(table))


# Permissions


def test_a_forked_childs_copy_of_a_transaction_touches_nothing(tmp_path: Path) -> None:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("s")
        table = lake.create_table("s.t", "id bigint not null, v bigint")
        with lake.transaction() as tx:
            tx.table("s.t").append(rows((1, 1)))
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    tx.rollback()
                    tx.commit()
                except frazil.InvalidInput:
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert pairs(table) == [(1, 1)]


@pytest.mark.parametrize("verb", ["overwrite", "upsert", "replace_partitions"])
def test_a_refused_write_leaves_the_schema_alone(lake: frazil.Lake, table: frazil.Table, verb: str) -> None:
    table.append(rows((1, 1)))
    before = table.metadata_location
    new = [{"id": 5, "v": 5, "extra": "x"}, {"id": 5, "v": 6, "extra": "y"}]
    extra: dict[str, Any] = {"where": "id = 1"} if verb == "overwrite" else {}
    with pytest.raises(frazil.InvalidInput):
        getattr(table, verb)(new, merge_schema=True, **extra)
    assert table.metadata_location == before
    assert [field.name for field in table.schema.fields] == ["id", "v"]


@pytest.mark.parametrize("verb", ["overwrite", "upsert"])
def test_a_dry_run_knows_the_new_columns(table: frazil.Table, verb: str) -> None:
    table.append(rows((1, 1)))
    before = table.metadata_location
    extra: dict[str, Any] = {"where": "id = 5"} if verb == "overwrite" else {}
    new = [{"id": 5, "v": 5, "extra": "x"}]
    assert getattr(table, verb)(new, merge_schema=True, dry_run=True, **extra).rows_inserted == 1
    assert table.metadata_location == before
    getattr(table, verb)(new, merge_schema=True, **extra)
    assert table.scan(where="extra = 'x'").count() == 1


@pytest.mark.parametrize("verb", ["append", "overwrite", "upsert", "replace_partitions"])
def test_one_commit_id_is_one_number_of_rows(lake: frazil.Lake, verb: str) -> None:
    table = lake.create_table("s.i", "id bigint not null, v bigint", keys=["id"], partition_by=["v"])
    extra: dict[str, Any] = {"where": "true"} if verb == "overwrite" else {}
    getattr(table, verb)(rows((1, 1)), commit_id="once", **extra)
    assert getattr(table, verb)(rows((1, 1)), commit_id="once", **extra).already_committed
    with pytest.raises(frazil.InvalidInput, match="already used"):
        getattr(table, verb)(rows((1, 1), (2, 2)), commit_id="once", **extra)


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.update({None: 1}, "true"),
        lambda table: table.update({"v": "'\ud800'"}, "true"),
        lambda table: table.delete("v = '\ud800'"),
        lambda table: table.cherry_pick(2**80),
        lambda table: table.append(rows((9, 9)), snapshot_properties={"a": "\ud800"}),
        lambda table: table.append(rows((9, 9)), options=5),
        lambda table: table.append(rows((9, 9)), options={1: 2}),
        lambda table: table.append(rows((9, 9)), on_phase=5),
        lambda table: table.append(rows((9, 9)), dry_run="no"),
        lambda table: table.row_delta(positions="x"),
        lambda table: table.row_delta(positions={table.files()[0].path: [0.5]}),
        lambda table: table.row_delta(positions={table.files()[0].path: None}),
    ],
)
def test_strange_input_is_refused_with_a_sentence(table: frazil.Table, call: Any) -> None:
    table.append(rows((1, 1)))
    before = table.metadata_location
    with pytest.raises(frazil.FrazilError):
        call(table)
    assert table.metadata_location == before


# Delete files that a compaction removes (P36), and older files that other writers add


FOUR = ((1, 0), (2, 0), (3, 0), (4, 0))
NOTHING_SMALL = {"min-input-files": "100"}
"""Few files may stay alone: a compaction is left with the delete files that nothing needs."""


def by_key(table: Any) -> str:
    """How many keys the delete files of the newest snapshot name."""
    return str(table.history()[-1].summary["total-equality-deletes"])


def set_apart(table: frazil.Table) -> None:
    """A delete by key of row 1 comes, and then every file that it applies to is replaced by younger copies."""
    table.upsert(rows((1, 5)), mode="equality")
    table.update({"v": "9"}, "id = 3", mode="copy-on-write")
    assert by_key(table) == "1"


@pytest.mark.parametrize("options", [{}, NOTHING_SMALL], ids=["with files", "deletes alone"])
def test_a_delete_by_key_stays_if_an_older_copy_was_added_concurrently(
    lake: frazil.Lake, table: frazil.Table, options: dict[str, str]
) -> None:
    table.append(rows(*FOUR))
    older = lake.transaction()
    older.table("s.t").update({"v": "7"}, "id = 2", mode="copy-on-write")
    set_apart(table)
    with losing_a_race(lake, older.commit):
        done = table.compact(options=options, retry=QUICK)
    assert pairs(table) == [(1, 5), (2, 7), (3, 9), (4, 0)]
    assert by_key(table) == "1"
    assert done.changed == (not options)
    table.compact()
    assert pairs(table) == [(1, 5), (2, 7), (3, 9), (4, 0)]
    assert by_key(table) == "0"


def test_a_delete_by_key_goes_if_the_older_copy_goes_with_it(lake: frazil.Lake, table: frazil.Table) -> None:
    table.append(rows(*FOUR))
    older = lake.transaction()
    older.table("s.t").update({"v": "7"}, "id = 2", mode="copy-on-write")
    table.upsert(rows((1, 5)), mode="equality")
    with losing_a_race(lake, older.commit):
        assert table.compact(retry=QUICK).attempts == 2
    assert pairs(table) == [(1, 5), (2, 7), (3, 0), (4, 0)]
    assert by_key(table) == "0"


@pytest.mark.parametrize("options", [{}, NOTHING_SMALL], ids=["with files", "deletes alone"])
def test_a_delete_by_key_goes_beside_younger_rows_with_its_key(
    lake: frazil.Lake, table: frazil.Table, options: dict[str, str]
) -> None:
    table.append(rows(*FOUR))
    set_apart(table)
    with losing_a_race(lake, lambda: table.append(rows((1, 8)))):
        assert table.compact(options=options, retry=QUICK).attempts == 2
    assert pairs(table) == [(1, 5), (1, 8), (2, 0), (3, 9), (4, 0)]
    assert by_key(table) == "0"


LATE: dict[str, tuple[Any, list[tuple[int, int]]]] = {
    "update": (lambda mine: mine.update({"v": "7"}, "id = 2", mode="copy-on-write"), [(2, 7)]),
    "delete": (lambda mine: mine.delete("id = 2", mode="copy-on-write"), []),
    "upsert": (lambda mine: mine.upsert(rows((2, 7)), mode="copy-on-write"), [(2, 7)]),
}


@pytest.mark.parametrize("late", LATE)
def test_a_row_deleted_by_key_does_not_come_back_after_its_file_was_compacted(
    lake: frazil.Lake, table: frazil.Table, late: str
) -> None:
    verb, result = LATE[late]
    table.append(rows(*FOUR))
    older = lake.transaction()
    verb(older.table("s.t"))
    table.upsert(rows((1, 5)), mode="equality")
    table.compact()
    assert by_key(table) == "0"
    older.commit()
    assert pairs(table) == [(1, 5), *result, (3, 0), (4, 0)]


@pytest.mark.parametrize("late", LATE)
def test_a_row_deleted_by_key_does_not_come_back_after_the_delete_alone_was_taken_out(
    lake: frazil.Lake, table: frazil.Table, late: str
) -> None:
    verb, result = LATE[late]
    table.append(rows(*FOUR))
    older = lake.transaction(isolation="snapshot")
    verb(older.table("s.t"))
    set_apart(table)
    done = table.compact(options=NOTHING_SMALL)
    assert (done.changed, by_key(table)) == (True, "0")
    older.commit()
    assert pairs(table) == [(1, 5), *result, (3, 9), (4, 0)]


@pytest.mark.parametrize("late", LATE)
def test_a_row_deleted_by_key_does_not_come_back_from_a_file_that_was_not_compacted(
    lake: frazil.Lake, table: frazil.Table, late: str
) -> None:
    verb, result = LATE[late]
    table.append(rows((11, 0), (12, 0)))
    table.append(rows(*FOUR))
    older = lake.transaction()
    verb(older.table("s.t"))
    table.upsert(rows((1, 5), (11, 5)), mode="equality")
    assert table.compact(where="id > 10").changed
    assert by_key(table) == "2"
    older.commit()
    assert pairs(table) == [(1, 5), *result, (3, 0), (4, 0), (11, 5), (12, 0)]
    table.compact()
    assert by_key(table) == "0"
    assert pairs(table) == [(1, 5), *result, (3, 0), (4, 0), (11, 5), (12, 0)]


def test_a_delete_by_key_stays_if_the_table_went_back_to_where_it_is_needed(table: frazil.Table) -> None:
    table.append(rows(*FOUR))
    needed = table.upsert(rows((1, 5)), mode="equality").snapshot_id
    assert needed is not None
    table.update({"v": "9"}, "id = 3", mode="copy-on-write")
    back = once(Phase.HEAD_READ, lambda: table.rollback_to(needed))
    assert not table.compact(options=NOTHING_SMALL, retry=QUICK, on_phase=back).changed
    assert pairs(table) == [(1, 5), (2, 0), (3, 0), (4, 0)]


def test_a_transactions_own_delete_by_key_stays_for_rows_that_came_before_it(
    lake: frazil.Lake, table: frazil.Table
) -> None:
    table.append(rows(*FOUR))
    with lake.transaction() as tx:
        mine = tx.table("s.t")
        mine.upsert(rows((1, 5)), mode="equality")
        mine.compact()
        table.append(rows((1, 8)))
    assert pairs(table) == [(1, 5), (2, 0), (3, 0), (4, 0)]
    with lake.transaction() as tx:
        mine = tx.table("s.t")
        mine.upsert(rows((2, 5)), mode="equality")
        mine.compact()
    assert by_key(table) == "0"
    assert pairs(table) == [(1, 5), (2, 5), (3, 0), (4, 0)]


def test_two_removals_of_the_same_delete_file_make_one_snapshot(lake: frazil.Lake, table: frazil.Table) -> None:
    table.append(rows(*FOUR))
    set_apart(table)
    count = len(table.history())
    with losing_a_race(lake, lambda: table.compact(options=NOTHING_SMALL)):
        assert not table.compact(options=NOTHING_SMALL, retry=QUICK).changed
    assert len(table.history()) == count + 1
    assert by_key(table) == "0"

"""Transactions on one table: own writes, one commit, the pinned instant, the read set, and the end of a life."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest

import frazil
from surface.matrix import Isolation, check_evidence, files_of, named_files, rows_of

DDL = "id bigint not null, part string, v bigint"
NAME = "ns.t"
ChangeMode = Literal["merge-on-read", "copy-on-write"]


def row(key: int, part: str, v: int) -> dict[str, Any]:
    return {"id": key, "part": part, "v": v}


A = [row(1, "A", 10), row(2, "A", 20)]
B = [row(11, "B", 110), row(12, "B", 120)]


@pytest.fixture
def lake() -> frazil.Lake:
    lake = frazil.connect("memory://")
    lake.create_namespace("ns")
    return lake


@pytest.fixture
def table(lake: frazil.Lake) -> frazil.Table:
    table = lake.create_table(NAME, DDL, partition_by=["part"], keys=["id"])
    table.append([*A, *B])
    return table


def ids(table: Any, **scan: Any) -> list[int]:
    return [each["id"] for each in rows_of(table, **scan)]


def metadata_files(table: frazil.Table) -> int:
    return sum(path.endswith(".metadata.json") for path in files_of(table))


# Own writes and one commit


def test_only_the_transaction_itself_reads_its_writes(lake: frazil.Lake, table: frazil.Table) -> None:
    with lake.transaction() as tx:
        mine = tx.table(NAME)
        mine.append([row(3, "A", 30)])
        assert ids(mine) == [1, 2, 3, 11, 12]
        mine.update(set={"v": "v + 1"}, where="id in (2, 3)")
        mine.delete("id = 1")
        mine.upsert([row(3, "B", 0), row(13, "B", 130)])
        assert rows_of(mine) == [row(2, "A", 21), row(3, "B", 0), *B, row(13, "B", 130)]
        mine.overwrite([row(21, "A", 210)], where="part = 'A'")
        mine.replace_partitions([row(31, "B", 310)])
        assert rows_of(mine) == [row(21, "A", 210), row(31, "B", 310)]
        assert mine.scan(where="v > 300").count() == 1
        assert rows_of(table) == [*A, *B]
    assert rows_of(table) == [row(21, "A", 210), row(31, "B", 310)]


def test_several_verbs_are_one_commit_of_chained_snapshots(lake: frazil.Lake, table: frazil.Table) -> None:
    before, history = metadata_files(table), table.history()
    with lake.transaction() as tx:
        tx.table(NAME).append([row(3, "A", 30)])
        tx.table(NAME).delete("id = 1")
        # In a file that the delete has written: it needs a snapshot of its own.
        tx.table(NAME).update(set={"v": "0"}, where="id in (2, 11)")
    assert metadata_files(table) == before + 1
    after = table.history()
    assert after[: len(history)] == history
    assert len(after) == len(history) + 3
    for older, newer in zip(after[-4:], after[-3:], strict=False):
        assert newer.parent_snapshot_id == older.snapshot_id
        assert newer.sequence_number == older.sequence_number + 1
    assert rows_of(table) == [row(2, "A", 0), row(3, "A", 30), row(11, "B", 0), B[1]]
    assert [len(rows_of(table, snapshot=each.snapshot_id)) for each in after[-4:]] == [4, 5, 4, 4]
    assert files_of(table) == named_files(table)


def test_several_verbs_land_over_concurrent_changes(lake: frazil.Lake, table: frazil.Table) -> None:
    with lake.transaction() as tx:
        mine = tx.table(NAME)
        mine.append([row(3, "A", 30)])
        mine.update(set={"v": "-1"}, where="id = 3")
        table.append([row(99, "C", 990)])
        mine.delete("id = 1", mode="merge-on-read")
        table.delete("id = 2", mode="merge-on-read")
        table.upsert([row(12, "B", 0)], mode="equality")
        mine.update(set={"v": "v + 1"}, where="id = 11", mode="merge-on-read")
    assert rows_of(table) == [row(3, "A", -1), row(11, "B", 111), row(12, "B", 0), row(99, "C", 990)]
    assert files_of(table) == named_files(table)


def test_verbs_that_touch_other_files_are_rebased_over_a_rewrite(lake: frazil.Lake, table: frazil.Table) -> None:
    table.append([row(3, "A", 30)])
    with lake.transaction() as tx:
        tx.table(NAME).append([row(4, "A", 40)])
        tx.table(NAME).delete("id = 1", mode="merge-on-read")
        tx.table(NAME).update(set={"v": "0"}, where="id = 12", mode="copy-on-write")
        table.compact()
    assert rows_of(table) == [A[1], row(3, "A", 30), row(4, "A", 40), B[0], row(12, "B", 0)]
    assert files_of(table) == named_files(table)


def test_verbs_that_build_on_each_others_files_are_not(lake: frazil.Lake, table: frazil.Table) -> None:
    table.append([row(3, "A", 30)])
    tx = lake.transaction()
    tx.table(NAME).delete("id = 1", mode="copy-on-write")
    tx.table(NAME).update(set={"v": "0"}, where="id = 2", mode="copy-on-write")
    done = table.compact()
    with pytest.raises(frazil.ConflictError) as caught:
        tx.commit()
    check_evidence(caught.value, done.snapshot_id)
    assert rows_of(table) == [*A, row(3, "A", 30), *B]
    assert files_of(table) == named_files(table)


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_rows_of_ones_own_can_be_changed_again(lake: frazil.Lake, table: frazil.Table, mode: ChangeMode) -> None:
    with lake.transaction() as tx:
        mine = tx.table(NAME)
        mine.append([row(3, "A", 30), row(4, "A", 40), row(5, "A", 50)])
        mine.delete("id = 4", mode=mode)
        mine.update(set={"v": "v + 1"}, where="id = 5", mode=mode)
        mine.update(set={"v": "v + 1"}, where="id in (1, 5)", mode=mode)
        mine.update(set={"v": "v + 1"}, where="id = 1", mode=mode)
        mine.delete("id = 3", mode=mode)
    assert rows_of(table) == [row(1, "A", 12), A[1], row(5, "A", 52), *B]


def test_a_transaction_writes_a_branch(lake: frazil.Lake, table: frazil.Table) -> None:
    table.create_branch("audit")
    with lake.transaction() as tx:
        tx.table(NAME).append([row(3, "A", 30)], branch="audit")
        tx.table(NAME).delete("id = 1", branch="audit")
        assert ids(tx.table(NAME), ref="audit") == [2, 3, 11, 12]
    assert (ids(table), ids(table, ref="audit")) == ([1, 2, 11, 12], [2, 3, 11, 12])


def test_what_is_asked_of_a_transactions_table_is_as_of_its_instant(lake: frazil.Lake, table: frazil.Table) -> None:
    with lake.transaction(isolation="snapshot") as tx:
        mine = tx.table(NAME)
        table.add_column("extra", "int")
        table.append([row(3, "A", 30)])
        assert "extra" not in mine.scan().schema.names
        assert ids(mine) == [1, 2, 11, 12]
        mine.append([row(4, "A", 40)])
    assert [(each["id"], each["extra"]) for each in rows_of(table)] == [(key, None) for key in (1, 2, 3, 4, 11, 12)]


# Nothing happens


def test_a_rollback_leaves_nothing(lake: frazil.Lake, table: frazil.Table) -> None:
    files, location = files_of(table), table.metadata_location
    with lake.transaction() as tx:
        mine = tx.table(NAME)
        mine.append([row(3, "A", 30)])
        mine.delete("id = 1", mode="copy-on-write")
        mine.update(set={"v": "0"}, where="id = 2", mode="merge-on-read")
        mine.upsert([row(12, "A", 0)])
        tx.rollback()
    assert (files_of(table), table.metadata_location) == (files, location)
    assert rows_of(table) == [*A, *B]


def test_an_exception_rolls_back(lake: frazil.Lake, table: frazil.Table) -> None:
    files, location = files_of(table), table.metadata_location

    def fall_over() -> None:
        with lake.transaction() as tx:
            tx.table(NAME).append([row(3, "A", 30)])
            tx.table(NAME).delete("id = 1", mode="copy-on-write")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fall_over()
    assert (files_of(table), table.metadata_location) == (files, location)


def test_a_verb_that_is_refused_leaves_the_transaction_usable(lake: frazil.Lake, table: frazil.Table) -> None:
    with lake.transaction() as tx:
        tx.table(NAME).append([row(3, "A", 30)])
        with pytest.raises(frazil.InvalidInput):
            tx.table(NAME).delete("nope = 1")
        with pytest.raises(frazil.InvalidInput):
            tx.table(NAME).overwrite([row(4, "B", 40)], where="part = 'A'")
    assert ids(table) == [1, 2, 3, 11, 12]
    assert files_of(table) == named_files(table)


def test_without_writes_there_is_no_commit(lake: frazil.Lake, table: frazil.Table) -> None:
    location = table.metadata_location
    with lake.transaction():
        pass
    with lake.transaction() as tx:
        assert ids(tx.table(NAME)) == [1, 2, 11, 12]
        # What was only read cannot conflict with anything: the reader saw one snapshot.
        table.append([row(3, "A", 30)])
        location = table.metadata_location
    with lake.transaction() as tx:
        tx.table(NAME).delete("id = 999")
        tx.table(NAME).append([])
    assert table.metadata_location == location
    assert len(table.history()) == 2


# Life


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_an_ended_transaction_is_not_used_again(lake: frazil.Lake, table: frazil.Table, end: str) -> None:
    tx = lake.transaction()
    mine = tx.table(NAME)
    mine.append([row(3, "A", 30)])
    getattr(tx, end)()
    after = rows_of(table)
    uses: list[Callable[[], object]] = [
        tx.commit,
        lambda: tx.table(NAME),
        lambda: mine.append([row(4, "A", 40)]),
        lambda: mine.delete("true"),
        mine.scan,
    ]
    for use in uses:
        with pytest.raises(frazil.InvalidInput):
            use()
    assert rows_of(table) == after


def test_commit_inside_the_block_is_enough(lake: frazil.Lake, table: frazil.Table) -> None:
    with lake.transaction() as tx:
        tx.table(NAME).append([row(3, "A", 30)])
        tx.commit()
        assert ids(table) == [1, 2, 3, 11, 12]
    assert len(table.history()) == 2


def test_a_transaction_that_failed_has_ended(lake: frazil.Lake, table: frazil.Table) -> None:
    tx = lake.transaction()
    tx.table(NAME).update(set={"v": "0"}, where="id = 1")
    theirs = table.update(set={"v": "1"}, where="id = 1")
    files = named_files(table)
    with pytest.raises(frazil.ConflictError) as caught:
        tx.commit()
    check_evidence(caught.value, theirs.snapshot_id)
    with pytest.raises(frazil.InvalidInput):
        tx.commit()
    assert files_of(table) == files
    assert rows_of(table)[0] == row(1, "A", 1)


def test_bad_transactions_are_refused(lake: frazil.Lake, table: frazil.Table) -> None:
    with pytest.raises(frazil.InvalidInput, match="isolation"):
        lake.transaction(isolation="chaos")
    with pytest.raises(frazil.NoSuchTable, match="nope"), lake.transaction() as tx:
        tx.table("ns.nope")


# The pinned instant (P28)


def test_a_transaction_sees_all_tables_at_its_first_touch_of_any(lake: frazil.Lake, table: frazil.Table) -> None:
    other = lake.create_table("ns.other", DDL)
    other.append(A)
    tx = lake.transaction()
    other.append(B)
    first = tx.table(NAME)
    table.append([row(3, "A", 30)])
    other.append([row(3, "A", 30)])
    assert ids(first) == [1, 2, 11, 12]
    assert ids(tx.table("ns.other")) == [1, 2, 11, 12]
    tx.rollback()


# The read set (P22)

CHANGES: dict[str, Callable[[frazil.Table], frazil.Commit]] = {
    "a row is added": lambda table: table.append([row(3, "A", 30)]),
    "a row is deleted by position": lambda table: table.delete("id = 1", mode="merge-on-read"),
    "a row is deleted by copying": lambda table: table.delete("id = 1", mode="copy-on-write"),
    "files are removed by metadata": lambda table: table.delete("part = 'A'"),
    "a row is updated by position": lambda table: table.update(set={"v": "0"}, where="id = 1", mode="merge-on-read"),
    "a row is updated by copying": lambda table: table.update(set={"v": "0"}, where="id = 1", mode="copy-on-write"),
    "a row is replaced by key": lambda table: table.upsert([row(1, "A", 0)], mode="equality"),
    "a row is moved out": lambda table: table.update(set={"part": "'B'"}, where="id = 1"),
    "a row is moved out by key": lambda table: table.upsert([row(1, "B", 0)], mode="equality"),
    "a row is moved in": lambda table: table.update(set={"part": "'A'"}, where="id = 11"),
    "the partition is overwritten": lambda table: table.overwrite([row(5, "A", 50)], where="part = 'A'"),
    "the partition is replaced": lambda table: table.replace_partitions([row(5, "A", 50)]),
}
HARMLESS: dict[str, Callable[[frazil.Table], frazil.Commit]] = {
    "a row is added elsewhere": lambda table: table.append([row(13, "B", 130)]),
    "a row is deleted elsewhere": lambda table: table.delete("id = 11"),
    "a partition goes elsewhere": lambda table: table.delete("part = 'B'"),
    "a row is updated elsewhere": lambda table: table.update(set={"v": "0"}, where="id = 11"),
    "a key is replaced elsewhere": lambda table: table.upsert([row(11, "B", 0)], mode="equality"),
    "files are put together": lambda table: table.compact(),
    "a column is added": lambda table: table.add_column("extra", "int"),
    "a branch is written": lambda table: table.append([row(3, "A", 30)], branch="audit"),
}


def _copy_sum(lake: frazil.Lake, table: frazil.Table, isolation: Isolation, theirs: Callable[..., Any]) -> Any:
    """Read all of A, let another writer commit, then write what was read to C, which no other writer changes."""
    with lake.transaction(isolation=isolation) as tx:
        mine = tx.table(NAME)
        found = mine.scan(where="part = 'A'").to_arrow()
        done = theirs(table)
        mine.append([row(100, "C", sum(each["v"] for each in found.to_pylist()))])
        # Reading again gives the same.
        assert mine.scan(where="part = 'A'").to_arrow().sort_by("id") == found.sort_by("id")
    return done


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_transaction_read_must_still_hold_at_serializable(
    lake: frazil.Lake, table: frazil.Table, change: str
) -> None:
    winners: list[frazil.Commit] = []
    with pytest.raises(frazil.ConflictError) as caught:
        _copy_sum(lake, table, "serializable", lambda table: winners.append(CHANGES[change](table)))
    check_evidence(caught.value, winners[0].snapshot_id)
    assert 100 not in ids(table)
    assert files_of(table) == named_files(table)


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_transaction_read_may_change_at_snapshot(lake: frazil.Lake, table: frazil.Table, change: str) -> None:
    _copy_sum(lake, table, "snapshot", CHANGES[change])
    assert rows_of(table, where="part = 'C'") == [row(100, "C", 30)]


@pytest.mark.parametrize("change", HARMLESS)
def test_changes_of_other_rows_do_not_disturb(lake: frazil.Lake, table: frazil.Table, change: str) -> None:
    table.append([row(3, "A", 30)])
    table.create_branch("audit")
    _copy_sum(lake, table, "serializable", HARMLESS[change])
    assert rows_of(table, columns=["id", "v"], where="part = 'C'") == [{"id": 100, "v": 60}]


def test_a_transactions_own_writes_do_not_disturb_its_reads(lake: frazil.Lake, table: frazil.Table) -> None:
    with lake.transaction() as tx:
        mine = tx.table(NAME)
        assert mine.scan().count() == 4
        mine.update(set={"v": "0"}, where="part = 'A'")
        assert mine.scan(where="v = 0").count() == 2
        mine.delete("part = 'B'")
        table.add_column("extra", "int")
    assert [(each["id"], each["v"]) for each in rows_of(table)] == [(1, 0), (2, 0)]


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_of_two_that_skew_each_others_reads_one_fails(lake: frazil.Lake, table: frazil.Table, mode: ChangeMode) -> None:
    # Each may take its own on-call doctor off as long as the other one is still on.
    first, second = lake.transaction(), lake.transaction()
    assert first.table(NAME).scan(where="part = 'A'").count() == 2
    assert second.table(NAME).scan(where="part = 'B'").count() == 2
    first.table(NAME).delete("part = 'B'", mode=mode)
    second.table(NAME).delete("part = 'A'", mode=mode)
    first.commit()
    with pytest.raises(frazil.ConflictError):
        second.commit()
    assert ids(table) == [1, 2]


def test_at_snapshot_both_that_skew_each_others_reads_land(lake: frazil.Lake, table: frazil.Table) -> None:
    first, second = lake.transaction(isolation="snapshot"), lake.transaction(isolation="snapshot")
    assert first.table(NAME).scan(where="part = 'A'").count() == second.table(NAME).scan(where="part = 'B'").count()
    first.table(NAME).delete("part = 'B'")
    second.table(NAME).delete("part = 'A'")
    first.commit()
    second.commit()
    assert ids(table) == []


def test_two_that_insert_what_neither_found_cannot_both(lake: frazil.Lake, table: frazil.Table) -> None:
    both = [lake.transaction(), lake.transaction()]
    for number, tx in enumerate(both):
        assert tx.table(NAME).scan(where="id = 50").count() == 0
        tx.table(NAME).append([row(50, "A", number)])
    both[0].commit()
    with pytest.raises(frazil.ConflictError):
        both[1].commit()
    assert rows_of(table, where="id = 50") == [row(50, "A", 0)]


def test_many_counters_never_lose_a_count(lake: frazil.Lake, table: frazil.Table) -> None:
    """Read, add one, write: a failed transaction is repeated from a fresh read."""
    landed = 0
    for _ in range(5):
        open_now = [lake.transaction() for _ in range(3)]
        for tx in open_now:
            (found,) = rows_of(tx.table(NAME), where="id = 1")
            tx.table(NAME).update(set={"v": str(found["v"] + 1)}, where="id = 1")
        for tx in open_now:
            try:
                tx.commit()
                landed += 1
            except frazil.ConflictError:
                pass
    assert landed == 5
    assert rows_of(table)[0] == row(1, "A", 15)

"""Branches: write, audit, publish; pick one snapshot; go back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import frazil
from frazil.commit.context import Phase


@pytest.fixture
def lake() -> Iterator[frazil.Lake]:
    with frazil.connect("memory://") as lake:
        lake.create_namespace("s")
        yield lake


@pytest.fixture
def table(lake: frazil.Lake) -> frazil.Table:
    table = lake.create_table("s.t", "id bigint not null, v bigint", keys=["id"])
    table.append([{"id": number, "v": number} for number in range(4)])
    table.create_branch("audit")
    return table


def values(table: frazil.Table, ref: str | None = None) -> dict[int, int]:
    rows = table.scan(ref=ref).to_arrow().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["v"] for row in rows}


def test_what_is_written_to_a_branch_is_published_by_moving_main(table: frazil.Table) -> None:
    table.append([{"id": 9, "v": 9}], branch="audit")
    table.delete("id = 0", branch="audit", mode="merge-on-read")
    table.update({"v": "v + 10"}, "id = 1", branch="audit")
    assert values(table) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert values(table, "audit") == {1: 11, 2: 2, 3: 3, 9: 9}
    table.fast_forward("main", "audit")
    assert values(table) == {1: 11, 2: 2, 3: 3, 9: 9}


def test_p25_publishing_is_refused_when_main_went_its_own_way(table: frazil.Table) -> None:
    table.append([{"id": 9, "v": 9}], branch="audit")
    table.append([{"id": 8, "v": 8}])
    with pytest.raises(frazil.InvalidInput, match="main"):
        table.fast_forward("main", "audit")


def test_writes_to_two_branches_do_not_meet(lake: frazil.Lake, table: frazil.Table) -> None:
    with lake.transaction() as tx:
        mine = tx.table("s.t")
        table.delete("true")
        mine.update({"v": "0"}, "id = 1", branch="audit")
    assert values(table) == {}
    assert values(table, "audit") == {0: 0, 1: 0, 2: 2, 3: 3}


def test_a_branch_is_made_written_and_published_in_one_commit(lake: frazil.Lake, table: frazil.Table) -> None:
    versions = len(table.history())
    with lake.transaction() as tx:
        mine = tx.table("s.t")
        mine.create_branch("late")
        mine.append([{"id": 7, "v": 7}], branch="late")
        table.append([{"id": 8, "v": 8}], branch="audit")
        mine.fast_forward("main", "late")
    assert values(table)[7] == 7
    assert len(table.history()) == versions + 2


# Picking


def test_snapshots_are_picked_one_by_one_over_concurrent_changes_of_main(table: frazil.Table) -> None:
    appended = table.append([{"id": 9, "v": 9}], branch="audit")
    deleted = table.delete("id = 0", branch="audit")
    updated = table.update({"v": "v + 10"}, "id = 1", branch="audit", mode="merge-on-read")
    table.append([{"id": 8, "v": 8}])
    for snapshot_id, wanted in [
        (appended.snapshot_id, {0: 0, 1: 1, 2: 2, 3: 3, 8: 8, 9: 9}),
        (deleted.snapshot_id, {1: 1, 2: 2, 3: 3, 8: 8, 9: 9}),
        (updated.snapshot_id, {1: 11, 2: 2, 3: 3, 8: 8, 9: 9}),
    ]:
        assert snapshot_id is not None
        table.cherry_pick(snapshot_id)
        assert values(table) == wanted
        assert table.history()[-1].summary["source-snapshot-id"] == str(snapshot_id)
        with pytest.raises(frazil.InvalidInput, match="already in the history"):
            table.cherry_pick(snapshot_id)
    assert values(table, "audit") == {1: 11, 2: 2, 3: 3, 9: 9}


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_a_picked_delete_follows_its_row_over_a_compaction_of_main(table: frazil.Table, mode: str) -> None:
    deleted = table.delete("id = 0", branch="audit", mode=mode)  # type: ignore[arg-type]
    table.append([{"id": 8, "v": 8}])
    table.compact()
    assert deleted.snapshot_id is not None
    table.cherry_pick(deleted.snapshot_id)
    assert values(table) == {1: 1, 2: 2, 3: 3, 8: 8}


def test_a_picked_delete_of_a_row_that_main_changed_is_a_conflict(table: frazil.Table) -> None:
    deleted = table.delete("id = 0", branch="audit")
    table.update({"v": "100"}, "id = 0")
    assert deleted.snapshot_id is not None
    with pytest.raises(frazil.ConflictError) as caught:
        table.cherry_pick(deleted.snapshot_id)
    assert [each.check for each in caught.value.conflicts] == ["one owner for each row"]
    assert values(table) == {0: 100, 1: 1, 2: 2, 3: 3}
    # The files belong to the branch: a failed pick must not take them away.
    assert values(table, "audit") == {1: 1, 2: 2, 3: 3}


def test_two_picks_of_the_same_snapshot_add_its_rows_once(table: frazil.Table) -> None:
    appended = table.append([{"id": 9, "v": 9}], branch="audit")
    snapshot_id = appended.snapshot_id
    assert snapshot_id is not None
    table.append([{"id": 8, "v": 8}])

    def pick_first(phase: Phase, attempt: int) -> None:
        if phase is Phase.HEAD_READ and attempt == 1:
            table.cherry_pick(snapshot_id)

    with pytest.raises(frazil.ConflictError, match="already"):
        table.cherry_pick(snapshot_id, on_phase=pick_first)
    assert values(table)[9] == 9


def test_a_pick_that_rests_on_what_is_not_there_is_refused(table: frazil.Table) -> None:
    table.append([{"id": 9, "v": 9}], branch="audit")
    deleted = table.update({"v": "1"}, "id = 9", branch="audit", mode="merge-on-read")
    table.append([{"id": 8, "v": 8}])
    assert deleted.snapshot_id is not None
    with pytest.raises(frazil.InvalidInput, match="does not have"):
        table.cherry_pick(deleted.snapshot_id)
    with pytest.raises(frazil.InvalidInput, match="no snapshot 12"):
        table.cherry_pick(12)


def test_a_rolled_back_base_aborts_everything_that_read_it(lake: frazil.Lake, table: frazil.Table) -> None:
    first = table.history()[0].snapshot_id
    table.append([{"id": 9, "v": 9}])
    tx, blind = lake.transaction(), lake.transaction()
    tx.table("s.t").delete("id = 9")
    blind.table("s.t").append([{"id": 10, "v": 10}])
    table.rollback_to(first)
    with pytest.raises(frazil.ConflictError, match="history unbroken"):
        tx.commit()
    blind.commit()
    assert values(table) == {0: 0, 1: 1, 2: 2, 3: 3, 10: 10}


def test_partitions_are_listed_with_what_is_in_them(lake: frazil.Lake) -> None:
    table = lake.create_table("s.p", "id bigint, part string", partition_by=["part"])
    assert table.partitions() == []
    table.append([{"id": 1, "part": "a"}, {"id": 2, "part": None}])
    table.append([{"id": 3, "part": "a"}])
    found = {each.partition["part"]: (each.files, each.rows) for each in table.partitions()}
    assert found == {"a": (2, 2), None: (1, 1)}
    assert all(each.bytes > 0 for each in table.partitions())


# What a call returns


def test_a_move_of_a_branch_returns_the_snapshot_that_it_has_afterwards(table: frazil.Table) -> None:
    first = table.history()[0].snapshot_id
    ahead = table.append([{"id": 9, "v": 9}], branch="audit").snapshot_id
    assert ahead != first
    assert table.fast_forward("main", "audit").snapshot_id == ahead
    assert table.rollback_to(first).snapshot_id == first
    assert ahead is not None
    assert table.set_current_snapshot(ahead).snapshot_id == ahead
    assert table.rollback_to(first, branch="audit").snapshot_id == first
    unchanged = table.rollback_to(first, branch="audit")
    assert (unchanged.changed, unchanged.snapshot_id) == (False, first)
    assert table.create_branch("old", first).snapshot_id == first
    assert table.create_tag("v1", first).snapshot_id == first
    picked = table.cherry_pick(ahead, branch="old")
    assert picked.snapshot_id == table._source.metadata().ref_snapshot_id("old")


def test_a_repeated_rollback_returns_the_snapshot_of_the_first_call(table: frazil.Table) -> None:
    first = table.history()[0].snapshot_id
    table.append([{"id": 9, "v": 9}])
    done = table.rollback_to(first, commit_id="back")
    again = table.rollback_to(first, commit_id="back")
    assert (done.snapshot_id, again.snapshot_id, again.already_committed) == (first, first, True)
    assert not again.rolled_back

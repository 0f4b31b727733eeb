"""Snapshots expire: what is removed, what may still refer to it, and writers whose base expired (rule P18)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.commit.context import Phase
from frazil.format.times import milliseconds
from frazil.lake import Lake
from frazil.runtime import SYSTEM
from frazil.transaction import TransactionTable

FUTURE = 10**15
DAY_MS = 24 * 60 * 60 * 1000
NAME = "s.t"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[frazil.Lake]:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        yield lake


@pytest.fixture
def table(lake: frazil.Lake) -> frazil.Table:
    return filled(lake)


def filled(lake: frazil.Lake) -> frazil.Table:
    """Rows 0 to 3 in two files, each with itself as value."""
    lake.create_namespace("s")
    table = lake.create_table(NAME, "id bigint not null, v bigint", keys=["id"])
    for numbers in ((0, 1), (2, 3)):
        table.append([{"id": number, "v": number} for number in numbers])
    return table


def values(table: frazil.Table) -> dict[int, int]:
    rows = table.scan().to_arrow().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["v"] for row in rows}


def ids(table: frazil.Table) -> list[int]:
    return [each.snapshot_id for each in table.history()]


def files(lake: frazil.Lake, table: frazil.Table) -> set[str]:
    return {info.path for info in lake.storage.list(table.location)}


def head(table: frazil.Table) -> int:
    found = table.snapshot()
    assert found is not None
    return found.snapshot_id


# Clocks


def at(lake: frazil.Lake, moment_ms: Callable[[], int]) -> Lake:
    """The lake as a process with this clock has it open."""
    return Lake(lake._connection, replace(SYSTEM, now_ms=moment_ms))


def test_after_a_commit_by_a_clock_ahead_no_young_snapshot_expires(lake: frazil.Lake, table: frazil.Table) -> None:
    start = milliseconds(table.history()[-1].committed_at, "start")
    now = start + 8_000
    with at(lake, lambda: now) as right, at(lake, lambda: now + 10 * DAY_MS) as ahead:
        mine = right.table(NAME)
        mine.create_tag("young", max_ref_age_ms=DAY_MS)
        ahead.table(NAME).append([{"id": 10, "v": 10}])
        mine.append([{"id": 11, "v": 11}])
        known = ids(mine)
        assert not mine.expire_snapshots().changed
        assert (ids(mine), "young" in mine.refs) == (known, True)
        now += 6 * DAY_MS
        mine.expire_snapshots()
        assert (ids(mine), "young" in mine.refs) == (known[2:], False)
        now += 6 * DAY_MS
        mine.append([{"id": 12, "v": 12}])
        assert not mine.expire_snapshots().changed, "the newest are two days old by their own times"
        now += 6 * DAY_MS
        mine.expire_snapshots()
        assert len(ids(mine)) == 1


# The call


def test_old_snapshots_are_forgotten_and_their_files_may_stay(lake: frazil.Lake, table: frazil.Table) -> None:
    for number in range(10, 14):
        table.append([{"id": number, "v": number}])
    rows, before, names = values(table), ids(table), files(lake, table)
    done = table.expire_snapshots(FUTURE, retain_last=2, delete_files=False)
    assert (done.changed, done.snapshot_id) == (True, before[-1])
    assert done.expired is not None
    assert (done.expired.snapshots, done.expired.files_deleted) == (len(before) - 2, 0)
    assert ids(table) == before[-2:]
    assert values(table) == rows
    assert names <= files(lake, table)
    with pytest.raises(frazil.InvalidInput, match="expired"):
        table.scan(snapshot=before[0])
    with pytest.raises(frazil.InvalidInput, match="oldest known snapshot"):
        table.scan(as_of=0)


def test_nothing_to_expire_makes_no_new_version_and_keeps_its_id(lake: frazil.Lake, table: frazil.Table) -> None:
    location, names, known = table.metadata_location, files(lake, table), ids(table)
    done = table.expire_snapshots(commit_id="nightly")
    assert (done.changed, done.already_committed) == (False, False)
    assert (table.metadata_location, files(lake, table)) == (location, names)
    table.append([{"id": 9, "v": 9}])
    table.set_properties({"history.expire.max-snapshot-age-ms": "0"})
    again = table.expire_snapshots(commit_id="nightly")
    assert (again.already_committed, len(ids(table))) == (True, len(known) + 1)
    with pytest.raises(frazil.InvalidInput, match="another operation"):
        table.expire_snapshots(retain_last=1, commit_id="nightly")
    assert table.expire_snapshots(FUTURE, retain_last=1, commit_id="tonight").changed
    assert table.expire_snapshots(FUTURE, retain_last=1, commit_id="tonight").already_committed


@pytest.mark.parametrize("form", [int, dt.datetime.isoformat, lambda moment: moment])
def test_the_moment_is_a_time_with_a_zone(table: frazil.Table, form: Any) -> None:
    table.append([{"id": 9, "v": 9}])
    moment = table.history()[-1].committed_at
    older = form(moment) if form is not int else int(moment.timestamp() * 1000)
    table.expire_snapshots(older_than=older)
    assert len(ids(table)) == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"older_than": dt.datetime(2026, 1, 1)}, "older_than='2026-01-01 00:00:00' names no time zone"),  # noqa: DTZ001
        ({"older_than": "2026-01-01"}, "names no time zone"),
        ({"older_than": "yesterday"}, "older_than='yesterday' is not a time"),
        ({"older_than": True}, "is not a time"),
        ({"retain_last": 0}, "retain_last must be a whole number above 0, not 0"),
        ({"retain_last": "2"}, "not '2'"),
    ],
)
def test_bad_arguments_are_refused(table: frazil.Table, given: dict[str, Any], says: str) -> None:
    location = table.metadata_location
    with pytest.raises(frazil.InvalidInput, match=says):
        table.expire_snapshots(**given)
    assert table.metadata_location == location


def test_branches_and_tags_have_rules_of_their_own(table: frazil.Table) -> None:
    first = head(table)
    table.create_tag("start", max_ref_age_ms=10**12)
    table.create_branch("audit", min_snapshots_to_keep=2)
    second = table.append([{"id": 8, "v": 8}], branch="audit").snapshot_id
    third = table.append([{"id": 9, "v": 9}], branch="audit").snapshot_id
    table.append([{"id": 10, "v": 10}])
    newest = table.append([{"id": 11, "v": 11}]).snapshot_id
    table.expire_snapshots(FUTURE)
    assert set(ids(table)) == {first, second, third, newest}


# Expiry and refs, in both orders (R10)


def old_and_new(table: frazil.Table) -> int:
    old = head(table)
    table.append([{"id": 9, "v": 9}])
    return old


@pytest.mark.parametrize("verb", ["create_tag", "create_branch"])
def test_r10_expiry_keeps_what_was_referred_to_concurrently(lake: frazil.Lake, table: frazil.Table, verb: str) -> None:
    expiry_after_a_name(lake, table, verb)


@pytest.mark.parametrize("verb", ["create_tag", "create_branch"])
def test_r10_an_expired_snapshot_gets_no_name(lake: frazil.Lake, table: frazil.Table, verb: str) -> None:
    a_name_after_expiry(lake, table, verb)


def expiry_after_a_name(lake: frazil.Lake, table: frazil.Table, verb: str) -> None:
    old = old_and_new(table)
    late = lake.transaction()
    late.table(NAME).expire_snapshots(FUTURE)
    assert len(ids(late.table(NAME))) == 1  # type: ignore[arg-type]
    getattr(table, verb)("audit", old)
    late.commit()
    assert ids(table)[0] == old
    assert table.scan(ref="audit").count() == 4


def a_name_after_expiry(lake: frazil.Lake, table: frazil.Table, verb: str) -> None:
    old = old_and_new(table)
    late = lake.transaction()
    getattr(late.table(NAME), verb)("audit", old)
    table.expire_snapshots(FUTURE)
    with pytest.raises(frazil.ConflictError, match=f"snapshot {old} has expired") as caught:
        late.commit()
    assert [each.check for each in caught.value.conflicts] == ["refs unchanged"]
    assert "audit" not in table.refs


def test_two_expiries_of_one_snapshot_both_succeed(lake: frazil.Lake, table: frazil.Table) -> None:
    old_and_new(table)
    late = lake.transaction(commit_id="late")
    late.table(NAME).expire_snapshots(FUTURE)
    assert table.expire_snapshots(FUTURE).changed
    done = late.commit()
    assert done is not None
    assert not done.changed
    assert len(ids(table)) == 1


def test_expiry_and_writes_in_one_transaction(lake: frazil.Lake, table: frazil.Table) -> None:
    with lake.transaction() as tx:
        mine = tx.table(NAME)
        mine.append([{"id": 9, "v": 9}])
        mine.expire_snapshots(FUTURE)
        mine.update({"v": "v + 1"}, "id = 9")
    assert values(table)[9] == 10
    assert len(ids(table)) == 2
    assert table.pyiceberg().metadata.snapshot_log[-1].snapshot_id == head(table)


# A writer whose base expired concurrently (rules P18 and P25)

Write = Callable[[TransactionTable], object]
WRITES: dict[str, tuple[Write, dict[int, int]]] = {
    "append": (lambda t: t.append([{"id": 50, "v": 50}]), {0: 0, 1: 1, 2: 2, 3: 3, 50: 50}),
    "delete": (lambda t: t.delete("id = 1"), {0: 0, 2: 2, 3: 3}),
    "delete, merge-on-read": (lambda t: t.delete("id = 1", mode="merge-on-read"), {0: 0, 2: 2, 3: 3}),
    "update": (lambda t: t.update({"v": "100"}, "id = 1"), {0: 0, 1: 100, 2: 2, 3: 3}),
    "overwrite": (lambda t: t.overwrite([{"id": 1, "v": 7}], "id = 1"), {0: 0, 1: 7, 2: 2, 3: 3}),
    "upsert": (lambda t: t.upsert([{"id": 1, "v": 7}]), {0: 0, 1: 7, 2: 2, 3: 3}),
    "upsert, position": (lambda t: t.upsert([{"id": 1, "v": 7}], mode="position"), {0: 0, 1: 7, 2: 2, 3: 3}),
    "compact": (lambda t: t.compact(), {0: 0, 1: 1, 2: 2, 3: 3}),
}


def five_more(table: frazil.Table) -> None:
    for number in range(10, 15):
        table.append([{"id": number, "v": number}])


MORE = {number: number for number in range(10, 15)}


def expired_since(lake: frazil.Lake, write: Write, others: Callable[[frazil.Table], object], kept: int = 1) -> None:
    """Commit a write after other commits, when all snapshots before the last ones have expired."""
    table = lake.table(NAME)
    base = head(table)
    late = lake.transaction()
    write(late.table(NAME))
    others(table)
    table.expire_snapshots(FUTURE, retain_last=kept)
    assert base not in ids(table)
    late.commit()


@pytest.mark.parametrize("kept", [1, 3, 5])
@pytest.mark.parametrize("name", WRITES)
def test_p18_a_write_lands_over_an_expired_base_where_nothing_conflicts(
    lake: frazil.Lake, table: frazil.Table, name: str, kept: int
) -> None:
    write, expected = WRITES[name]
    expired_since(lake, write, five_more, kept)
    assert values(table) == expected | MORE


@pytest.mark.parametrize("summaries", [True, False])
@pytest.mark.parametrize("name", [each for each in WRITES if each not in ("append", "upsert")])
def test_p18_a_write_over_an_expired_base_does_not_land_unchecked(
    lake: frazil.Lake, table: frazil.Table, name: str, summaries: bool
) -> None:
    def others(table: frazil.Table) -> None:
        table.update({"v": "v + 1"}, "id = 1") if name != "compact" else table.compact()
        five_more(table)
        if not summaries:
            forget_changes(lake, table)

    with pytest.raises(frazil.ConflictError):
        expired_since(lake, WRITES[name][0], others)
    assert values(table) == {0: 0, 1: 1 if name == "compact" else 2, 2: 2, 3: 3} | MORE


def forget_changes(lake: frazil.Lake, table: frazil.Table) -> None:
    lake.catalog.store.changes.forget(table.uuid)  # type: ignore[attr-defined]


def test_p18_added_rows_that_a_delete_would_have_seen_count_after_their_snapshot_expired(
    lake: frazil.Lake, table: frazil.Table
) -> None:
    def others(table: frazil.Table) -> None:
        table.append([{"id": 90, "v": 1}])
        five_more(table)

    with pytest.raises(frazil.ConflictError, match="match what this"):
        expired_since(lake, lambda mine: mine.delete("v = 1"), others)
    assert values(table)[90] == 1


def test_p23_an_append_finds_deletes_whose_snapshots_expired(lake: frazil.Lake, table: frazil.Table) -> None:
    def others(table: frazil.Table) -> None:
        table.delete("id >= 50 or id = 0")
        five_more(table)

    rows = [{"id": 50, "v": 50}, {"id": 40, "v": 40}]
    with pytest.raises(frazil.ConflictError, match="a concurrent delete"):
        expired_since(lake, lambda mine: mine.append(rows), others)
    expired_since(lake, lambda mine: mine.append(rows, on_deleted="keep"), lambda table: table.delete("id >= 10"))
    assert values(table) == {1: 1, 2: 2, 3: 3, 40: 40, 50: 50}


def test_p18_a_delete_follows_its_row_over_a_compaction_that_expired(lake: frazil.Lake, table: frazil.Table) -> None:
    def others(table: frazil.Table) -> None:
        table.compact()
        five_more(table)

    expired_since(lake, lambda mine: mine.delete("id = 1", mode="merge-on-read"), others)
    assert values(table) == {0: 0, 2: 2, 3: 3} | MORE


def test_p22_rows_that_a_transaction_read_count_after_their_snapshot_expired(
    lake: frazil.Lake, table: frazil.Table
) -> None:
    def mine(mine: TransactionTable) -> None:
        mine.scan(where="id = 1").to_arrow()
        mine.append([{"id": 60, "v": 60}])

    def others(table: frazil.Table) -> None:
        table.delete("id = 1")
        five_more(table)

    with pytest.raises(frazil.ConflictError):
        expired_since(lake, mine, others)
    expired_since(lake, mine, lambda table: table.append([{"id": 70, "v": 70}]))
    assert 60 in values(table)


def test_p18_a_base_whose_files_were_removed_is_said_to_have_expired(lake: frazil.Lake, table: frazil.Table) -> None:
    base = table.snapshot()
    assert base is not None
    gone = base.manifest_list
    assert gone is not None

    def others(table: frazil.Table) -> None:
        five_more(table)
        lake.storage.delete([gone])
        lake.storage.parsed = type(lake.storage.parsed)()

    with pytest.raises(frazil.ConflictError, match="has expired and its files were removed") as caught:
        expired_since(lake, lambda mine: mine.delete("id = 1"), others)
    assert "retry the delete" in str(caught.value)
    assert values(table) == {0: 0, 1: 1, 2: 2, 3: 3} | MORE


def test_p25_a_base_that_was_rolled_back_before_it_expired_is_not_taken_for_an_expired_one(
    lake: frazil.Lake, table: frazil.Table
) -> None:
    def others(table: frazil.Table) -> None:
        table.rollback_to(ids(table)[0])

    with pytest.raises(frazil.ConflictError, match="no longer in the history of 'main'"):
        expired_since(lake, lambda mine: mine.delete("id = 1"), others, kept=5)
    assert values(table) == {0: 0, 1: 1}


def test_a_snapshot_that_expired_while_it_was_picked_is_not_put_into_the_table(table: frazil.Table) -> None:
    table.create_branch("audit")
    picked = table.append([{"id": 60, "v": 60}], branch="audit").snapshot_id
    assert picked is not None
    table.append([{"id": 70, "v": 70}])

    def expire(phase: Phase, attempt: int) -> None:
        if phase is Phase.HEAD_READ and attempt == 1:
            table.drop_branch("audit")
            table.expire_snapshots(FUTURE)

    with pytest.raises(frazil.ConflictError, match=f"snapshot {picked} to cherry-pick has expired"):
        table.cherry_pick(picked, on_phase=expire)
    assert 60 not in values(table)


# On Postgres


def test_expiry_on_postgres(postgres_uri: str, tmp_path: Path) -> None:
    with frazil.connect(postgres_uri, warehouse=str(tmp_path / "warehouse")) as lake:
        table = filled(lake)
        expired_since(lake, WRITES["delete"][0], five_more)
        assert values(table) == WRITES["delete"][1] | MORE
        a_name_after_expiry(lake, table, "create_tag")
        old = head(table)
        late = lake.transaction()
        late.table(NAME).expire_snapshots(FUTURE)
        table.append([{"id": 99, "v": 99}])
        table.create_tag("audit", old)
        late.commit()
        assert ids(table) == [old, head(table)]

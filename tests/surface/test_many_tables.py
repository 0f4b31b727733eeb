"""Transactions over several tables: one swap of all, guards for those only read, and what is refused (rule P40)."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.catalog.base import CommitRecord, Committed, Stale, Unknown
from frazil.commit.context import Phase
from frazil.commit.queued_writer import contention_of, place_of
from frazil.format.metadata import TableMetadata
from frazil.model import Ident
from frazil.runtime import SYSTEM
from frazil.transaction import Transaction
from surface.matrix import files_of, rows_of
from surface.three_tables import DATABASES, DDL, heads, held, move, row, stray_files, three_tables, total, values


@pytest.fixture(params=DATABASES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[frazil.Lake]:
    with three_tables(request, tmp_path, request.param) as lake:
        yield lake


# One commit


def test_all_tables_change_in_one_commit(lake: frazil.Lake) -> None:
    before = heads(lake)
    with lake.transaction(commit_id="transfer-1") as tx:
        move(tx)
        assert values(lake, "s.a")[1] == 10, "not before the commit"
    done = tx.result
    assert isinstance(done, frazil.TransactionCommit)
    assert (done.commit_id, done.attempts, done.already_committed, done.changed) == ("transfer-1", 1, False, True)
    assert list(done.tables) == ["s.a", "s.b", "s.c"]
    assert (done.tables["s.a"].rows_updated, done.tables["s.c"].rows_inserted) == (1, 1)
    for name, commit in done.tables.items():
        assert lake.table(name).history()[-1].snapshot_id == commit.snapshot_id
        assert stray_files(lake, name) == set()
    assert {name for name, at in heads(lake).items() if at != before[name]} == {"s.a", "s.b", "s.c"}
    assert (values(lake, "s.a")[1], values(lake, "s.b")[1], 101 in values(lake, "s.c")) == (9, 11, True)


def test_one_written_table_gives_a_commit_as_before(lake: frazil.Lake) -> None:
    with lake.transaction() as tx:
        count = tx.table("s.b").scan().count()
        tx.table("s.a").append([row(3, count)])
    assert isinstance(tx.result, frazil.Commit)
    assert values(lake, "s.a")[3] == 2


def test_own_writes_are_read_in_every_table(lake: frazil.Lake) -> None:
    with lake.transaction() as tx:
        move(tx, 5)
        assert sum(each["v"] for name in ("s.a", "s.b") for each in rows_of(tx.table(name))) == 60
        assert tx.table("s.c").scan(where="id = 105").count() == 1


def test_an_empty_transaction_commits_nothing(lake: frazil.Lake) -> None:
    before = heads(lake)
    with lake.transaction() as tx:
        tx.table("s.a").scan().count()
        tx.table("s.b").scan().count()
    assert tx.result is None
    assert heads(lake) == before


def test_p40_rolling_back_leaves_no_file_in_any_table(lake: frazil.Lake) -> None:
    files = {name: files_of(lake.table(name)) for name in lake.tables()}

    def fails() -> None:
        with lake.transaction() as tx:
            move(tx)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert {name: files_of(lake.table(name)) for name in lake.tables()} == files


# With the group commit


@contextmanager
def queued_writers(lake: frazil.Lake, *calls: Callable[..., frazil.Commit]) -> Iterator[list[Future[frazil.Commit]]]:
    """Each call has queued its commit, and waits for nothing until the block ends. The commit locks are free inside."""
    locks, go = lake.catalog.locks, threading.Event()
    assert locks is not None
    held = [locks.try_lock(ident) for ident in sorted(lake.catalog.instant() or ())]
    queued = threading.Semaphore(0)

    def on_phase(phase: Phase, _attempt: int) -> None:
        if phase is Phase.QUEUED:
            queued.release()
            assert go.wait(60)

    assert lake.catalog.queue is not None
    for ident in lake.tables():
        place = place_of(lake.catalog.name, Ident.parse(ident), lake.catalog.load(Ident.parse(ident)).metadata.uuid)
        contention_of(lake.catalog.queue).saw_others(place, SYSTEM.monotonic() + 60)
    with ThreadPoolExecutor(len(calls)) as pool:
        try:
            waiting = [pool.submit(call, on_phase=on_phase) for call in calls]
            for _ in calls:
                assert queued.acquire(timeout=60)
            for release in held:
                assert release is not None
                release()
            yield waiting
        finally:
            go.set()


def test_p40_writers_that_wait_are_committed_with_a_transaction_that_leads(lake: frazil.Lake) -> None:
    def lose() -> None:
        # With one try it goes past the queue.
        lake.table("s.b").append([row(9, 0)], retry=frazil.Retry(tries=1))

    appends = [partial(lake.table(name).append, [row(key, 0)]) for name, key in (("s.a", 5), ("s.a", 6), ("s.b", 5))]
    tx = held(lake, Phase.PREPARED, lose)
    move(tx)
    with queued_writers(lake, *appends, partial(lake.table("s.b").upsert, [row(2, 21)])) as waiting:
        done = tx.commit()
        assert isinstance(done, frazil.TransactionCommit)
        before = heads(lake)
    others = [each.result() for each in waiting]
    assert heads(lake) == before, "nothing was left to commit"
    assert (done.attempts, {name: each.group_size for name, each in done.tables.items()}) == (
        2,
        {"s.a": 3, "s.b": 3, "s.c": 1},
    )
    assert [each.group_size for each in others] == [3, 3, 3, 3]
    assert sorted(values(lake, "s.a").items()) == [(1, 9), (2, 20), (5, 0), (6, 0)]
    assert sorted(values(lake, "s.b").items()) == [(1, 11), (2, 21), (5, 0), (9, 0)]


def test_p40_a_member_that_conflicts_with_the_transaction_fails_alone(lake: frazil.Lake) -> None:
    def lose() -> None:
        lake.table("s.b").append([row(9, 0)], retry=frazil.Retry(tries=1))

    tx = held(lake, Phase.PREPARED, lose)
    tx.table("s.a").delete("id in (2, 5)")
    move(tx)
    with queued_writers(
        lake, partial(lake.table("s.a").append, [row(5, 0)]), partial(lake.table("s.b").append, [row(5, 0)])
    ) as waiting:
        done = tx.commit()
    assert isinstance(done, frazil.TransactionCommit)
    assert {name: each.group_size for name, each in done.tables.items()} == {"s.a": 1, "s.b": 2, "s.c": 1}
    with pytest.raises(frazil.ConflictError):
        waiting[0].result()
    assert waiting[1].result().group_size == 2
    assert 5 not in values(lake, "s.a")


def test_p40_members_of_a_swap_that_was_lost_wait_on(lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    tx = lake.transaction(retry=frazil.Retry(tries=2))
    move(tx)
    swap = lake.catalog.swap

    def lose(*prepared: Any, guards: Any = ()) -> Any:
        if len(prepared) > 1:
            return Stale(None)
        return swap(*prepared, guards=guards)

    monkeypatch.setattr(lake.catalog, "swap", lose)
    append = partial(lake.table("s.a").append, [row(5, 0)])
    with queued_writers(lake, append) as waiting, pytest.raises(frazil.RetriesExhausted):
        tx.commit()
    assert waiting[0].result().group_size == 1
    assert sorted(values(lake, "s.a").items()) == [(1, 10), (2, 20), (5, 0)]
    assert stray_files(lake, "s.a") == stray_files(lake, "s.b") == set()


# Rebase or refuse, table by table


def test_p40_changes_that_commute_are_rebased_on_every_table(lake: frazil.Lake) -> None:
    def others() -> None:
        lake.table("s.a").update(set={"v": "99"}, where="id = 2")
        lake.table("s.b").append([row(7, 70)])

    with held(lake, Phase.PREPARED, others) as tx:
        move(tx)
    done = tx.result
    assert isinstance(done, frazil.TransactionCommit)
    assert done.attempts == 2
    assert values(lake, "s.a") == {1: 9, 2: 99}
    assert values(lake, "s.b") == {1: 11, 2: 20, 7: 70}
    for name in ("s.a", "s.b", "s.c"):
        assert stray_files(lake, name) == set(), "of the lost attempt"


@pytest.mark.parametrize("at", [Phase.HEAD_READ, Phase.TABLE_PREPARED, Phase.PREPARED])
@pytest.mark.parametrize("name", ["s.a", "s.b"])
def test_p40_one_conflict_refuses_the_whole_and_names_the_table(lake: frazil.Lake, name: str, at: Phase) -> None:
    files = {each: files_of(lake.table(each)) for each in lake.tables() if each != name}
    tx = held(lake, at, lambda: lake.table(name).update(set={"v": "0"}, where="id = 1"))
    move(tx)
    with pytest.raises(frazil.ConflictError, match=rf"{name}: ") as caught:
        tx.commit()
    assert {each.table for each in caught.value.conflicts} == {name}
    assert caught.value.retryable
    assert {each: files_of(lake.table(each)) for each in files} == files
    assert stray_files(lake, name) == set()
    assert values(lake, "s.c") == {1: 10, 2: 20}


# Tables that were only read (guards)


SKEWS = pytest.mark.parametrize(
    ("at", "mine", "theirs"),
    [
        (at, mine, theirs)
        for mine, theirs in (("s.b", "s.a"), ("s.a", "s.b"))
        for at in (None, Phase.HEAD_READ, Phase.TABLE_PREPARED, Phase.PREPARED)
    ],
)
"""When the other one commits (None: before the commit begins), and the table that each of the two writes to."""


def withdraw(tx: Transaction, name: str) -> None:
    """The rule of the accounts: together they may lose 30 as long as that leaves them 30."""
    if sum(each["v"] for each_name in ("s.a", "s.b") for each in rows_of(tx.table(each_name))) >= 60:
        tx.table(name).update(set={"v": "v - 30"}, where="id = 1")


def skew(lake: frazil.Lake, isolation: str, at: Phase | None, mine: str, theirs: str) -> Transaction:
    """Two transactions that each read both tables and write to one of them. Returns the one that commits second."""

    def other() -> None:
        with lake.transaction(isolation=isolation) as second:
            withdraw(second, theirs)

    tx = held(lake, at or Phase.HEAD_READ, (lambda: None) if at is None else other, isolation=isolation)
    withdraw(tx, mine)
    if at is None:
        other()
    return tx


@SKEWS
def test_p40_write_skew_over_two_tables_is_refused(lake: frazil.Lake, at: Phase | None, mine: str, theirs: str) -> None:
    with pytest.raises(frazil.ConflictError, match=rf"{theirs}: "):
        skew(lake, "serializable", at, mine, theirs).commit()
    assert total(lake, "s.a", "s.b") == 30


@SKEWS
def test_write_skew_over_two_tables_happens_at_snapshot_isolation(
    lake: frazil.Lake, at: Phase | None, mine: str, theirs: str
) -> None:
    tx = skew(lake, "snapshot", at, mine, theirs)
    # It also writes to s.c, so that this is a commit to several tables, with all of its phases.
    tx.table("s.c").append([row(3, 0)])
    tx.commit()
    assert total(lake, "s.a", "s.b") == 0


def test_p40_a_table_that_was_read_and_changed_elsewhere_is_rebased(lake: frazil.Lake) -> None:
    tx = held(lake, Phase.PREPARED, lambda: lake.table("s.b").append([row(50, 0)]))
    assert tx.table("s.b").scan(where="id < 10").count() == 2
    tx.table("s.a").append([row(3, 0)])
    done = tx.commit()
    assert isinstance(done, frazil.Commit)
    assert done.attempts == 2, "the guard had moved, and the rows that were read had not"


def test_p40_a_delete_that_found_nothing_is_checked_beside_other_tables(lake: frazil.Lake) -> None:
    """Alone it lands as if before the others; here the append to the other table would then be in the wrong order."""
    tx = held(lake, Phase.HEAD_READ, lambda: None)
    tx.table("s.a").delete("id = 77")
    tx.table("s.b").append([row(3, 0)])
    lake.table("s.a").append([row(77, 0)])
    with pytest.raises(frazil.ConflictError, match=r"s\.a: no added rows match my filter"):
        tx.commit()


def test_a_delete_that_finds_nothing_leaves_its_table_alone(lake: frazil.Lake) -> None:
    before = heads(lake)
    with lake.transaction(commit_id="once") as tx:
        tx.table("s.a").delete("id = 77")
        tx.table("s.b").append([row(3, 0)])
    done = tx.result
    assert isinstance(done, frazil.TransactionCommit)
    assert (done.tables["s.a"].changed, done.tables["s.b"].changed) == (False, True)
    assert heads(lake)["s.a"] == before["s.a"]


# Once


def test_p40_a_commit_id_is_found_again_in_any_table(lake: frazil.Lake) -> None:
    for n in range(2):
        with lake.transaction(commit_id="once") as tx:
            move(tx)
        done = tx.result
        assert isinstance(done, frazil.TransactionCommit)
        assert done.already_committed is (n == 1)
    assert (values(lake, "s.a")[1], values(lake, "s.b")[1]) == (9, 11)
    for name in ("s.a", "s.b", "s.c"):
        assert stray_files(lake, name) == set()
    with lake.transaction(commit_id="once") as tx:
        tx.table("s.a").append([row(3, 0)])
        tx.table("s.b").append([row(3, 0)])
        with pytest.raises(frazil.InvalidInput, match="another operation"):
            tx.commit()


@pytest.mark.parametrize("copy_lands_after", [1, 2, 3])
def test_p40_a_commit_that_lands_while_its_id_is_looked_up_is_found_in_every_table(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch, copy_lands_after: int
) -> None:
    looked_up: list[str] = []
    find = lake.catalog.find_commit

    def find_commit(metadata: TableMetadata, commit_id: str) -> CommitRecord | None:
        found = find(metadata, commit_id)
        looked_up.append(metadata.location)
        if len(looked_up) == copy_lands_after:
            monkeypatch.undo()
            with lake.transaction(commit_id="once") as copy:
                move(copy)
            monkeypatch.setattr(lake.catalog, "find_commit", find_commit)
        return found

    monkeypatch.setattr(lake.catalog, "find_commit", find_commit)
    with lake.transaction(commit_id="once") as tx:
        move(tx)
    monkeypatch.undo()
    done = tx.result
    assert isinstance(done, frazil.TransactionCommit)
    assert list(done.tables) == ["s.a", "s.b", "s.c"]
    assert done.already_committed
    assert all(each.already_committed for each in done.tables.values())
    assert (values(lake, "s.a")[1], values(lake, "s.b")[1]) == (9, 11)
    for name in ("s.a", "s.b", "s.c"):
        assert stray_files(lake, name) == set()


ANSWERS = ["landed", "never sent", "arrives later"]


@pytest.mark.parametrize("answer", ANSWERS)
def test_p40_an_unknown_outcome_is_resolved_for_all_tables(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    real, sent = lake.catalog.swap, []

    def swap(*prepared: Any, guards: Any = ()) -> Any:
        sent.append((prepared, guards))
        if len(sent) > 1:
            return real(*prepared, guards=guards)
        if answer == "landed":
            assert isinstance(real(*prepared, guards=guards), Committed)
        return Unknown("the connection broke")

    monkeypatch.setattr(lake.catalog, "swap", swap)
    with lake.transaction() as tx:
        move(tx)
    assert len(sent) == 2
    if answer == "arrives later":
        first, guards = sent[0]
        assert isinstance(real(*first, guards=guards), Committed), "the same swap again: harmless"
    assert (values(lake, "s.a")[1], values(lake, "s.b")[1]) == (9, 11)


def test_p40_a_lost_answer_is_found_though_every_table_has_moved_on(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = lake.catalog.swap

    def swap(*prepared: Any, guards: Any = ()) -> Any:
        monkeypatch.setattr(lake.catalog, "swap", real)
        assert isinstance(real(*prepared, guards=guards), Committed)
        for name in ("s.a", "s.b", "s.c"):
            lake.table(name).append([row(50, 0)])
        return Unknown("the connection broke")

    with lake.transaction() as tx:
        move(tx)
        monkeypatch.setattr(lake.catalog, "swap", swap)
    assert isinstance(tx.result, frazil.TransactionCommit)
    assert tx.result.attempts == 1
    assert (values(lake, "s.a")[1], values(lake, "s.b")[1]) == (9, 11)


def test_p40_a_swap_that_was_lost_and_overtaken_is_not_taken_for_landed(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, late = lake.catalog.swap, []

    def swap(*prepared: Any, guards: Any = ()) -> Any:
        monkeypatch.setattr(lake.catalog, "swap", real)
        late.append((prepared, guards))
        lake.table("s.b").append([row(50, 0)])
        return Unknown("the connection broke")

    with lake.transaction() as tx:
        move(tx)
        monkeypatch.setattr(lake.catalog, "swap", swap)
    assert isinstance(tx.result, frazil.TransactionCommit)
    assert tx.result.attempts == 2
    prepared, guards = late[0]
    assert isinstance(real(*prepared, guards=guards), Stale), "no late copy may land"
    assert (values(lake, "s.a")[1], values(lake, "s.b")[1]) == (9, 11)


def test_p40_a_swap_that_the_database_rolled_back_may_still_have_a_copy_under_way(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost, and the swap that is sent again meets a serialization error: no table has moved yet."""
    real, sent = lake.catalog.swap, []

    def swap(*prepared: Any, guards: Any = ()) -> Any:
        sent.append((prepared, guards))
        if len(sent) == 1:
            return Unknown("the connection broke")
        return Stale(prepared[0].head.location, prepared[0].ident) if len(sent) == 2 else real(*prepared, guards=guards)

    monkeypatch.setattr(lake.catalog, "swap", swap)
    with lake.transaction() as tx:
        move(tx)
    assert len(sent) == 3
    assert sent[0] == sent[1] == sent[2], "the same swap, until its outcome is known"
    assert (values(lake, "s.a")[1], values(lake, "s.b")[1]) == (9, 11)


def test_p40_a_crash_between_two_metadata_files_leaves_every_table_as_it_was(lake: frazil.Lake) -> None:
    class Crash(BaseException):
        pass

    def crash() -> None:
        raise Crash

    for phase in (Phase.HEAD_READ, Phase.TABLE_PREPARED, Phase.PREPARED):
        before = heads(lake)
        tx = held(lake, phase, crash)
        move(tx)
        with pytest.raises(Crash):
            tx.commit()
        assert heads(lake) == before


def test_a_function_that_conflicts_is_called_again(lake: frazil.Lake) -> None:
    conflicts = [1]

    def transfer(tx: frazil.Transaction) -> int:
        before = int(tx.table("s.a").scan(where="id = 1").to_arrow().to_pylist()[0]["v"])
        if conflicts:
            conflicts.pop()
            lake.table("s.a").update(set={"v": "100"}, where="id = 1")
        move(tx)
        return before

    assert lake.run(transfer) == 100
    assert (values(lake, "s.a")[1], values(lake, "s.b")[1]) == (99, 11)


# Tables that come and go


def test_a_table_is_created_and_filled_with_the_commit(lake: frazil.Lake) -> None:
    with lake.transaction() as tx:
        new = tx.create_table("s.new", DDL, keys=["id"])
        new.append([row(1, 1)])
        tx.create_table("s.empty", DDL)
        tx.create_table("s.filled", as_=[row(5, 5)])
        tx.table("s.a").delete("id = 1")
        assert rows_of(new) == [row(1, 1)]
        assert not lake.exists("s.new")
    assert isinstance(tx.result, frazil.TransactionCommit)
    assert list(tx.result.tables) == ["s.a", "s.empty", "s.filled", "s.new"]
    assert (values(lake, "s.new"), values(lake, "s.empty"), values(lake, "s.filled")) == ({1: 1}, {}, {5: 5})
    lake.table("s.new").append([row(2, 2)])
    assert stray_files(lake, "s.new") == set()


def test_a_table_is_dropped_with_the_commit(lake: frazil.Lake) -> None:
    with lake.transaction() as tx:
        rows = tx.table("s.a").scan().to_arrow()
        tx.table("s.b").append(rows.to_pylist()[:0] or [row(9, 9)])
        tx.drop_table("s.a")
        with pytest.raises(frazil.NoSuchTable, match="dropped by this transaction"):
            tx.table("s.a")
        assert lake.exists("s.a")
    assert not lake.exists("s.a")
    assert values(lake, "s.b")[9] == 9


def test_p40_a_drop_waits_for_what_was_read_first(lake: frazil.Lake) -> None:
    """Move the rows, then drop: rows that arrive in between must not be lost."""
    tx = held(lake, Phase.PREPARED, lambda: lake.table("s.a").append([row(3, 30)]))
    tx.table("s.b").append([row(10 + each["id"], each["v"]) for each in rows_of(tx.table("s.a"))])
    tx.drop_table("s.a")
    with pytest.raises(frazil.ConflictError, match=r"s\.a: no added rows"):
        tx.commit()
    assert lake.exists("s.a")


def test_p40_a_name_that_was_taken_meanwhile_is_refused(lake: frazil.Lake) -> None:
    for phase in (Phase.HEAD_READ, Phase.PREPARED):
        name = f"s.{phase.name.lower()}"
        tx = held(lake, phase, lambda name=name: lake.create_table(name, DDL))  # type: ignore[misc]
        tx.create_table(name, DDL).append([row(1, 1)])
        tx.table("s.a").append([row(3, 3)])
        with pytest.raises(frazil.TableExists, match="while this transaction was open"):
            tx.commit()
    assert values(lake, "s.a") == {1: 10, 2: 20}
    assert values(lake, name) == {}


def test_names_are_checked_before_anything_is_written(lake: frazil.Lake) -> None:
    with lake.transaction() as tx:
        with pytest.raises(frazil.TableExists):
            tx.create_table("s.a", DDL)
        with pytest.raises(frazil.NoSuchNamespace, match="create_namespace"):
            tx.create_table("nope.a", DDL)
        tx.create_table("s.new", DDL)
        with pytest.raises(frazil.TableExists):
            tx.create_table("s.new", DDL)
        tx.drop_table("s.new")
        tx.drop_table("s.a")
        with pytest.raises(frazil.Unsupported, match="create it again"):
            tx.create_table("s.a", DDL)
        with pytest.raises(frazil.NoSuchTable):
            tx.drop_table("s.nope")
        tx.rollback()
    assert lake.tables() == ["s.a", "s.b", "s.c"]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_table_that_was_dropped_or_replaced_meanwhile_refuses_the_whole(lake: frazil.Lake, is_replaced: bool) -> None:
    def drop() -> None:
        lake.drop_table("s.b")
        if is_replaced:
            lake.create_table("s.b", DDL)

    tx = held(lake, Phase.PREPARED, drop)
    move(tx)
    expected: Any = frazil.ConflictError if is_replaced else frazil.NoSuchTable
    with pytest.raises(expected, match=r"s\.b"):
        tx.commit()
    assert values(lake, "s.a")[1] == 10


# Bad input


def test_one_table_under_two_names_is_refused(lake: frazil.Lake) -> None:
    lake.register_table("s.alias", lake.catalog.load(Ident.parse("s.a")).location)
    with lake.transaction() as tx:
        tx.table("s.a").append([row(3, 3)])
        with pytest.raises(frazil.InvalidInput, match="one and the same table"):
            tx.table("s.alias")


def test_a_transaction_belongs_to_its_thread_and_process(lake: frazil.Lake) -> None:
    caught: list[BaseException] = []
    tx = lake.transaction()
    tx.table("s.a").append([row(3, 3)])

    def use() -> None:
        try:
            tx.table("s.b")
        except frazil.InvalidInput as error:
            caught.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert "another thread" in str(caught[0])
    tx.commit()
    with pytest.raises(frazil.InvalidInput, match="is committed"):
        tx.table("s.a")
    with pytest.raises(frazil.InvalidInput, match="is committed"):
        tx.create_table("s.new", DDL)


# Races of processes


def _transfer(uri: str, seed: int, times: int) -> None:
    with frazil.connect(uri) as lake:
        names = ["s.a", "s.b", "s.c"]
        for n in range(times):
            source, target = names[(seed + n) % 3], names[(seed + 2 * n + 1) % 3]
            if source == target:
                target = names[(seed + n + 1) % 3]

            def work(tx: frazil.Transaction, source: str = source, target: str = target) -> None:
                tx.table(source).update(set={"v": "v - 1"}, where="id = 1")
                tx.table(target).update(set={"v": "v + 1"}, where="id = 2")

            lake.run(work, retry=frazil.Retry(tries=100, total_s=60))


def test_p40_transfers_in_any_order_of_tables_never_deadlock(tmp_path: Path) -> None:
    uri = str(tmp_path)
    with frazil.connect(uri) as lake:
        lake.create_namespace("s")
        for name in ("s.a", "s.b", "s.c"):
            lake.create_table(name, DDL, keys=["id"]).append([row(1, 100), row(2, 100)])
    context = multiprocessing.get_context("spawn")
    crew = [context.Process(target=_transfer, args=(uri, seed, 4)) for seed in range(3)]
    for each in crew:
        each.start()
    with frazil.connect(uri) as lake:
        while any(each.is_alive() for each in crew):
            assert total(lake, "s.a", "s.b", "s.c") == 600
    for each in crew:
        each.join()
    assert [each.exitcode for each in crew] == [0, 0, 0]
    with frazil.connect(uri) as lake:
        assert total(lake, "s.a", "s.b", "s.c") == 600

"""One commit id and one outcome over several tables: found again in any of them, applied once (rules P9 and P40)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.catalog.base import Committed, Unknown
from frazil.commit.context import Phase
from frazil.commit.queued_writer import QueuedWriter
from surface.matrix import rows_of
from surface.three_tables import DATABASES, DDL, NAMES, heads, held, move, row, stray_files, three_tables, values

QUICK = frazil.Retry(tries=5, base_ms=0, fault_tries=0)


@pytest.fixture(params=DATABASES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[frazil.Lake]:
    with three_tables(request, tmp_path, request.param) as lake:
        yield lake


def first(tx: frazil.Transaction, name: str) -> int:
    return int(rows_of(tx.table(name))[0]["v"])


# The tables of a call need not be those of the call before


@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_p40_a_commit_id_is_not_applied_to_other_tables_the_second_time(lake: frazil.Lake, isolation: str) -> None:
    """What the function does depends on what it reads, and its first run has changed that."""

    def pay(tx: frazil.Transaction) -> None:
        if first(tx, "s.a") >= 10:
            move(tx, 10)
        else:
            tx.table("s.c").append([row(99, 0)])

    lake.run(pay, commit_id="pay-1", isolation=isolation)
    before = heads(lake)
    with pytest.raises(frazil.InvalidInput, match=r"'pay-1' was already used on s\.a for another operation"):
        lake.run(pay, commit_id="pay-1", isolation=isolation)
    assert heads(lake) == before
    assert [stray_files(lake, name) for name in NAMES] == [set()] * 3
    lake.run(pay, commit_id="pay-2", isolation=isolation)
    assert 99 in values(lake, "s.c")


def test_p40_an_earlier_call_that_lands_meanwhile_is_noticed_in_a_table_that_was_only_read(lake: frazil.Lake) -> None:
    def earlier() -> None:
        with lake.transaction(commit_id="pay-1") as tx:
            for name in ("s.a", "s.b"):
                tx.table(name).append([row(7, 0)])

    tx = held(lake, Phase.PREPARED, earlier, commit_id="pay-1")
    assert tx.table("s.a").scan(where="id = 2").count() == 1
    tx.table("s.c").append([row(99, 0)])
    with pytest.raises(frazil.InvalidInput, match="already used"):
        tx.commit()
    assert 99 not in values(lake, "s.c")


def test_p9_a_transaction_that_reads_one_table_and_writes_another_runs_out_of_tries(lake: frazil.Lake) -> None:
    """Whether an earlier call with its commit id has landed meanwhile is looked up in both."""

    def lose() -> None:
        lake.table("s.b").append([row(99, 0)])

    tx = held(lake, Phase.PREPARED, lose, commit_id="pay-1", retry=frazil.Retry(tries=1))
    assert tx.table("s.a").scan(where="id = 2").count() == 1
    tx.table("s.b").append([row(7, 0)])
    with pytest.raises(frazil.RetriesExhausted):
        tx.commit()
    assert set(values(lake, "s.b")) == {1, 2, 99}


def test_p40_a_table_that_was_created_with_the_commit_is_found_again(lake: frazil.Lake) -> None:
    results: list[Any] = []

    def work(tx: frazil.Transaction) -> None:
        tx.create_table("s.new", DDL).append([row(1, 1)])
        tx.table("s.a").append([row(5, 5)])
        tx.commit()
        results.append(tx.result)

    for _ in range(2):
        lake.run(work, commit_id="create-1")
    assert [each.already_committed for each in results] == [False, True]
    assert (values(lake, "s.new"), values(lake, "s.a")) == ({1: 1}, {1: 10, 2: 20, 5: 5})
    assert stray_files(lake, "s.new") == stray_files(lake, "s.a") == set()
    with pytest.raises(frazil.TableExists):
        lake.run(work, commit_id="create-2")


def test_a_function_that_fails_on_a_table_it_has_dropped_before_says_so(lake: frazil.Lake) -> None:
    def work(tx: frazil.Transaction) -> None:
        tx.table("s.a").append([row(5, 5)])
        tx.drop_table("s.b")

    lake.run(work, commit_id="drop-1")
    with pytest.raises(frazil.NoSuchTable) as caught:
        lake.run(work, commit_id="drop-1")
    assert "commit id drop-1 was committed by an earlier run" in caught.value.__notes__
    assert values(lake, "s.a") == {1: 10, 2: 20, 5: 5}


# Retries and evidence


@pytest.mark.parametrize("name", NAMES)
def test_p40_a_conflict_in_any_table_calls_the_function_again(lake: frazil.Lake, name: str) -> None:
    conflicts, calls = [1], []

    def work(tx: frazil.Transaction) -> None:
        calls.append([first(tx, each) for each in NAMES])
        for each in ("s.a", "s.b"):
            tx.table(each).update({"v": "v + 1"}, "id = 1")
        if conflicts:
            conflicts.pop()
            lake.table(name).update({"v": "100"}, "id = 1")

    lake.run(work, commit_id="once")
    lake.run(move, commit_id="other")
    assert len(calls) == 2
    assert calls[1] == [100 if each == name else 10 for each in NAMES]
    assert values(lake, name)[1] == {"s.a": 100, "s.b": 102, "s.c": 100}[name]


@pytest.mark.parametrize("name", NAMES)
def test_p40_the_last_conflict_names_the_table(lake: frazil.Lake, name: str) -> None:
    def work(tx: frazil.Transaction) -> None:
        for each in NAMES:
            first(tx, each)
        tx.table("s.a").update({"v": "0"}, "id = 1")
        tx.table("s.b").update({"v": "0"}, "id = 1")
        lake.table(name).update({"v": "v + 1"}, "id = 1")

    with pytest.raises(frazil.ConflictError, match=rf"{name}: ") as caught:
        lake.run(work, retry=frazil.Retry(tries=3, base_ms=0))
    assert {each.table for each in caught.value.conflicts} == {name}
    assert "called the function 3 times" in caught.value.__notes__[0]
    assert values(lake, name)[1] == 13


# Outcomes


def test_p40_a_lost_answer_is_resolved_where_no_table_was_changed(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, sent = lake.catalog.swap, []

    def swap(*prepared: Any, guards: Any = ()) -> Any:
        sent.append(guards)
        outcome = real(*prepared, guards=guards)
        return Unknown("the connection broke") if len(sent) == 1 else outcome

    monkeypatch.setattr(lake.catalog, "swap", swap)
    with lake.transaction() as tx:
        tx.table("s.a").delete("id = 77")
        tx.table("s.b").delete("id = 77")
    assert isinstance(tx.result, frazil.TransactionCommit)
    assert (tx.result.changed, len(sent)) == (False, 2)


def test_p9_a_table_that_was_rolled_back_since_is_named(lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    real = lake.catalog.swap

    def swap(*prepared: Any, guards: Any = ()) -> Any:
        monkeypatch.setattr(lake.catalog, "swap", real)
        before = lake.table("s.a").snapshot()
        assert before is not None
        assert isinstance(real(*prepared, guards=guards), Committed)
        lake.table("s.a").rollback_to(before.snapshot_id)
        return Unknown("the connection broke")

    with lake.transaction() as tx:
        move(tx)
        monkeypatch.setattr(lake.catalog, "swap", swap)
    assert isinstance(tx.result, frazil.TransactionCommit)
    assert {name: each.rolled_back for name, each in tx.result.tables.items()} == {
        "s.a": True,
        "s.b": False,
        "s.c": False,
    }


def test_a_guarded_table_that_is_dropped_after_a_lost_answer_hides_nothing(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The swap has landed; of the table that it only compared, nothing is left to look at."""
    real = lake.catalog.swap

    def swap(*prepared: Any, guards: Any = ()) -> Any:
        monkeypatch.setattr(lake.catalog, "swap", real)
        assert isinstance(real(*prepared, guards=guards), Committed)
        lake.drop_table("s.a")
        return Unknown("the connection broke")

    with lake.transaction() as tx:
        tx.table("s.a").delete("id = 77")
        tx.table("s.b").append([row(5, 5)])
        monkeypatch.setattr(lake.catalog, "swap", swap)
    assert values(lake, "s.b")[5] == 5
    assert stray_files(lake, "s.b") == set()


def test_p40_the_catalog_fails_between_two_tables_and_nothing_is_left(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose() -> None:
        lake.table("s.b").append([row(9, 0)])

    tx = held(lake, Phase.PREPARED, lose, retry=QUICK)
    move(tx)
    seen: list[QueuedWriter] = []

    def fails(writer: QueuedWriter) -> tuple[()]:
        seen.append(writer)
        if len(seen) > 1:
            raise frazil.CatalogUnavailable("The catalog does not answer")
        return ()

    monkeypatch.setattr(QueuedWriter, "other_entries", fails)
    with pytest.raises(frazil.CatalogUnavailable):
        tx.commit()
    assert [stray_files(lake, name) for name in NAMES] == [set()] * 3


def test_p40_pins_that_cannot_be_read_leave_nothing(lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise frazil.CatalogUnavailable("The catalog does not answer")

    tx = lake.transaction(retry=QUICK)
    move(tx)
    monkeypatch.setattr("frazil.commit.proposal.expire_old", fails)
    with pytest.raises(frazil.CatalogUnavailable):
        tx.commit()
    with pytest.raises(frazil.CatalogUnavailable):
        lake.table("s.a").append([row(5, 5)], retry=QUICK)
    assert [stray_files(lake, name) for name in NAMES] == [set()] * 3


# Life


def test_a_transaction_that_failed_does_not_call_itself_committed(lake: frazil.Lake) -> None:
    tx = lake.transaction()
    move(tx)
    lake.table("s.a").update({"v": "0"}, "id = 1")
    with pytest.raises(frazil.ConflictError):
        tx.commit()
    with pytest.raises(frazil.InvalidInput, match="is over: its commit failed"):
        tx.table("s.a")
    assert tx.result is None


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_transaction_is_not_copied(lake: frazil.Lake, how: Callable[[object], object]) -> None:
    """Two copies would both commit the same files."""
    with lake.transaction() as tx:
        move(tx)
        with pytest.raises(frazil.InvalidInput, match="copied or pickled"):
            how(tx)
        if how is not copy.copy:
            with pytest.raises(frazil.InvalidInput, match="copied or pickled"):
                how(tx.table("s.a"))
    assert rows_of(lake.table("s.a"))[0] == row(1, 9)

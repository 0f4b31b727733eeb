"""Sinks whose batches are transactions over several tables: each batch once in every table (rules P11 and P40)."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.catalog.base import Committed, Unknown
from surface.matrix import files_of, named_files

TABLES = ("bank.accounts", "bank.ledger", "bank.seen")
MARK = "frazil.sink.payments"
Batch = list[dict[str, Any]]


@pytest.fixture(params=["memory", "sqlite"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[frazil.Lake]:
    with frazil.connect("memory://" if request.param == "memory" else str(tmp_path / "lake")) as lake:
        lake.create_namespace("bank")
        lake.create_table("bank.accounts", "id bigint not null, balance bigint", keys=["id"])
        lake.create_table("bank.ledger", "id bigint not null, amount bigint")
        lake.create_table("bank.seen", "id bigint not null")
        lake.table("bank.accounts").append([{"id": each, "balance": 0} for each in (1, 2, 3)])
        yield lake


def pay(tx: frazil.Transaction, batch: Batch) -> None:
    """The rows of a batch are payments into accounts."""
    for each in batch:
        tx.sql(f"UPDATE bank.accounts SET balance = balance + {each['amount']} WHERE id = {each['id']}")
    tx.table("bank.ledger").append(batch)


def payments(*amounts: int) -> Batch:
    return [{"id": number + 1, "amount": amount} for number, amount in enumerate(amounts)]


def sink_of(lake: frazil.Lake, function: Any = pay, **options: Any) -> Any:
    """Its mark is in a table that the function does not write to."""
    return lake.table("bank.seen").stream_sink(id="payments", mode=function, transaction=True, **options)


def balances(lake: frazil.Lake) -> list[int]:
    rows = lake.table("bank.accounts").scan().to_arrow().to_pylist()
    return [each["balance"] for each in sorted(rows, key=lambda row: row["id"])]


def amounts(lake: frazil.Lake) -> list[int]:
    found: list[Any] = lake.table("bank.ledger").scan().to_arrow()["amount"].to_pylist()
    return sorted(found)


def mark(lake: frazil.Lake) -> str | None:
    return lake.table("bank.seen").properties.get(MARK)


def versions(lake: frazil.Lake) -> dict[str, str]:
    return {str(ident): location for ident, location in (lake.catalog.instant() or {}).items()}


def stray_files(lake: frazil.Lake) -> set[str]:
    found: set[str] = set()
    for name in TABLES:
        files, named = (
            {path.removeprefix("file://") for path in of(lake.table(name))} for of in (files_of, named_files)
        )
        found |= files - named
    return found


# Exactly once


def test_p11_a_batch_of_several_tables_and_its_mark_are_one_commit(lake: frazil.Lake) -> None:
    before = versions(lake)
    done = sink_of(lake)(payments(10, 20), 0)
    assert isinstance(done, frazil.TransactionCommit)
    assert list(done.tables) == list(TABLES)
    assert {name for name, at in versions(lake).items() if at != before[name]} == set(TABLES)
    assert (balances(lake), amounts(lake), mark(lake)) == ([10, 20, 0], [10, 20], '{"batch": 0}')
    assert len(lake.table("bank.ledger").history()) == 1


def test_p11_a_batch_of_several_tables_that_comes_again_is_skipped(lake: frazil.Lake) -> None:
    sink = sink_of(lake)
    written = [sink(payments(number + 1), number) is not None for number in (0, 1, 1, 2)]
    assert written == [True, True, False, True]
    after = versions(lake)
    assert sink_of(lake)(payments(100), 2) is None
    assert versions(lake) == after
    assert (balances(lake), amounts(lake)) == ([6, 0, 0], [1, 2, 3])


def test_p11_an_older_batch_of_several_tables_is_refused(lake: frazil.Lake) -> None:
    sink_of(lake)(payments(1), 5)
    with pytest.raises(frazil.InvalidInput, match="has written batch 5, and this is batch 4"):
        sink_of(lake)(payments(1), 4)
    assert (amounts(lake), stray_files(lake)) == ([1], set())


def test_p11_a_batch_for_which_nothing_was_written_is_marked(lake: frazil.Lake) -> None:
    called: list[Batch] = []
    sink = sink_of(lake, lambda _tx, batch: called.append(batch))
    assert isinstance(sink([], 0), frazil.Commit)
    assert sink([], 0) is None
    assert (called, mark(lake)) == ([[]], '{"batch": 0}')


def test_p11_the_sinks_own_table_may_be_written_as_well(lake: frazil.Lake) -> None:
    def write(tx: frazil.Transaction, batch: Batch) -> None:
        tx.table("bank.seen").append([{"id": each["id"]} for each in batch])
        tx.sql("INSERT INTO bank.seen VALUES (50)")
        pay(tx, batch)

    sink = sink_of(lake, write)
    sink(payments(1), 0)
    assert sink(payments(1), 0) is None
    assert set(lake.table("bank.seen").scan().to_arrow()["id"].to_pylist()) == {1, 50}
    assert lake.table("bank.seen").scan().count() == 2
    assert (balances(lake), amounts(lake)) == ([1, 0, 0], [1])


def test_p11_a_function_that_fails_has_written_nothing(lake: frazil.Lake) -> None:
    before = versions(lake)

    def fails(tx: frazil.Transaction, batch: Batch) -> None:
        pay(tx, batch)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        sink_of(lake, fails)(payments(10), 0)
    assert (versions(lake), stray_files(lake)) == (before, set())
    sink_of(lake)(payments(10), 0)
    assert (balances(lake), amounts(lake)) == ([10, 0, 0], [10])


# Conflicts and unknown outcomes


def test_p11_a_function_that_meets_a_conflict_is_called_again(lake: frazil.Lake) -> None:
    calls: list[int] = []

    def write(tx: frazil.Transaction, batch: Batch) -> None:
        pay(tx, batch)
        calls.append(1)
        if len(calls) < 3:
            lake.table("bank.accounts").update({"balance": "balance + 100"}, "id = 1")

    sink_of(lake, write)(payments(1, 2), 0)
    assert len(calls) == 3
    assert (balances(lake), amounts(lake), mark(lake)) == ([201, 2, 0], [1, 2], '{"batch": 0}')
    assert stray_files(lake) == set()


def test_p11_the_budget_of_a_sink_is_its_retry(lake: frazil.Lake) -> None:
    def write(tx: frazil.Transaction, batch: Batch) -> None:
        pay(tx, batch)
        lake.table("bank.accounts").update({"balance": "balance + 100"}, "id = 1")

    with pytest.raises(frazil.ConflictError):
        sink_of(lake, write, retry=frazil.Retry.none())(payments(1), 0)
    assert (amounts(lake), mark(lake)) == ([], None)


def test_p11_two_runs_of_one_query_write_a_batch_of_several_tables_once(lake: frazil.Lake) -> None:
    once: list[int] = []

    def write(tx: frazil.Transaction, batch: Batch) -> None:
        if not once:
            once.append(1)
            sink_of(lake)(payments(7), 0)
        tx.table("bank.ledger").append(batch)

    with pytest.raises(frazil.ConflictError, match="another run of this stream"):
        sink_of(lake, write)(payments(7), 0)
    assert (balances(lake), amounts(lake), stray_files(lake)) == ([7, 0, 0], [7], set())


@pytest.mark.parametrize("lands", [True, False])
def test_p11_a_lost_answer_does_not_repeat_a_batch(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    real = lake.catalog.swap

    def swap(*prepared: Any, guards: Any = ()) -> Any:
        monkeypatch.setattr(lake.catalog, "swap", real)
        if lands:
            assert isinstance(real(*prepared, guards=guards), Committed)
        return Unknown("the connection broke")

    monkeypatch.setattr(lake.catalog, "swap", swap)
    assert sink_of(lake)(payments(5), 0) is not None
    assert sink_of(lake)(payments(5), 0) is None
    assert (balances(lake), amounts(lake)) == ([5, 0, 0], [5])


def test_p11_a_batch_whose_outcome_stays_unknown_may_be_repeated(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream fails with CommitUnknown, starts again, and finds the mark."""
    real, load = lake.catalog.swap, lake.catalog.load
    sent: list[int] = []

    def swap(*prepared: Any, guards: Any = ()) -> Any:
        if not sent:
            assert isinstance(real(*prepared, guards=guards), Committed)
        sent.append(1)
        return Unknown("the connection broke")

    def is_down(ident: Any) -> Any:
        if sent:
            raise frazil.CatalogUnavailable("The catalog does not answer")
        return load(ident)

    with monkeypatch.context() as patched:
        patched.setattr(lake.catalog, "swap", swap)
        patched.setattr(lake.catalog, "load", is_down)
        with pytest.raises(frazil.CommitUnknown):
            sink_of(lake, retry=frazil.Retry(base_ms=0, fault_tries=1))(payments(5), 0)
    assert sink_of(lake)(payments(5), 0) is None
    assert (balances(lake), amounts(lake)) == ([5, 0, 0], [5])


# What a function may not do


@pytest.mark.parametrize("ends", ["rolls back", "drops the table"])
def test_p11_a_function_that_loses_the_mark_is_refused(lake: frazil.Lake, ends: str) -> None:
    def write(tx: frazil.Transaction, batch: Batch) -> None:
        pay(tx, batch)
        if ends == "rolls back":
            tx.rollback()
        else:
            tx.drop_table("bank.seen")

    with pytest.raises(frazil.InvalidInput, match="cannot be marked as written"):
        sink_of(lake, write)(payments(5), 0)
    assert (amounts(lake), lake.exists("bank.seen"), mark(lake), stray_files(lake)) == ([], True, None, set())


def test_p11_a_function_may_commit_itself(lake: frazil.Lake) -> None:
    def write(tx: frazil.Transaction, batch: Batch) -> None:
        pay(tx, batch)
        tx.commit()

    assert isinstance(sink_of(lake, write)(payments(5), 0), frazil.TransactionCommit)
    assert sink_of(lake, write)(payments(5), 0) is None
    assert amounts(lake) == [5]


async def _coroutine(_tx: Any, _batch: Any) -> None: ...


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "append"}, "With transaction=True, mode is a function"),
        ({}, "With transaction=True, mode is a function"),
        ({"mode": 3}, "mode must be"),
        ({"mode": _coroutine}, "A coroutine or generator"),
        ({"mode": pay, "branch": "b"}, "branch belongs to a write"),
        ({"mode": pay, "on_deleted": "keep"}, "on_deleted belongs to a write"),
        ({"mode": pay, "id": "a b"}, "A sink's id"),
    ],
)
def test_bad_sinks_are_refused_when_they_are_made(lake: frazil.Lake, options: dict[str, Any], message: str) -> None:
    with pytest.raises(frazil.InvalidInput, match=message):
        lake.table("bank.seen").stream_sink(**{"id": "payments", "transaction": True, **options})


def test_p40_a_catalog_that_commits_one_table_at_a_time_takes_no_such_sink(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/theirs.db"}
    with frazil.connect("pyiceberg:theirs", warehouse=f"file://{tmp_path}/wh", properties=properties) as lake:
        lake.create_namespace("bank")
        table = lake.create_table("bank.seen", "id bigint")
        with pytest.raises(frazil.Unsupported, match=r"one table at a time.*stream_sink\(transaction=True\)"):
            table.stream_sink(id="payments", mode=pay, transaction=True)


def test_it_pickles_and_takes_an_isolation(tmp_path: Path) -> None:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("bank")
        for name, ddl in (("accounts", "id bigint, balance bigint"), ("ledger", "id bigint, amount bigint")):
            lake.create_table(f"bank.{name}", ddl)
        lake.create_table("bank.seen", "id bigint")
        sink = pickle.loads(pickle.dumps(sink_of(lake, isolation="snapshot")))
        assert isinstance(sink(payments(5), 0), frazil.TransactionCommit)
        assert sink_of(lake)(payments(5), 0) is None

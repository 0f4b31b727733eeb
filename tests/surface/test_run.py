"""``lake.run`` and ``@lake.transactional``: functions of a transaction that are called again after a conflict."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import frazil
from frazil.catalog.base import Committed, Unknown
from frazil.commit.context import Phase
from surface.matrix import files_of, named_files, rows_of

NAME = "ns.accounts"


@pytest.fixture
def lake() -> frazil.Lake:
    lake = frazil.connect("memory://")
    lake.create_namespace("ns")
    table = lake.create_table(NAME, "id bigint not null, v bigint", keys=["id"])
    table.append([{"id": 1, "v": 10}, {"id": 2, "v": 10}])
    return lake


def balances(table: Any) -> dict[int, int]:
    return {each["id"]: each["v"] for each in rows_of(table)}


def move(tx: frazil.Transaction, by: int) -> int:
    """Move money from row 1 to row 2; the value is what row 1 had."""
    table = tx.table(NAME)
    found = balances(table)
    table.update({"v": frazil.lit(found[1] - by)}, "id = 1")
    table.update({"v": frazil.lit(found[2] + by)}, "id = 2")
    return found[1]


def deposit(lake: frazil.Lake) -> None:
    lake.table(NAME).update({"v": "v + 100"}, "id = 1")


class Interfering:
    """Moves money while another writer changes the same row in the first ``losses`` calls."""

    def __init__(self, lake: frazil.Lake, losses: int) -> None:
        self.lake, self.losses, self.calls = lake, losses, 0

    def __call__(self, tx: frazil.Transaction) -> int:
        self.calls += 1
        found = move(tx, 1)
        if self.calls <= self.losses:
            deposit(self.lake)
        return found


# The calls


def test_a_function_is_called_once_and_its_value_returned(lake: frazil.Lake) -> None:
    function = Interfering(lake, losses=0)
    assert lake.run(function) == 10
    assert (function.calls, balances(lake.table(NAME))) == (1, {1: 9, 2: 11})


@pytest.mark.parametrize("losses", [1, 2, 5])
def test_after_a_conflict_it_is_called_again_on_the_new_rows(lake: frazil.Lake, losses: int) -> None:
    function = Interfering(lake, losses)
    assert lake.run(function, retry=frazil.Retry(base_ms=0)) == 10 + 100 * losses
    assert function.calls == losses + 1
    assert balances(lake.table(NAME)) == {1: 9 + 100 * losses, 2: 11}
    assert files_of(lake.table(NAME)) == named_files(lake.table(NAME))


def test_a_conflict_that_shows_while_the_function_reads_is_repeated(lake: frazil.Lake) -> None:
    calls = 0

    def function(tx: frazil.Transaction) -> dict[int, int]:
        nonlocal calls
        calls += 1
        other = tx.table(NAME)
        found = balances(other)
        other.append([{"id": 2 + calls, "v": 0}])
        if calls == 1:
            deposit(lake)
            tx.commit()
        return found

    assert lake.run(function, retry=frazil.Retry(base_ms=0)) == {1: 110, 2: 10}
    assert calls == 2
    assert balances(lake.table(NAME)) == {1: 110, 2: 10, 4: 0}


def test_the_last_conflict_is_raised_with_the_number_of_calls(lake: frazil.Lake) -> None:
    function = Interfering(lake, losses=99)
    with pytest.raises(frazil.ConflictError) as caught:
        lake.run(function, retry=frazil.Retry(tries=3, base_ms=0))
    assert function.calls == 3
    assert caught.value.conflicts
    (note,) = caught.value.__notes__
    assert "3 times" in note
    assert balances(lake.table(NAME)) == {1: 310, 2: 10}
    assert files_of(lake.table(NAME)) == named_files(lake.table(NAME))


def test_the_time_is_limited_too(lake: frazil.Lake) -> None:
    function = Interfering(lake, losses=99)
    with pytest.raises(frazil.ConflictError):
        lake.run(function, retry=frazil.Retry(tries=1000, base_ms=1e9, cap_ms=1e9, total_s=0.5))
    # With full jitter, the first wait may be short by chance.
    assert function.calls < 1000


def test_an_exception_of_the_function_rolls_back_and_is_not_repeated(lake: frazil.Lake) -> None:
    before, calls = files_of(lake.table(NAME)), 0

    def function(tx: frazil.Transaction) -> None:
        nonlocal calls
        calls += 1
        move(tx, 1)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        lake.run(function)
    assert (calls, balances(lake.table(NAME))) == (1, {1: 10, 2: 10})
    assert files_of(lake.table(NAME)) == before


def test_a_conflict_of_another_call_inside_the_function_is_not_repeated(lake: frazil.Lake) -> None:
    calls = 0

    def function(tx: frazil.Transaction) -> None:
        nonlocal calls
        calls += 1
        move(tx, 1)
        lake.run(Interfering(lake, losses=99), retry=frazil.Retry(tries=1))

    with pytest.raises(frazil.ConflictError):
        lake.run(function)
    assert calls == 1


def test_a_conflict_that_would_come_back_is_not_repeated(lake: frazil.Lake) -> None:
    lake.table(NAME).add_column("note", "string")
    calls = 0

    def function(tx: frazil.Transaction) -> None:
        nonlocal calls
        calls += 1
        tx.table(NAME).append([{"id": 3, "v": 0, "note": "x"}])
        if calls == 1:
            lake.table(NAME).drop_column("note")

    with pytest.raises(frazil.ConflictError) as caught:
        lake.run(function)
    assert (calls, caught.value.retryable) == (1, False)


def test_a_function_that_commits_or_rolls_back_itself_is_left_alone(lake: frazil.Lake) -> None:
    def commits(tx: frazil.Transaction) -> Any:
        move(tx, 1)
        tx.commit()
        return tx.result

    def rolls_back(tx: frazil.Transaction) -> str:
        move(tx, 1)
        tx.rollback()
        return "nothing"

    assert lake.run(commits).changed
    assert lake.run(rolls_back) == "nothing"
    assert balances(lake.table(NAME)) == {1: 9, 2: 11}


def test_what_is_not_a_plain_function_is_refused(lake: frazil.Lake) -> None:
    def generator(tx: frazil.Transaction) -> Iterator[int]:
        yield 1

    async def coroutine(tx: frazil.Transaction) -> int:
        return 1

    for bad in (generator, coroutine, 7):
        with pytest.raises(frazil.InvalidInput):
            lake.run(bad)  # type: ignore[arg-type]
    with pytest.raises(frazil.InvalidInput):
        lake.transactional(generator)
    with pytest.raises(frazil.InvalidInput):
        lake.run(balances, isolation="none")
    with pytest.raises(frazil.InvalidInput):
        lake.run(balances, retry=7)  # type: ignore[arg-type]


def test_lost_races_of_the_commit_and_conflicts_share_one_budget(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every attempt loses its race; one of them then meets a conflict."""
    attempts, function = 0, Interfering(lake, losses=0)
    context = lake.commit_context

    def losing(ident: Any, on_phase: Any = None) -> Any:
        def phase(name: Phase, number: int) -> None:
            nonlocal attempts
            on_phase(name, number)
            attempts += name is Phase.HEAD_READ
            if name is Phase.PREPARED:
                monkeypatch.setattr(lake, "commit_context", context)
                deposit(lake) if attempts == 1 else lake.table(NAME).set_properties({"n": str(attempts)})
                monkeypatch.setattr(lake, "commit_context", losing)

        return replace(context(ident), on_phase=phase)

    monkeypatch.setattr(lake, "commit_context", losing)
    with pytest.raises(frazil.RetriesExhausted):
        lake.run(function, retry=frazil.Retry(tries=4, base_ms=0))
    # A lost race and the attempt that found the conflict; then two lost races in the second call.
    assert (function.calls, attempts) == (2, 4)


# Commit ids and unknown outcomes


def test_a_commit_id_is_applied_once_over_runs(lake: frazil.Lake) -> None:
    seen: list[Any] = []

    def function(tx: frazil.Transaction) -> int:
        found = move(tx, 1)
        tx.commit()
        seen.append(tx.result)
        return found

    assert lake.run(function, commit_id="move-1") == 10
    # The second run computes its value on the present rows, and applies nothing.
    assert lake.run(function, commit_id="move-1") == 9
    assert [each is not None and each.already_committed for each in seen] == [False, True]
    assert balances(lake.table(NAME)) == {1: 9, 2: 11}


def test_a_function_that_fails_after_its_commit_landed_in_an_earlier_run_says_so(lake: frazil.Lake) -> None:
    def function(tx: frazil.Transaction) -> None:
        if move(tx, 10) < 10:
            raise ValueError("too little money")

    lake.run(function, commit_id="move-1")
    with pytest.raises(ValueError, match="too little") as caught:
        lake.run(function, commit_id="move-1")
    assert "committed by an earlier run" in caught.value.__notes__[0]


class LosingAnswers:
    """The connection breaks at the first swap, and the catalog is back after so many more."""

    def __init__(self, lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch, *, lands: bool, down_for: int = 3) -> None:
        self._lands, self._down_for, self._sent = lands, down_for, 0
        self._swap, self._load = lake.catalog.swap, lake.catalog.load
        self._first: Any = None
        monkeypatch.setattr(lake.catalog, "swap", self.swap)
        monkeypatch.setattr(lake.catalog, "load", self.load)

    @property
    def is_down(self) -> bool:
        return 0 < self._sent < self._down_for

    def swap(self, prepared: Any) -> Any:
        self._sent += 1
        if self._sent > self._down_for:
            return self._swap(prepared)
        if self._sent == 1:
            self._first = prepared
            if self._lands:
                self.arrives()
        return Unknown("the connection broke")

    def arrives(self) -> None:
        """The first swap, at the catalog."""
        assert isinstance(self._swap(self._first), Committed)

    def load(self, ident: Any) -> Any:
        if self.is_down:
            raise frazil.CatalogUnavailable("The catalog does not answer")
        return self._load(ident)


# A commit sends its swap again once for each fault try, and once more.
RETRY = frazil.Retry(base_ms=0, fault_tries=1)


class Numbered:
    """Moves money; its value is the number of the call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, tx: frazil.Transaction) -> int:
        self.calls += 1
        move(tx, 1)
        return self.calls


@pytest.mark.parametrize("commit_id", [None, "move-1"])
def test_a_commit_that_landed_without_an_answer_is_found_and_not_applied_twice(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch, commit_id: str | None
) -> None:
    LosingAnswers(lake, monkeypatch, lands=True)
    function = Numbered()
    assert lake.run(function, commit_id=commit_id, retry=RETRY) == 1
    assert function.calls == 1
    assert balances(lake.table(NAME)) == {1: 9, 2: 11}
    assert files_of(lake.table(NAME)) == named_files(lake.table(NAME))


@pytest.mark.parametrize("commit_id", [None, "move-1"])
def test_a_commit_that_never_arrived_is_made_by_the_next_call(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch, commit_id: str | None
) -> None:
    LosingAnswers(lake, monkeypatch, lands=False)
    function = Numbered()
    assert lake.run(function, commit_id=commit_id, retry=RETRY) == 2
    assert balances(lake.table(NAME)) == {1: 9, 2: 11}


@pytest.mark.parametrize("commit_id", [None, "move-1"])
def test_a_commit_that_arrives_while_the_function_runs_again_is_found(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch, commit_id: str | None
) -> None:
    broken = LosingAnswers(lake, monkeypatch, lands=False)
    function = Numbered()

    def late(tx: frazil.Transaction) -> int:
        found = function(tx)
        if found == 2:
            broken.arrives()
        return found

    assert lake.run(late, commit_id=commit_id, retry=RETRY) == 1
    assert function.calls == 2
    assert balances(lake.table(NAME)) == {1: 9, 2: 11}


def test_an_outcome_that_stays_unknown_is_reported_as_such(lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    LosingAnswers(lake, monkeypatch, lands=True, down_for=10_000)
    function = Numbered()
    with pytest.raises(frazil.CommitUnknown) as caught:
        lake.run(function, commit_id="move-1", retry=RETRY)
    assert caught.value.commit_id == "move-1"
    assert function.calls == 1
    monkeypatch.undo()
    assert balances(lake.table(NAME)) == {1: 9, 2: 11}
    lake.run(function, commit_id="move-1")
    assert balances(lake.table(NAME)) == {1: 9, 2: 11}


def test_an_error_of_a_later_call_says_that_an_earlier_one_may_have_landed(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    LosingAnswers(lake, monkeypatch, lands=False)
    function = Numbered()

    def fails_later(tx: frazil.Transaction) -> None:
        if function(tx) > 1:
            raise LookupError("mine")

    with pytest.raises(LookupError) as caught:
        lake.run(fails_later, commit_id="move-1", retry=RETRY)
    assert "not known" in caught.value.__notes__[0]


# The decorator


def test_a_decorated_function_begins_its_own_transaction_or_joins_one(lake: frazil.Lake) -> None:
    @lake.transactional
    def pay(tx: frazil.Transaction, key: int, *, by: int) -> int:
        """Pay."""
        tx.table(NAME).update({"v": f"v + {by}"}, f"id = {key}")
        return by

    @lake.transactional(isolation="snapshot", retry=frazil.Retry(tries=2))
    def both(tx: frazil.Transaction, by: int) -> int:
        return pay(tx, 1, by=-by) + pay(tx, 2, by=by)

    assert (pay.__name__, pay.__doc__) == ("pay", "Pay.")  # type: ignore[attr-defined]
    before = len(lake.table(NAME).history())
    assert pay(2, by=5) == 5
    assert len(lake.table(NAME).history()) == before + 1
    assert both(3) == 0
    assert balances(lake.table(NAME)) == {1: 7, 2: 18}
    with lake.transaction() as tx:
        pay(tx, 1, by=1000)
        tx.rollback()
    assert balances(lake.table(NAME)) == {1: 7, 2: 18}


def test_a_decorated_function_is_called_again_with_its_arguments(lake: frazil.Lake) -> None:
    seen: list[tuple[Any, ...]] = []

    @lake.transactional(retry=frazil.Retry(base_ms=0))
    def pay(tx: frazil.Transaction, *args: Any, **kwargs: Any) -> None:
        seen.append((args, kwargs))
        move(tx, 1)
        if len(seen) == 1:
            deposit(lake)

    pay(1, 2, three=3)
    assert seen == [((1, 2), {"three": 3})] * 2


# Turns


def test_threads_that_change_the_same_rows_all_land(lake: frazil.Lake) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                lake.run(lambda tx: move(tx, 1))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not errors
    assert balances(lake.table(NAME)) == {1: 10 - 30, 2: 10 + 30}


# The result of a transaction


def test_a_transaction_leaves_its_commit(lake: frazil.Lake) -> None:
    with lake.transaction() as tx:
        assert tx.result is None
        move(tx, 1)
        assert tx.result is None
    assert tx.result is not None
    assert tx.result.snapshot_id == lake.table(NAME).snapshot().snapshot_id
    by_hand = lake.transaction()
    move(by_hand, 1)
    assert by_hand.commit() is by_hand.result
    with lake.transaction() as idle:
        balances(idle.table(NAME))
    assert idle.result is None
    lost = lake.transaction()
    move(lost, 1)
    deposit(lake)
    with pytest.raises(frazil.ConflictError):
        lost.commit()
    assert lost.result is None

"""Iceberg Java changes one table of an open transaction: it is rebased or refused, and nothing of Java's is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import frazil
from frazil.commit.context import Phase
from frazil.transaction import Course, Transaction
from interop.conftest import Place
from interop.statements import Where

pytestmark = pytest.mark.interop

DDL = "id bigint not null, v bigint"
NAMES = ("s.a", "s.b", "s.c")
PHASES = [Phase.HEAD_READ, Phase.PREPARED]


@pytest.fixture
def lake(place: Place) -> Iterator[frazil.Lake]:
    with place.lake() as lake:
        lake.create_namespace("s")
        for name in NAMES:
            table = lake.create_table(name, DDL, keys=["id"])
            table.append([{"id": 1, "v": 10}, {"id": 2, "v": 20}])
            # In a file of its own, so that Java deletes it without touching the file of the others.
            table.append([{"id": 3, "v": 30}])
        yield lake


def append(place: Place) -> Callable[[], None]:
    return place.iceberg_java().table("s.b").prepare("append", rows=[{"id": 50, "v": 500}], branch=None)


def delete_lone(place: Place) -> Callable[[], None]:
    return place.iceberg_java().table("s.b").prepare("delete_files", filter=Where("id", "=", 3).json())


def delete_first(place: Place) -> Callable[[], None]:
    where = Where("id", "=", 1).json()
    return place.iceberg_java().table("s.b").prepare("delete", filter=where, mode="merge-on-read")


AFTER: dict[Callable[..., Any], dict[int, int]] = {
    append: {1: 10, 2: 20, 3: 30, 50: 500},
    delete_lone: {1: 10, 2: 20},
    delete_first: {2: 20, 3: 30},
}


def values(lake: frazil.Lake, name: str) -> dict[int, int]:
    return {each["id"]: each["v"] for each in lake.table(name).scan().to_arrow().to_pylist()}


def by_java(place: Place, name: str) -> dict[int, int]:
    return {int(each["id"]): int(each["v"]) for each in place.iceberg_java().table(name).rows()}


def held(lake: frazil.Lake, at: Phase, then: Callable[[], object]) -> Transaction:
    """A transaction in whose first attempt ``then`` runs once, at a phase."""
    waiting = [then]

    def on_phase(phase: Phase, _attempt: int) -> None:
        if phase is at and waiting:
            waiting.pop()()

    course = Course(before_pin=lambda _ident: None, on_phase=on_phase, is_named=False)
    return Transaction(lake, isolation="serializable", retry=None, commit_id=None, course=course)


def transfer(tx: Transaction) -> None:
    tx.table("s.a").update({"v": "v - 1"}, "id = 1")
    tx.table("s.b").update({"v": "v + 1"}, "id = 1")


@pytest.mark.parametrize("theirs", [append, delete_lone])
@pytest.mark.parametrize("at", PHASES)
def test_p40_it_is_rebased_over_what_java_does_to_other_rows(
    place: Place, lake: frazil.Lake, at: Phase, theirs: Callable[[Place], Callable[[], None]]
) -> None:
    tx = held(lake, at, theirs(place))
    transfer(tx)
    done = tx.commit()
    assert isinstance(done, frazil.TransactionCommit)
    assert done.attempts == 2
    changed = {key: v + 1 if key == 1 else v for key, v in AFTER[theirs].items()}
    assert values(lake, "s.b") == by_java(place, "s.b") == changed
    assert values(lake, "s.a") == by_java(place, "s.a") == {1: 9, 2: 20, 3: 30}


@pytest.mark.parametrize("at", PHASES)
def test_p40_it_is_refused_when_java_deletes_a_row_that_it_changes(place: Place, lake: frazil.Lake, at: Phase) -> None:
    tx = held(lake, at, delete_first(place))
    transfer(tx)
    with pytest.raises(frazil.ConflictError, match=r"s\.b: "):
        tx.commit()
    assert values(lake, "s.b") == by_java(place, "s.b") == AFTER[delete_first]
    assert values(lake, "s.a") == {1: 10, 2: 20, 3: 30}


@pytest.mark.parametrize("theirs", [append, delete_lone])
@pytest.mark.parametrize("where", [None, "id < 3"])
def test_p40_what_it_read_is_as_java_left_it(
    place: Place, lake: frazil.Lake, theirs: Callable[[Place], Callable[[], None]], where: str | None
) -> None:
    tx = held(lake, Phase.PREPARED, theirs(place))
    tx.table("s.a").append([{"id": 7, "v": tx.table("s.b").scan(where=where).count()}])
    if where is None:
        with pytest.raises(frazil.ConflictError, match=r"s\.b: "):
            tx.commit()
        assert 7 not in values(lake, "s.a")
    else:
        tx.commit()
        assert values(lake, "s.a")[7] == 2
    assert values(lake, "s.b") == by_java(place, "s.b") == AFTER[theirs]


def test_p40_java_that_began_before_a_transaction_lands_after_it(place: Place, lake: frazil.Lake) -> None:
    """Java's commit was made on the version before the transaction's: it loses the race, and repeats itself."""
    late = append(place)
    with lake.transaction() as tx:
        transfer(tx)
    late()
    changed = {1: 11, 2: 20, 3: 30, 50: 500}
    assert values(lake, "s.b") == by_java(place, "s.b") == changed
    assert values(lake, "s.a")[1] == 9

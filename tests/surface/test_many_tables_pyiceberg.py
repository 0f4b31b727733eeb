"""PyIceberg changes one table of an open transaction: it is rebased or refused, and nothing of PyIceberg's is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import frazil
from frazil.commit.context import Phase
from surface.matrix import rows_of
from surface.three_tables import NAMES, heads, held, move, row, stray_files, three_tables, values

# With a file of its own, a row can be deleted without touching the file of the others.
LONE = row(3, 30)
APPENDED = row(50, 500)
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
MOMENTS = [Phase.HEAD_READ, Phase.PREPARED]


@pytest.fixture(params=["sqlite", "postgres"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[frazil.Lake]:
    with three_tables(request, tmp_path, request.param) as lake:
        for name in NAMES:
            lake.table(name).append([LONE])
        yield lake


def append(lake: frazil.Lake, name: str) -> None:
    lake.pyiceberg().load_table(name).append(pa.Table.from_pylist([APPENDED], SCHEMA))


def delete_lone(lake: frazil.Lake, name: str) -> None:
    lake.pyiceberg().load_table(name).delete("id = 3")


def delete_first(lake: frazil.Lake, name: str) -> None:
    lake.pyiceberg().load_table(name).delete("id = 1")


AFTER: dict[Callable[..., None], dict[int, int]] = {
    append: {1: 10, 2: 20, 3: 30, 50: 500},
    delete_lone: {1: 10, 2: 20},
    delete_first: {2: 20, 3: 30},
}


def meets(lake: frazil.Lake, at: Phase, theirs: Callable[[], None], mine: Callable[[frazil.Transaction], None]) -> Any:
    """The transaction, with what PyIceberg does at a phase of its commit."""
    tx = held(lake, at, theirs)
    mine(tx)
    return tx.commit()


def read_all(name: str, target: str) -> Callable[[frazil.Transaction], None]:
    def mine(tx: frazil.Transaction) -> None:
        tx.table(target).append([row(7, len(rows_of(tx.table(name))))])

    return mine


def read_first(name: str, target: str) -> Callable[[frazil.Transaction], None]:
    def mine(tx: frazil.Transaction) -> None:
        tx.table(target).append([row(7, tx.table(name).scan(where="id < 3").count())])

    return mine


@pytest.mark.parametrize("theirs", [append, delete_lone])
@pytest.mark.parametrize("at", MOMENTS)
def test_p40_it_is_rebased_over_what_pyiceberg_does_to_other_rows(
    lake: frazil.Lake, at: Phase, theirs: Callable[..., None]
) -> None:
    done = meets(lake, at, lambda: theirs(lake, "s.b"), move)
    assert done.attempts == 2
    changed = {key: v + 1 if key == 1 else v for key, v in AFTER[theirs].items()}
    assert values(lake, "s.b") == changed
    assert values(lake, "s.a") == {1: 9, 2: 20, 3: 30}
    assert 101 in values(lake, "s.c")
    arrow = lake.pyiceberg().load_table("s.b").scan().to_arrow().to_pylist()
    assert {each["id"]: each["v"] for each in arrow} == changed, "as PyIceberg reads it"
    # PyIceberg may leave files of its own in s.b.
    assert stray_files(lake, "s.a") == stray_files(lake, "s.c") == set()


@pytest.mark.parametrize("at", MOMENTS)
def test_p40_it_is_refused_when_pyiceberg_deletes_a_row_that_it_changes(lake: frazil.Lake, at: Phase) -> None:
    before = heads(lake)
    with pytest.raises(frazil.ConflictError, match=r"s\.b: ") as caught:
        meets(lake, at, lambda: delete_first(lake, "s.b"), move)
    assert {each.table for each in caught.value.conflicts} == {"s.b"}
    assert {name for name, location in heads(lake).items() if location != before[name]} == {"s.b"}
    assert values(lake, "s.b") == AFTER[delete_first]


@pytest.mark.parametrize("at", MOMENTS)
@pytest.mark.parametrize("theirs", [append, delete_lone])
@pytest.mark.parametrize("where", [None, "id < 3"])
def test_p40_what_it_read_is_as_pyiceberg_left_it(
    lake: frazil.Lake, at: Phase, theirs: Callable[..., None], where: str | None
) -> None:
    """It reads s.b and writes to s.a: refused if what PyIceberg did concerns the rows that it read."""

    def mine(tx: frazil.Transaction) -> None:
        tx.table("s.a").append([row(7, tx.table("s.b").scan(where=where).count())])

    if where is None:
        with pytest.raises(frazil.ConflictError, match=r"s\.b: "):
            meets(lake, at, lambda: theirs(lake, "s.b"), mine)
        assert 7 not in values(lake, "s.a")
    else:
        meets(lake, at, lambda: theirs(lake, "s.b"), mine)
        assert values(lake, "s.a")[7] == 2
    assert values(lake, "s.b") == AFTER[theirs]


@pytest.mark.parametrize("name", ["s.a", "s.b"])
def test_p40_pyiceberg_loses_to_a_transaction_that_lands_while_it_writes(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """s.a is written by the transaction, so PyIceberg has to repeat its commit; s.b is only read, so it need not."""
    theirs = lake.pyiceberg()
    assert isinstance(theirs, SqlCatalog)
    write, waiting, written = theirs._write_metadata, [1], []

    def while_we_commit(*args: Any, **kwargs: Any) -> None:
        if waiting:
            waiting.pop()
            with lake.transaction() as tx:
                tx.table("s.c").append([row(7, len(rows_of(tx.table("s.b"))))])
                tx.table("s.a").append([row(7, 7)])
        written.append(args)
        write(*args, **kwargs)

    monkeypatch.setattr(theirs, "_write_metadata", while_we_commit)
    append(lake, name)
    assert waiting == []
    assert len(written) == (2 if name == "s.a" else 1)
    assert values(lake, name)[50] == 500
    assert (values(lake, "s.a")[7], values(lake, "s.c")[7]) == (7, 3)

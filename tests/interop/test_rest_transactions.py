"""Transactions over several tables on Iceberg's own REST server, which checks all tables and commits one by one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

import frazil
from frazil.commit.context import Phase
from interop.rest_server import RestServer
from surface.three_tables import DDL, held, row, values

pytestmark = pytest.mark.interop


@pytest.fixture
def names(rest_server: RestServer) -> tuple[str, str, str]:
    space = f"s{uuid.uuid4().hex[:8]}"
    return f"{space}.a", f"{space}.b", f"{space}.c"


@pytest.fixture
def lake(rest_server: RestServer, names: tuple[str, str, str]) -> Iterator[frazil.Lake]:
    with frazil.connect(rest_server.url) as lake:
        lake.create_namespace(names[0].split(".")[0])
        for name in names:
            lake.create_table(name, DDL, keys=["id"]).append([row(1, 10), row(2, 20)])
        yield lake


def move(tx: frazil.Transaction, names: tuple[str, str, str]) -> None:
    tx.table(names[0]).update(set={"v": "v - 1"}, where="id = 1")
    tx.table(names[1]).update(set={"v": "v + 1"}, where="id = 1")
    tx.table(names[2]).append([row(101, 0)])


def was_moved(lake: frazil.Lake, names: tuple[str, str, str]) -> bool:
    found = [values(lake, names[0])[1], values(lake, names[1])[1], values(lake, names[2]).get(101)]
    assert found in ([9, 11, 0], [10, 10, None]), found
    return found == [9, 11, 0]


def test_p40_a_java_server_commits_three_tables(lake: frazil.Lake, names: tuple[str, str, str]) -> None:
    assert lake.catalog.capabilities.swaps_tables, "the server lists the endpoint"
    for attempt in range(2):
        with lake.transaction(commit_id="three") as tx:
            move(tx, names)
        assert isinstance(tx.result, frazil.TransactionCommit)
        assert tx.result.already_committed is bool(attempt)
    assert was_moved(lake, names)


def test_every_kind_of_change_lands_on_a_java_server(lake: frazil.Lake, names: tuple[str, str, str]) -> None:
    with lake.transaction() as tx:
        a = tx.table(names[0])
        a.add_column("note", "string")
        a.append([{"id": 3, "v": 30, "note": "x"}])
        a.delete("id = 1")
        tx.table(names[1]).set_properties({"owner": "ann"})
        tx.table(names[2]).set_partitioning(["bucket(4, id)"])
        tx.table(names[2]).append([row(3, 30)])
    assert values(lake, names[0]) == {2: 20, 3: 30}
    assert lake.table(names[1]).properties["owner"] == "ann"
    assert (values(lake, names[2])[3], len(lake.table(names[2]).spec.fields)) == (30, 1)


def test_p30_an_answer_lost_by_a_java_server_is_found_out(
    lake: frazil.Lake, names: tuple[str, str, str], rest_server: RestServer
) -> None:
    tx = held(lake, Phase.PREPARED, lambda: rest_server.lose_answers(1))
    move(tx, names)
    assert isinstance(tx.commit(), frazil.TransactionCommit)
    assert was_moved(lake, names)


def test_p30_a_request_that_a_java_server_never_applied_is_sent_again(
    lake: frazil.Lake, names: tuple[str, str, str], rest_server: RestServer
) -> None:
    tx = held(lake, Phase.PREPARED, lambda: rest_server.refuse(1), retry=frazil.Retry(base_ms=1))
    move(tx, names)
    assert isinstance(tx.commit(), frazil.TransactionCommit)
    assert was_moved(lake, names)


def test_p40_an_append_of_pyiceberg_is_rebased_over_on_a_java_server(
    lake: frazil.Lake, names: tuple[str, str, str], rest_server: RestServer
) -> None:
    table = RestCatalog("theirs", uri=rest_server.url).load_table(names[0])
    rows = pa.table({"id": [9], "v": [90]}, schema=table.schema().as_arrow())
    with held(lake, Phase.PREPARED, lambda: table.append(rows)) as tx:
        move(tx, names)
    assert isinstance(tx.result, frazil.TransactionCommit)
    assert tx.result.attempts == 2
    assert was_moved(lake, names)
    assert values(lake, names[0])[9] == 90


def test_p40_a_java_server_compares_a_table_that_was_only_read(lake: frazil.Lake, names: tuple[str, str, str]) -> None:
    """Requirements without updates: with the same rows read the commit is rebased, with other ones refused."""
    a, b, _ = names
    tx = held(lake, Phase.PREPARED, lambda: lake.table(b).append([row(50, 0)]))
    assert tx.table(b).scan(where="id < 10").count() == 2
    tx.table(a).append([row(3, 0)])
    done = tx.commit()
    assert done is not None
    assert done.attempts == 2
    tx = held(lake, Phase.PREPARED, lambda: lake.table(b).append([row(5, 0)]))
    tx.table(b).scan(where="id < 10").count()
    tx.table(a).append([row(4, 0)])
    with pytest.raises(frazil.ConflictError, match=rf"{b}: "):
        tx.commit()
    assert 4 not in values(lake, a)


def test_a_java_server_creates_no_table_with_the_others(lake: frazil.Lake, names: tuple[str, str, str]) -> None:
    made = names[0].replace(".a", ".made")
    tx = lake.transaction()
    tx.create_table(made, DDL, as_=[row(1, 1)])
    tx.table(names[0]).append([row(3, 0)])
    with pytest.raises(frazil.Unsupported, match=f"does not create {made} in a transaction"):
        tx.commit()
    assert not lake.exists(made)
    assert 3 not in values(lake, names[0])

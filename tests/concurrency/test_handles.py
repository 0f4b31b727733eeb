"""Handles that close, pickle and survive fork; threads that share one."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import frazil
from concurrency.writers import SCHEMA, batch, batches_in


@pytest.fixture(params=["folder", "postgres"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[frazil.Lake]:
    if request.param == "folder":
        lake = frazil.connect(str(tmp_path / "lake"))
    else:
        lake = frazil.connect(request.getfixturevalue("postgres_uri"), warehouse=f"file://{tmp_path}/wh")
    lake.create_namespace("ns")
    lake.create_table("ns.t", SCHEMA)
    yield lake
    lake.close()


def test_threads_share_a_lake(lake: frazil.Lake) -> None:
    table = lake.table("ns.t")
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda number: table.append(batch(0, number)), range(24)))
    assert len({(each.snapshot_id, each.group_index) for each in done}) == 24
    assert sorted(commit.commit_id for each in table.history() for commit in each.commits) == sorted(
        each.commit_id for each in done
    )
    assert batches_in(table.scan().to_arrow()) == [(0, number) for number in range(24)]


def test_a_pickled_table_opens_its_lake_again(lake: frazil.Lake) -> None:
    table = pickle.loads(pickle.dumps(lake.table("ns.t")))
    table.append(batch(1, 1))
    assert lake.table("ns.t").scan().count() == 10
    table._lake.close()


def test_a_forked_child_writes_and_the_parent_goes_on(lake: frazil.Lake) -> None:
    table = lake.table("ns.t")
    table.append(batch(0, 0))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            table.append(batch(1, 0))
            code = 0
        finally:
            os._exit(code)
    table.append(batch(0, 1))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    table.append(batch(0, 2))
    assert batches_in(table.scan().to_arrow()) == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_secrets_are_shown_nowhere(lake: frazil.Lake) -> None:
    from servers import PASSWORD

    shown = [repr(lake), str(lake.uri), repr(lake.table("ns.t")), repr(lake.table("ns.t").scan())]
    assert not [text for text in shown if PASSWORD in text]


def test_a_lake_closes_as_a_context(tmp_path: Path) -> None:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("ns")
    with frazil.connect(str(tmp_path / "lake"), create=False) as lake:
        assert lake.namespaces() == ["ns"]


def test_a_memory_lake_says_that_it_cannot_be_pickled() -> None:
    with pytest.raises(frazil.Unsupported, match="one process"):
        pickle.dumps(frazil.connect("memory://"))

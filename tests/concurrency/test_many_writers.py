"""Many processes append to one table at once, on real catalogs."""

from __future__ import annotations

import multiprocessing as mp
from pathlib import Path

import pytest

import frazil
from concurrency.writers import SCHEMA, Address, append_many, batches_in, start, unreferenced_files

WRITERS, BATCHES = 30, 20


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    warehouse = f"file://{tmp_path}/warehouse"
    sqlite = f"sqlite:///{tmp_path}/catalog.db"
    uri = sqlite if request.param == "sqlite" else request.getfixturevalue("postgres_uri")
    lake = frazil.connect(uri, warehouse=warehouse)
    lake.create_namespace("ns")
    # Every metadata file stays in the log, so that "no orphan" can be told from "older than the log".
    properties = {"write.metadata.previous-versions-max": "10000"}
    lake.create_table("ns.t", SCHEMA, properties=properties)
    lake.close()
    return Address(uri, "ns.t", warehouse)


@pytest.mark.timeout(900)
def test_thirty_writers_lose_nothing_and_leave_nothing(address: Address) -> None:
    context = mp.get_context("spawn")
    barrier, answers = context.Barrier(WRITERS), context.Queue()
    processes = [start(append_many, address, writer, BATCHES, barrier, answers) for writer in range(WRITERS)]
    acknowledged: list[tuple[int, int]] = []
    attempts: list[int] = []
    finished = 0
    while finished < WRITERS:
        writer, number, detail = answers.get(timeout=600)
        if number == "done":
            finished += 1
        else:
            assert number != "failed", f"writer {writer}: {detail}"
            acknowledged.append((writer, number))
            attempts.append(detail)
    for process in processes:
        process.join(60)
    expected = sorted((writer, number) for writer in range(WRITERS) for number in range(BATCHES))
    assert sorted(acknowledged) == expected
    table = address.open()
    assert batches_in(table.scan().to_arrow()) == expected
    assert table.scan().count() == WRITERS * BATCHES * 10
    assert batches_in(table.pyiceberg().scan().to_arrow()) == expected
    history = table.history()
    commits = [commit.commit_id for each in history for commit in each.commits]
    assert len(commits) == len(set(commits)) == WRITERS * BATCHES
    assert [each.sequence_number for each in history] == list(range(1, len(history) + 1))
    assert max(attempts) > 1 or len(history) < len(commits), "no writers raced, so this run proves nothing"
    assert unreferenced_files(table) == set()
    table._lake.close()

"""Many processes move money between two rows of one table with ``lake.run``, on real catalogs."""

from __future__ import annotations

import multiprocessing as mp
import os
import time
from pathlib import Path
from typing import Any

import pytest

import frazil
from concurrency.writers import Address

WRITERS = 16
MOVES = int(os.environ.get("FRAZIL_TRANSFERS", "4"))
START = 1_000


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    warehouse = f"file://{tmp_path}/warehouse"
    sqlite = f"sqlite:///{tmp_path}/catalog.db"
    uri = sqlite if request.param == "sqlite" else request.getfixturevalue("postgres_uri")
    with frazil.connect(uri, warehouse=warehouse) as lake:
        lake.create_namespace("ns")
        table = lake.create_table("ns.accounts", "id bigint not null, balance bigint", keys=["id"])
        table.append([{"id": 1, "balance": START}, {"id": 2, "balance": START}])
    return Address(uri, "ns.accounts", warehouse)


def move_many(address: Address, writer: int, count: int, barrier: Any, answers: Any) -> None:
    """Move 1 from one row to the other, ``count`` times; report how long each move took and its number of calls."""
    try:
        lake = frazil.connect(address.uri, warehouse=address.warehouse, create=False)
        calls = 0

        @lake.transactional
        def move(tx: frazil.Transaction, source: int, target: int) -> None:
            nonlocal calls
            calls += 1
            accounts = tx.table(address.table)
            found = {each["id"]: each["balance"] for each in accounts.scan().to_arrow().to_pylist()}
            accounts.update({"balance": frazil.lit(found[source] - 1)}, f"id = {source}")
            accounts.update({"balance": frazil.lit(found[target] + 1)}, f"id = {target}")

        barrier.wait(300)
        for _ in range(count):
            calls, began = 0, time.monotonic()
            move(*((1, 2) if writer % 4 else (2, 1)))
            answers.put((writer, calls, time.monotonic() - began))
        answers.put((writer, "done", None))
    except BaseException as error:
        answers.put((writer, "failed", f"{type(error).__name__}: {error} {getattr(error, '__notes__', '')}"))
        raise


@pytest.mark.timeout(900)
def test_sixteen_writers_of_two_rows_all_land(address: Address, capsys: pytest.CaptureFixture[str]) -> None:
    context = mp.get_context("fork")
    barrier, answers = context.Barrier(WRITERS), context.Queue()
    processes = [
        context.Process(target=move_many, args=(address, writer, MOVES, barrier, answers)) for writer in range(WRITERS)
    ]
    for process in processes:
        process.start()
    landed: list[int] = []
    calls: list[int] = []
    waits: list[float] = []
    finished = 0
    while finished < WRITERS:
        writer, number, detail = answers.get(timeout=600)
        if number == "done":
            finished += 1
        else:
            assert number != "failed", f"writer {writer}: {detail}"
            landed.append(writer)
            calls.append(number)
            waits.append(detail)
    for process in processes:
        process.join(60)
    with capsys.disabled():
        print(
            f"\n{len(landed)} moves by {WRITERS} processes: longest wait {max(waits):.2f} s, "
            f"mean {sum(waits) / len(waits):.2f} s, most calls {max(calls)}, mean {sum(calls) / len(calls):.1f}"
        )
    assert sorted(landed) == sorted([*range(WRITERS)] * MOVES)
    assert max(calls) > 1, "no two moves met, so this run proves nothing"
    backwards = MOVES * sum(writer % 4 == 0 for writer in range(WRITERS))
    forwards = WRITERS * MOVES - backwards
    rows = address.open().scan().to_arrow().to_pylist()
    assert {each["id"]: each["balance"] for each in rows} == {
        1: START - forwards + backwards,
        2: START + forwards - backwards,
    }

"""kill -9 at random moments, then the same commit ids again: every batch is there exactly once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import frazil
from concurrency.writers import SCHEMA, Address, batches_in

WRITERS, BATCHES, KILLS = 4, 12, 24


def launch(address: Address, writer: int, acknowledged: Path) -> subprocess.Popen[bytes]:
    first = len(acknowledged.read_text().split()) if acknowledged.exists() else 0
    module = Path(__file__).parent / "writers.py"
    arguments = [address.uri, address.table, str(writer), str(first), str(BATCHES), str(acknowledged)]
    return subprocess.Popen([sys.executable, str(module), *arguments])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_no_acknowledged_row_is_lost_and_no_other_row_comes_twice(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db" if kind == "sqlite" else request.getfixturevalue("postgres_uri")
    lake = frazil.connect(uri, warehouse=f"file://{tmp_path}/warehouse")
    lake.create_namespace("ns")
    table = lake.create_table("ns.t", SCHEMA)
    address = Address(uri, "ns.t")
    chance = random.Random(20_26)
    acks = [tmp_path / f"acks-{writer}" for writer in range(WRITERS)]
    running = {writer: launch(address, writer, acks[writer]) for writer in range(WRITERS)}
    kills = 0
    while running:
        # A random moment, not a synchronisation: the test must hold wherever the kill falls.
        time.sleep(chance.uniform(0.05, 1.2))
        for writer, process in list(running.items()):
            if process.poll() is not None:
                assert process.returncode in (0, -signal.SIGKILL), f"writer {writer} failed by itself"
                if process.returncode == 0:
                    del running[writer]
                else:
                    running[writer] = launch(address, writer, acks[writer])
        if kills < KILLS and running:
            os.kill(running[chance.choice(sorted(running))].pid, signal.SIGKILL)
            kills += 1
    expected = sorted((writer, number) for writer in range(WRITERS) for number in range(BATCHES))
    assert kills > WRITERS, "too few kills to prove anything"
    assert batches_in(table.scan().to_arrow()) == expected
    assert batches_in(table.pyiceberg().scan().to_arrow()) == expected
    lake.close()

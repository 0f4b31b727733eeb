"""The race of the command line with real processes; and its proof, which must not hold when something is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import frazil
from frazil.cli._race import SCHEMA, Acknowledged, Plan, prove, rows


def race(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "frazil", "race", "--folder", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_the_race_loses_nothing_and_says_so_without_a_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "demo lake"
    done = race(folder, "--writers", "4", "--commits", "3", "--rows", "5")
    assert done.returncode == 0, done.stderr
    assert "Nothing was lost." in done.stdout
    assert "Acknowledged batches found: 12 of 12" in done.stdout
    assert "PyIceberg reads 60 rows, Frazil 60" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    with frazil.connect(str(folder), create=False) as lake:
        assert lake.table("demo.race_1").scan().count() == 60


def test_a_second_race_leaves_the_first_ones_table_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "frazil", "race", "--folder", str(tmp_path), "--output", "json"]
    for number in (1, 2):
        done = subprocess.run(
            [*command, "--writers", "2", "--commits", "1"], capture_output=True, text=True, timeout=240, check=True
        )
        answer = json.loads(done.stdout)
        assert answer["nothing_lost"]
        assert answer["table"] == f"demo.race_{number}"


def test_the_printed_pyiceberg_lines_work(tmp_path: Path) -> None:
    done = race(tmp_path / "lake", "--writers", "2", "--commits", "1", "--rows", "5")
    lines = done.stdout.splitlines()
    start = lines.index("from pyiceberg.catalog.sql import SqlCatalog")
    snippet = "\n".join(lines[start : start + 3]) + "\ncatalog.close()\n"
    opened = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, timeout=240, check=False)
    assert opened.returncode == 0, opened.stderr
    assert "payload" in opened.stdout


def test_a_folder_that_cannot_be_a_lake_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a lake")
    done = race(file)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return Plan(folder=tmp_path / "lake", writers=1, commits=2, rows=3)


def committed(plan: Plan, batches: list[int]) -> list[Acknowledged]:
    """Append these batches of writer 0 and return what was acknowledged."""
    with frazil.connect(str(plan.folder)) as lake:
        lake.create_namespace("demo", exists_ok=True)
        table = lake.create_table("demo.t", SCHEMA)
        commits = [table.append(rows(plan, 0, batch)) for batch in batches]
    return [Acknowledged(0, batch, 1, each.snapshot_id or 0) for batch, each in zip(batches, commits, strict=True)]


def test_the_proof_holds_when_all_is_well(plan: Plan) -> None:
    acknowledged = committed(plan, [0, 1])
    with frazil.connect(str(plan.folder)) as lake:
        proof = prove(lake, plan, "demo.t", acknowledged)
    assert proof.holds
    assert proof.rows == 6


def test_the_proof_finds_a_batch_that_is_missing(plan: Plan) -> None:
    acknowledged = [*committed(plan, [0]), Acknowledged(0, 1, 1, 99)]
    with frazil.connect(str(plan.folder)) as lake:
        proof = prove(lake, plan, "demo.t", acknowledged)
    assert not proof.holds
    assert proof.missing == ((0, 1),)


def test_the_proof_finds_a_batch_that_is_there_twice(plan: Plan) -> None:
    acknowledged = committed(plan, [0, 0])
    with frazil.connect(str(plan.folder)) as lake:
        proof = prove(lake, plan, "demo.t", acknowledged[:1])
    assert not proof.holds
    assert proof.inexact == ((0, 0),)


def test_the_proof_finds_half_a_batch(plan: Plan) -> None:
    acknowledged = committed(plan, [0])
    larger = Plan(plan.folder, plan.writers, plan.commits, rows=plan.rows + 1)
    with frazil.connect(str(plan.folder)) as lake:
        proof = prove(lake, larger, "demo.t", acknowledged)
    assert not proof.holds


def test_the_proof_finds_an_unacknowledged_batch(plan: Plan) -> None:
    acknowledged = committed(plan, [0, 1])
    with frazil.connect(str(plan.folder)) as lake:
        proof = prove(lake, plan, "demo.t", acknowledged[:1])
    assert not proof.holds
    assert proof.unexpected == ((0, 1),)


def test_the_proof_finds_a_data_file_that_belongs_to_no_commit(plan: Plan) -> None:
    acknowledged = committed(plan, [0])
    with frazil.connect(str(plan.folder)) as lake:
        location = lake.table("demo.t").location.removeprefix("file://")
        stray = Path(location) / "data" / "stray.parquet"
        os.makedirs(stray.parent, exist_ok=True)
        stray.write_bytes(b"left behind")
        proof = prove(lake, plan, "demo.t", acknowledged)
    assert not proof.holds
    assert proof.stray_files == (str(stray),)


def test_ctrl_c_ends_the_race_at_once_and_without_tracebacks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "frazil", "race", "--folder", str(tmp_path / "lake"), "--commits", "100000"]
    process = subprocess.Popen(
        [*command, "--writers", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # If the tests run in the background, the signal is ignored, and a child inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    assert process.stderr is not None
    # The first line about commits: the race is on.
    said = next(line for line in process.stderr if "commits/s" in line)
    os.killpg(process.pid, signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said + rest

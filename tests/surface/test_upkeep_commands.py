"""frazil expire, orphans, vacuum and erase: what they do, print and answer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import frazil
from frazil.cli._app import app
from frazil.cli._upkeep import age_ms, moment_ms
from frazil.format.storage import local_path
from surface.disk import NAME, change_much, files, filled, named, stray

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def lake(tmp_path: Path) -> Any:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("s")
        yield lake


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(*arguments: str) -> tuple[int, str]:
        found = CliRunner().invoke(app, ["--uri", str(tmp_path / "lake"), *arguments])
        return found.exit_code, found.stdout

    return run


def test_expire(lake: frazil.Lake, run: Run) -> None:
    change_much(filled(lake))
    code, text = run("expire", NAME, "--older-than", "2100-01-01T00:00:00Z", "--dry-run")
    assert (code, text.strip()) == (0, "s.t: 6 snapshots would expire")
    code, text = run("expire", NAME, "--older-than", "0s", "--output", "json")
    facts = json.loads(text)
    assert (code, facts["snapshots"], facts["data_files"]) == (0, 6, 5)
    assert files(lake, lake.table(NAME)) == named(lake)
    assert "0 snapshots expired, 0 files deleted" in run("expire", NAME)[1]


def test_orphans_and_vacuum(lake: frazil.Lake, run: Run) -> None:
    table = filled(lake)
    left = stray(lake, table)
    code, text = run("orphans", NAME)
    assert (code, left in text) == (0, True)
    assert os.path.exists(local_path(left))
    assert json.loads(run("orphans", NAME, "--remove", "--output", "json")[1])["files_removed"] == 1
    assert not os.path.exists(local_path(left))
    change_much(table)
    stray(lake, table)
    code, text = run("vacuum", NAME, "--older-than", "0s")
    assert code == 0
    assert re.search(r"6 snapshots expired.*\n.*1 of 1 orphan removed", text)
    assert files(lake, table) == named(lake)


def test_erase(lake: frazil.Lake, run: Run) -> None:
    table = filled(lake)
    assert run("erase", NAME, "--where", "v = 'a'")[0] != 0
    assert table.scan().count() == 6
    code, text = run("erase", NAME, "--where", "v = :v", "--param", "v=a", "--yes")
    assert (code, "no row of the condition is left" in text) == (0, True)
    assert table.scan().count() == 3
    assert json.loads(run("erase", NAME, "--where", "v = 'a'", "--yes", "--output", "json")[1])["proven"] is True


def test_ages() -> None:
    assert [age_ms(each, "x") for each in ("7d", "12h", "30m", "10s", "5ms")] == [
        604800000,
        43200000,
        1800000,
        10000,
        5,
    ]
    assert moment_ms("1s", 5_000, "x") == 4_000
    assert moment_ms("1970-01-01T00:00:01+00:00", 0, "x") == 1_000
    for bad in ("7", "d", "x7d"):
        with pytest.raises(frazil.InvalidInput):
            age_ms(bad, "--older-than")

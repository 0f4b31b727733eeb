"""A short campaign: no acknowledged batch is lost, none is there twice, and the table can be read."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from chaos import campaign
from chaos.campaign import Campaign, Plan, run_apart
from chaos.faults import EVERYWHERE, ON_POSTGRES, RARE, Fault

NEED_SOMEBODY = {Fault.KILL_AT, Fault.FREEZE_AT, Fault.REPEAT, Fault.COPY, Fault.CUT_BEFORE, Fault.CUT_AFTER}
"""These do not strike if no writer reaches their moment."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("database", "faults"), [("sqlite", 24), ("postgres", 50)])
def test_whatever_happens_every_acknowledged_batch_is_there_once(database: str, faults: int, tmp_path: Path) -> None:
    report = run_apart(Plan(database, tmp_path, faults, seed=20_26))
    print(report)
    assert not report.violations, f"notes in {tmp_path}\n{report}"
    usual = EVERYWHERE if database == "sqlite" else ON_POSTGRES
    assert [fault for fault in usual if fault not in NEED_SOMEBODY and not report.faults[fault]] == []
    assert any(report.faults[fault] for fault in (Fault.KILL_AT, Fault.FREEZE_AT)), "no writer reached any moment"
    assert database == "sqlite" or any(report.faults[fault] for fault in (Fault.CUT_BEFORE, Fault.CUT_AFTER))
    assert database == "sqlite" or any(report.faults[fault] for fault in RARE)
    assert report.faults.total() >= faults * 2 // 3, "too few faults to prove anything"
    assert report.outcomes["acknowledged"] >= 3 * faults, "too few batches to prove anything"
    assert report.outcomes["refused"] > 0, "no fault was ever felt"


@pytest.mark.parametrize("is_locked", [True, False])
def test_only_an_orphaned_lock_excuses_a_standstill(
    is_locked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "_HELD_S", 0.0)
    plan = Plan("sqlite", tmp_path, 0, seed=0)
    are_held_up = Campaign(plan, "", "", None, None).are_held_up()
    with contextlib.closing(sqlite3.connect(tmp_path / "catalog.db")) as frozen:
        frozen.execute("BEGIN IMMEDIATE" if is_locked else "SELECT 1")
        assert are_held_up() is is_locked

"""kill -9 and SIGSTOP for group leaders: every batch is in the table exactly once, and other writers continue."""

from __future__ import annotations

from pathlib import Path

import pytest

from concurrency.leaders.campaign import Plan, run_apart
from concurrency.leaders.orders import Deed, Moment

ROUNDS = 50


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_group_outlives_its_leader(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db" if kind == "sqlite" else request.getfixturevalue("postgres_uri")
    folder = tmp_path / "orders"
    folder.mkdir()
    report = run_apart(Plan(uri, f"file://{tmp_path}/warehouse", folder, "ns.t", ROUNDS, seed=20_26))
    print(report)
    assert not report.violations, f"notes in {folder}\n{report}"
    for moment in Moment:
        assert report.rounds[moment, Deed.DIE] >= 3, "too few kills to prove anything"
        assert report.rounds[moment, Deed.FREEZE] >= 1
    assert report.shared >= ROUNDS // 2, "too few groups to prove anything"
    assert report.late["Stale"] > 0, "no frozen leader sent its swap too late"

"""The whole pipeline at once, in processes of its own, and the table compared with what its jobs were promised."""

from __future__ import annotations

from pathlib import Path

import pytest

import frazil
from frazil.verify.fleet import run as fleet
from frazil.verify.fleet.check import findings
from frazil.verify.fleet.plan import LOADED, Plan, Report, gathered


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_minutes_of_everybody_at_once(tmp_path: Path) -> None:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("shop")
        fleet.prepare(lake, "shop.events")
        plan = Plan(
            str(tmp_path / "lake"),
            "shop.events",
            str(tmp_path / "reports"),
            seconds=120,
            streams=4,
            stream_processes=2,
            readers=2,
        )
        outcome = fleet.run(lake, plan, lambda _reports, _seconds: None)
    assert outcome.findings == ()
    assert all(report.commits for job, report in outcome.reports.items() if not job.startswith("reader-"))


# The check itself must find what is wrong.


@pytest.fixture
def loaded(tmp_path: Path) -> tuple[frazil.Table, Plan, dict[str, Report]]:
    lake = frazil.connect(str(tmp_path / "lake"))
    lake.create_namespace("shop")
    table = fleet.prepare(lake, "shop.t")
    plan = Plan(str(tmp_path / "lake"), "shop.t", str(tmp_path), streams=0)
    done = [{"job": job, "done": True} for job in ("gdpr", "merge", "micro-batch")]
    return table, plan, gathered(["gdpr", "merge", "micro-batch"], done)


def test_the_check_holds_when_all_is_well(loaded: tuple[frazil.Table, Plan, dict[str, Report]]) -> None:
    assert findings(*loaded) == []


def test_the_check_finds_what_is_missing_doubled_or_not_promised(
    loaded: tuple[frazil.Table, Plan, dict[str, Report]],
) -> None:
    table, plan, reports = loaded
    table.delete(f"writer = '{LOADED}' and n = 17")
    table.append([{"writer": LOADED, "n": 18}, {"writer": "micro-batch", "n": 3}])
    reports["merge"].acknowledged.append([4000, 4001, 9])
    reports["gdpr"].failures.append("it broke")
    reports["micro-batch"].done = False
    found = " | ".join(findings(table, plan, reports))
    for words in (
        "row 18 of load exists twice",
        "1 row of load missing, the first is 17",
        "1 unacknowledged row of micro-batch found",
        "the amount is wrong",
        "1 row of merge missing",
        "gdpr: it broke",
        "micro-batch did not finish",
    ):
        assert words in found

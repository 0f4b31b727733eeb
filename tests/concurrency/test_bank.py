"""Transfers between tables by many processes, some of them killed; ``make bank`` runs ten minutes and 1,000 crashes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from concurrency.bank import campaign, crashes
from concurrency.writers import Address
from mutants.listed import MUTANTS
from mutants.mutant import source_with

SECONDS = float(os.environ.get("FRAZIL_BANK_SECONDS", "60"))
CRASHES = 21


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    sqlite = f"sqlite:///{tmp_path}/catalog.db"
    uri = sqlite if request.param == "sqlite" else request.getfixturevalue("postgres_uri")
    return Address(uri, "", f"file://{tmp_path}/warehouse")


@pytest.mark.timeout(900)
def test_p40_every_audit_of_the_bank_adds_up(
    address: Address, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cuts = 0.5 if address.uri.startswith("postgres") else 0.0
    report = campaign.run_apart(campaign.Plan(address, tmp_path / "acks", SECONDS, cuts_per_s=cuts))
    with capsys.disabled():
        print(f"\n{report}")
    assert report.violations == []
    assert report.transfers > 0
    assert report.audits > 0
    assert report.kills > 0


@pytest.mark.timeout(600)
def test_p40_a_crash_at_any_moment_leaves_all_tables_or_none(address: Address) -> None:
    report = crashes.run_apart(address, CRASHES)
    assert report.violations == []
    assert report.rounds.total() == CRASHES


@pytest.mark.timeout(600)
def test_the_crashes_notice_a_swap_that_is_committed_in_parts(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rounds, by processes whose catalog commits the first pointer before it sets the second."""
    (mutant,) = (each for each in MUTANTS if each.name.startswith("the first pointer of a swap is committed before"))
    with source_with(mutant) as source:
        monkeypatch.syspath_prepend(str(source))
        report = crashes.run_apart(address, len(crashes.Moment))
    assert any(crashes.Moment.INSIDE in each for each in report.violations), str(report)

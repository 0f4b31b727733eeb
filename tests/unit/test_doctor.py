"""The doctor's verdicts as pure functions: what was told and seen → findings."""

from __future__ import annotations

import json

import pytest

from frazil.catalog.base import Committed, Stale, Unknown
from frazil.errors import InvalidInput
from frazil.model import Ident
from frazil.verify.doctor import Finding, Report, examine
from frazil.verify.doctor.judge import condense, judge_history, judge_repeat, judge_round, no_swap_landed
from frazil.verify.doctor.model import Answer, Observation, Refused, Round, SentSwap
from frazil.verify.doctor.races import skew_ms
from frazil.verify.doctor.surroundings import (
    catalog_names,
    clock,
    file_system,
    overlaps,
    pooler,
    postgres_settings,
    sqlite_journal,
    sqlite_synchronous,
)

HEAD, HEAD_AT = 100, "m/100.json"
DURABLE = {"synchronous_commit": "on", "fsync": "on", "full_page_writes": "on"}


def swap(snapshot_id: int, answer: Answer, expected: int | None = HEAD) -> SentSwap:
    return SentSwap(snapshot_id, expected, snapshot_id, f"m/{snapshot_id}.json", answer)


def observed(snapshot_id: int | None, worker: int = 0) -> Observation:
    return Observation(worker, f"m/{snapshot_id}.json", snapshot_id, 5, 0, 10)


def won(snapshot_id: int) -> Committed:
    return Committed(f"m/{snapshot_id}.json")


def played(*swaps: SentSwap, after: tuple[int | None, ...], kind: str = "race") -> Round:
    return Round(1, kind, HEAD, HEAD_AT, swaps, tuple(observed(each, worker) for worker, each in enumerate(after)))


def kinds(findings: list[Finding]) -> list[str]:
    return [finding.what.lstrip("0123456789 ") for finding in findings]


FAIR = played(swap(1, won(1)), swap(2, Stale("m/1.json")), after=(1, 1))
TWO_WINNERS = played(swap(1, won(1)), swap(2, won(2)), after=(2, 2))
LATE_WINNER = played(swap(1, won(1), expected=50), after=(1, 1), kind="delayed")
STALE_READ = played(swap(1, won(1)), swap(2, Stale("m/1.json")), after=(1, HEAD))
WRONG_HEAD = played(swap(1, won(1)), swap(2, Stale("m/1.json")), after=(2, 2))
STALE_YET_HEAD = played(swap(1, Stale("m/9.json")), swap(2, Stale("m/9.json")), after=(1, 1))
LATE_AND_SILENT = played(swap(1, Unknown("lost"), expected=50), after=(1, 1), kind="delayed")
STRANGER = played(swap(1, Stale("m/7.json")), after=(7, 7))
TABLE_GONE = played(swap(1, won(1)), swap(2, Stale(None)), after=(1, 1))
OLD_VALUE = played(swap(1, won(1)), swap(2, Stale(HEAD_AT)), after=(1, 1))
LATE_LOSER = played(swap(1, Stale(HEAD_AT), expected=50), after=(HEAD, HEAD), kind="delayed")
UNKNOWN_LANDED = played(swap(1, Unknown("lost")), swap(2, Stale("m/1.json")), after=(1, 1))
REFUSED = played(swap(1, Refused("CatalogUnavailable")), swap(2, won(2)), after=(2, 2))


@pytest.mark.parametrize("fair", [FAIR, LATE_LOSER, UNKNOWN_LANDED, REFUSED])
def test_a_fair_round_has_no_finding(fair: Round) -> None:
    assert judge_round(fair, stale_is_certain=True) == []


@pytest.mark.parametrize(
    ("unfair", "what"),
    [
        (TWO_WINNERS, "swaps from one expected value were all answered Committed"),
        (LATE_WINNER, "A swap with an old expected value was answered Committed"),
        (STALE_READ, "A read after an acknowledged commit did not see it (stale read)"),
        (WRONG_HEAD, "The head after a round is not the winner's"),
        (STALE_YET_HEAD, "A swap that was answered Stale is the head"),
        (LATE_AND_SILENT, "A swap with an old expected value landed over newer work"),
        (STRANGER, "The head moved to a snapshot that no process sent in this round"),
        (TABLE_GONE, "A lost swap was answered that the table is gone"),
        (OLD_VALUE, "A lost swap was answered with its own expected value, not with the winner's"),
    ],
)
def test_each_broken_promise_is_a_violation_with_evidence(unfair: Round, what: str) -> None:
    findings = judge_round(unfair, stale_is_certain=True)

    assert set(kinds(findings)) == {what}
    assert all(finding.severity == "violation" and "ound 1" in finding.evidence for finding in findings)


def test_p30_a_stale_that_its_catalog_does_not_vouch_for_may_have_landed() -> None:
    assert judge_round(STALE_YET_HEAD, stale_is_certain=False) == []


def test_a_race_without_a_winner_is_noticed() -> None:
    assert no_swap_landed(played(swap(1, Refused("x")), swap(2, Refused("x")), after=(HEAD, HEAD)))
    assert not no_swap_landed(FAIR)
    assert not no_swap_landed(UNKNOWN_LANDED)


def test_a_repeated_request_must_leave_the_head_alone() -> None:
    moved = judge_repeat(won(1), had_won=True, before=observed(9), after=[observed(1)])
    still = judge_repeat(won(1), had_won=True, before=observed(9), after=[observed(9)])

    assert kinds(moved) == ["A repeated request moved the head"]
    assert still == []


def test_a_loser_must_not_win_by_asking_again() -> None:
    findings = judge_repeat(won(1), had_won=False, before=observed(9), after=[observed(9)])

    assert kinds(findings) == ["A lost swap was answered Committed when it was sent again"]
    assert judge_repeat(Stale("m/9.json"), had_won=False, before=observed(9), after=[observed(9)]) == []


def test_history_keeps_what_was_acknowledged_once_and_nothing_that_was_denied() -> None:
    assert judge_history([1, 2], {3}, [2, 1]) == []
    assert "lost updates" in judge_history([1, 2], set(), [2])[0].what
    assert "Stale" in judge_history([1], {3}, [3, 1])[0].what
    assert "twice" in judge_history([1], set(), [1, 1])[0].what


def test_findings_of_one_kind_are_told_once_with_their_number() -> None:
    many = [
        Finding("violation", "2 swaps won", "round 1"),
        Finding("violation", "7 swaps won", "round 2"),
        Finding("violation", "Another thing", "round 2"),
    ]

    assert [(each.what, each.evidence) for each in condense(many)] == [
        ("2 swaps won", "round 1 (seen 2 times)"),
        ("Another thing", "round 2"),
    ]


def test_the_verdict_is_one_of_two_sentences() -> None:
    fine = Report("x", 50, 8, 1.0, (Finding("warning", "w", "e"), Finding("ok", "o", "e")))
    broken = Report("x", 50, 8, 1.0, (Finding("violation", "v", "e"),))

    assert (fine.verdict, fine.exit_status) == ("no violation in 50 rounds", 0)
    assert (broken.verdict, broken.exit_status) == ("not atomic", 1)
    assert json.loads(broken.to_json())["verdict"] == "not atomic"


@pytest.mark.parametrize(
    ("now_ms", "skew"),
    [(50, 0), (0, 0), (100, 0), (-30, -30), (130, 30)],
    ids=["inside", "asked", "told", "slow", "fast"],
)
def test_skew_is_what_no_delay_of_the_call_explains(now_ms: int, skew: int) -> None:
    assert skew_ms(Observation(0, "m", 1, now_ms, 0, 100)) == skew


# Surroundings


@pytest.mark.parametrize(
    ("finding", "severity"),
    [
        (sqlite_journal("wal"), "ok"),
        (sqlite_journal("delete"), "warning"),
        (sqlite_journal("off"), "warning"),
        (sqlite_synchronous(2), "ok"),
        (sqlite_synchronous(1), "warning"),
        (file_system("/lake/catalog.db", None), "ok"),
        (file_system("/lake/catalog.db", "nfs4"), "warning"),
        (pooler(moved=False, forgot=False), "ok"),
        (pooler(moved=True, forgot=False), "warning"),
        (pooler(moved=False, forgot=True), "warning"),
        (clock(0), "ok"),
        (clock(-70_000), "warning"),
        (catalog_names(["frazil", "frazil"], "frazil")[0], "ok"),
        (catalog_names(["frazil", "prod"], "frazil")[0], "warning"),
        (postgres_settings(DURABLE, standby=False)[0], "ok"),
        (postgres_settings(DURABLE, standby=True)[0], "warning"),
        (postgres_settings({**DURABLE, "fsync": "off"}, standby=False)[0], "warning"),
        (postgres_settings({**DURABLE, "full_page_writes": "off"}, standby=False)[0], "warning"),
        (postgres_settings({**DURABLE, "synchronous_commit": "off"}, standby=False)[0], "warning"),
        (postgres_settings({**DURABLE, "synchronous_commit": "local"}, standby=False)[0], "warning"),
    ],
)
def test_each_setting_is_judged(finding: Finding, severity: str) -> None:
    assert finding.severity == severity
    assert finding.evidence
    assert severity == "ok" or finding.advice


def test_tables_at_or_under_another_ones_folder_are_found() -> None:
    def name(text: str) -> Ident:
        return Ident(("s",), text)

    locations = {
        name("a"): "file:///w/a",
        name("same"): "/w/a/",
        name("under"): "file:/w/a/deep/er",
        name("beside"): "file:///w/ab",
        name("between"): "file:///w/a!",
        name("bucket"): "s3://b/t",
        name("spelt"): "s3a://b/t/inner",
        name("other"): "s3://c/t",
    }

    found = {frozenset((inner.name, outer.name)) for inner, outer in overlaps(locations)}

    assert found == {frozenset(("a", "same")), frozenset(("under", "same")), frozenset(("bucket", "spelt"))}


# Bad input


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"processes": 1}, {"stall_s": -1.0}])
def test_a_race_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        examine("./lake", **wrong)  # type: ignore[arg-type]


def test_a_lake_in_memory_cannot_be_raced_by_processes() -> None:
    with pytest.raises(InvalidInput, match="one process"):
        examine("memory://")

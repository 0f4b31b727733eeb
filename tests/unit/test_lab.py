"""The waiting lab on its virtual clock, its figures and its picture."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.commit.retry import Retry
from frazil.errors import InvalidInput, Unsupported
from frazil_verification.lab import (
    ARRIVALS,
    PUBLISHED,
    Arrivals,
    LabReport,
    Load,
    Policy,
    Sample,
    backoff,
    histogram,
    percentile,
    plot,
    simulate,
    summarise,
)

SMALL = Load(commits=1500)
RETRY = Retry()


def rate(policy: Policy, load: Load, seed: int = 1) -> float:
    return summarise(policy, load, *simulate(policy, load, RETRY, seed)).retry_rate


def mean(policy: Policy, load: Load, seed: int = 1) -> float:
    return summarise(policy, load, *simulate(policy, load, RETRY, seed)).mean_retries


def small_report(mode_sweep: bool = False) -> LabReport:
    return backoff(writers=8, commits=200, seed=3, sweep=mode_sweep)


# Waiting


@given(n=st.integers(0, 100), chance=st.floats(0, 1, exclude_max=True))
def test_jitter_waits_between_half_and_one_and_a_half_times_the_capped_power_of_two(n: int, chance: float) -> None:
    middle = min(RETRY.base_ms * 2.0**n, RETRY.cap_ms) / 1000

    # The largest chance below 1 may round up to the bound itself.
    assert 0.5 * middle <= Policy.JITTER.wait_s(n, chance, RETRY) <= 1.5 * middle


@given(n=st.integers(0, 100), chance=st.floats(0, 1, exclude_max=True))
def test_only_jitter_depends_on_chance(n: int, chance: float) -> None:
    assert Policy.LINEAR.wait_s(n, chance, RETRY) == Policy.LINEAR.wait_s(n, 0.0, RETRY)
    assert Policy.EXPONENTIAL.wait_s(n, chance, RETRY) == min(RETRY.base_ms * 2.0**n, RETRY.cap_ms) / 1000


def test_linear_waits_grow_by_the_base_up_to_the_cap() -> None:
    waits = [Policy.LINEAR.wait_s(n, 0.5, Retry(base_ms=100, cap_ms=250)) for n in range(4)]

    assert waits == [0.1, 0.2, 0.25, 0.25]


# The simulation


@pytest.mark.parametrize("arrivals", ARRIVALS)
def test_the_same_seed_gives_the_same_commits(arrivals: Arrivals) -> None:
    load = replace(SMALL, arrivals=arrivals)

    assert simulate(Policy.JITTER, load, RETRY, 7) == simulate(Policy.JITTER, load, RETRY, 7)


def test_another_seed_gives_other_commits() -> None:
    assert simulate(Policy.JITTER, SMALL, RETRY, 7) != simulate(Policy.JITTER, SMALL, RETRY, 8)


def test_a_single_writer_never_retries() -> None:
    samples, _ = simulate(Policy.LINEAR, replace(SMALL, writers=1, commits=100), RETRY, 1)

    assert {sample.retries for sample in samples} == {0}


def test_two_writers_in_step_lose_once_each_time_they_meet_and_then_keep_apart() -> None:
    load = Load(writers=2, commits=20, think_s=1.0, arrivals="clockwork", variation=0.0)

    samples, _ = simulate(Policy.LINEAR, load, RETRY, 1)

    # The first round is one race with one loser; its wait of 50 ms is longer than an attempt, so it is alone for good.
    assert sorted(sample.retries for sample in samples) == [0] * 19 + [1]


@pytest.mark.parametrize("seed", range(1, 6))
def test_writers_in_step_retry_less_with_jitter_than_with_linear_waits(seed: int) -> None:
    load = replace(SMALL, arrivals="clockwork", think_s=1.0)

    assert rate(Policy.JITTER, load, seed) < rate(Policy.LINEAR, load, seed)
    assert mean(Policy.JITTER, load, seed) < mean(Policy.LINEAR, load, seed)


@pytest.mark.parametrize("seed", range(1, 6))
def test_writers_on_one_trigger_need_fewer_retries_with_jitter(seed: int) -> None:
    load = replace(SMALL, arrivals="trigger", think_s=10.0, spread_s=0.0)

    assert mean(Policy.JITTER, load, seed) < mean(Policy.EXPONENTIAL, load, seed) < mean(Policy.LINEAR, load, seed)


def test_unrelated_writers_at_a_light_load_retry_equally_often_under_every_policy() -> None:
    load = replace(SMALL, arrivals="independent", think_s=10.0, commits=6000)

    rates = [rate(policy, load) for policy in Policy]

    # The first attempt loses by the rate of commits alone: 30 writers / 10 s × 42 ms between read and swap.
    assert rates == pytest.approx([0.12] * 3, abs=0.02)


def test_no_waiting_lifts_the_throughput_over_one_attempt_after_the_other() -> None:
    load = replace(SMALL, arrivals="independent", think_s=0.0, variation=0.0)
    ceiling = 1000 / (load.prepare_ms + load.swap_ms)

    for policy in Policy:
        samples, elapsed = simulate(policy, load, RETRY, 1)
        assert sum(sample.landed for sample in samples) / elapsed <= ceiling


def test_attempts_that_share_a_machine_take_longer() -> None:
    load = Load(writers=4, commits=4, arrivals="clockwork", think_s=1.0, variation=0.0)
    alone, _ = simulate(Policy.LINEAR, load, RETRY, 1)
    crowded, _ = simulate(Policy.LINEAR, replace(load, slots=1), RETRY, 1)

    assert min(sample.seconds for sample in alone) == pytest.approx(0.046)
    assert min(sample.seconds for sample in crowded) == pytest.approx(4 * 0.046)


# The figures


def test_figures_are_counted_as_their_names_say() -> None:
    samples = [Sample(0, 0.1, True), Sample(0, 0.2, True), Sample(5, 0.3, True), Sample(9, 0.4, False)]

    row = summarise("linear", SMALL, samples, 2.0)

    assert (row.commits, row.failures, row.max_retries) == (4, 1, 9)
    assert (row.retry_rate, row.mean_retries, row.mean_retries_of_retried) == (0.5, 3.5, 7.0)
    assert (row.over_4, row.at_least_8) == (0.5, 0.25)
    # 18 attempts: 14 retries lost before, and the last one of the commit that failed.
    assert row.lost_attempts == pytest.approx(15 / 18)
    assert (row.p50_ms, row.per_second) == (200.0, 1.5)


def test_a_histogram_counts_each_number_of_retries() -> None:
    assert histogram([Sample(0, 0, True), Sample(2, 0, True), Sample(2, 0, True)]) == (1, 0, 2)


def test_a_percentile_of_nothing_is_zero_and_of_one_value_that_value() -> None:
    assert percentile([], 0.99) == 0.0
    assert percentile([4.0], 0.99) == 4.0


def test_the_published_mean_can_only_be_that_of_retried_commits() -> None:
    # 6 % retried with none above 4 is at most 0.24 retries per commit, and at least 1.06 attempts: 1.04 is neither.
    jitter = PUBLISHED["jitter"]
    assert jitter.mean_retries_of_retried is not None

    assert jitter.retry_rate * 4 < jitter.mean_retries_of_retried < 1 + jitter.retry_rate


def test_a_report_has_a_row_for_each_policy_and_a_sweep_to_compare_with() -> None:
    report = small_report(mode_sweep=True)

    assert [row.policy for row in report.rows] == ["linear", "exponential", "jitter"]
    assert {row.arrivals for row in report.sweep} == set(ARRIVALS)
    near = report.closest("jitter", "independent")
    assert near is not None
    others = [row for row in report.sweep if (row.policy, row.arrivals) == ("jitter", "independent")]
    assert all(abs(near.retry_rate - 0.06) <= abs(row.retry_rate - 0.06) for row in others)


def test_a_report_compares_itself_with_the_published_figures() -> None:
    linear, _, jitter = small_report(mode_sweep=True).comparison()

    assert linear.startswith("linear: published 35% retried, 4.1 retries each; here ")
    assert "6% retried, 1.04 retries each, 0.0% with 8 or more" in jitter
    assert "nearest with independent arrivals, think time" in jitter


def test_a_report_is_json() -> None:
    plain = json.loads(small_report().to_json())

    assert plain["rows"][0]["policy"] == "linear"
    assert plain["published"]["linear"]["retry_rate"] == 0.35
    assert plain["load"]["writers"] == 8


def test_progress_is_reported_to_the_end() -> None:
    told: list[tuple[int, int, str]] = []

    backoff(writers=4, commits=50, sweep=False, on_progress=lambda *each: told.append(each))

    assert [(done, total) for done, total, _ in told] == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"policies": ["quadratic"]},
        {"policies": []},
        {"mode": "threads"},
        {"writers": 0},
        {"commits": 0},
    ],
)
def test_bad_input_is_refused_before_anything_runs(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        backoff(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"think_s": -1.0}, {"slots": 0.0}, {"arrivals": "trigger", "think_s": 0.0}])
def test_a_load_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        Load(**wrong)  # type: ignore[arg-type]


# The picture


@pytest.mark.parametrize("sweep", [True, False])
def test_a_report_is_drawn_as_a_png(sweep: bool, tmp_path: Path) -> None:
    plot(small_report(sweep), tmp_path / "lab.png")

    assert (tmp_path / "lab.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_ending_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="Cannot draw"):
        plot(small_report(), tmp_path / "lab.nonsense")


def test_without_matplotlib_the_sentence_says_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    with pytest.raises(Unsupported, match=r"pip install 'frazil\[verify\]'"):
        plot(small_report(), tmp_path / "lab.png")

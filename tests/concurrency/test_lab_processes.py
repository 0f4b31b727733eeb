"""The waiting lab with real processes on a real SQLite lake."""

from __future__ import annotations

from frazil.commit.retry import Retry
from frazil_verification.lab import Load, backoff


def test_every_commit_of_every_process_is_counted() -> None:
    report = backoff(writers=4, commits=10, policies=["linear", "jitter"], mode="processes", load=Load(think_s=0.0))

    assert [(row.policy, row.commits, row.failures) for row in report.rows] == [("linear", 10, 0), ("jitter", 10, 0)]
    assert all(sum(counts) == 10 for counts in report.histograms.values())


def test_a_writer_that_may_try_only_once_gives_up_when_it_loses() -> None:
    load = Load(think_s=0.0)

    report = backoff(writers=6, commits=60, policies=["jitter"], mode="processes", load=load, retry=Retry.none())

    row = report.row("jitter")
    assert row.max_retries == 0
    # The lab itself checks that the history has exactly the commits that were acknowledged.
    assert 0 < row.failures < row.commits

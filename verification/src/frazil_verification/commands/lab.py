"""``frazil lab backoff``: run, follow the progress on stderr, print the report."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from frazil.cli import _output as out
from frazil.cli._verification import PLOT, Backoff
from frazil.errors import Unsupported
from frazil_verification import lab
from frazil_verification.lab import LabReport


def run(options: Backoff) -> None:
    with out.progress() as tell:
        report = lab.backoff(
            writers=options.writers,
            commits=options.commits,
            mode="processes" if options.real else "virtual",
            seed=options.seed,
            on_progress=tell,
        )
    drawn = options.plot is not None and _draw(report, options.plot)
    if options.json:
        out.print_json(json.loads(report.to_json()))
        return
    _print_lab(report)
    if drawn:
        out.print_text(f"The picture is in {options.plot}")


def _draw(report: LabReport, path: Path) -> bool:
    try:
        lab.plot(report, path)
    except Unsupported as error:
        # The figures are printed without it. A picture with a given name must be drawn, or the command fails.
        if path != PLOT:
            raise
        sys.stderr.write(f"frazil: no picture. {error}\n")
        return False
    return True


def _print_lab(report: LabReport) -> None:
    load = report.load
    how = "on a virtual clock" if report.mode == "virtual" else "with real processes on SQLite"
    out.print_text(
        f"{load.writers} writers on one table, {how}, {load.arrivals} arrivals, think time {load.think_s:g} s, "
        f"seed {report.seed}"
    )
    columns = [
        "waiting",
        "commits",
        "failed",
        "retried",
        "mean retries",
        "of retried",
        "above 4",
        "8 or more",
        "p50",
        "p99",
    ]
    rows = (
        [
            row.policy,
            row.commits,
            row.failures,
            f"{row.retry_rate:.1%}",
            f"{row.mean_retries:.2f}",
            f"{row.mean_retries_of_retried:.2f}",
            f"{row.over_4:.1%}",
            f"{row.at_least_8:.1%}",
            f"{row.p50_ms:.0f} ms",
            f"{row.p99_ms:.0f} ms",
        ]
        for row in report.rows
    )
    out.print_grid(columns, rows, right=frozenset(columns) - {"waiting"})
    out.print_heading("Beside the published figures (docs/lab-backoff.md says how to read them)")
    for line in report.comparison():
        out.print_text(line)

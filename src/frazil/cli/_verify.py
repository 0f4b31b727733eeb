"""``frazil doctor`` and ``frazil lab``: run, follow the progress on stderr, print the report."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from frazil.cli import _output as out
from frazil.cli._target import Target
from frazil.errors import Unsupported

if TYPE_CHECKING:
    from frazil.verify.doctor import Report
    from frazil.verify.lab import LabReport

PLOT = Path("lab-backoff.png")
_MARKS = {"violation": "VIOLATION", "warning": "warning", "ok": "ok"}


@contextlib.contextmanager
def progress() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr while it is a terminal; otherwise nothing, so that logs stay short."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def doctor(target: Target, uri: str | None, rounds: int, processes: int, stall_s: float, create: bool) -> int:
    from frazil.verify.doctor import examine

    named = replace(target, uri=uri) if uri else target
    with progress() as tell:
        report = examine(
            named.address(),
            rounds=rounds,
            processes=processes,
            stall_s=stall_s,
            warehouse=named.warehouse,
            name=named.name,
            properties=dict(named.properties),
            create=create,
            on_progress=tell,
        )
    if target.json:
        out.print_json(json.loads(report.to_json()))
    else:
        _print_report(report)
    return report.exit_status


def _print_report(report: Report) -> None:
    out.print_text(
        f"{report.uri}: {report.verdict} ({report.processes} processes, {report.elapsed_s:.1f} s). "
        "A round without a violation is evidence, not proof."
    )
    for finding in report.findings:
        out.print_text(f"\n{_MARKS[finding.severity]}: {finding.what}")
        for line in (finding.evidence, finding.advice):
            if line:
                out.print_text(f"  {line}")


def backoff(target: Target, writers: int, commits: int | None, seed: int, real: bool, plot_to: Path | None) -> None:
    from frazil.verify import lab

    with progress() as tell:
        report = lab.backoff(
            writers=writers,
            commits=commits,
            mode="processes" if real else "virtual",
            seed=seed,
            on_progress=tell,
        )
    drawn = plot_to is not None and _draw(report, plot_to)
    if target.json:
        out.print_json(json.loads(report.to_json()))
        return
    _print_lab(report)
    if drawn:
        out.print_text(f"The picture is in {plot_to}")


def _draw(report: LabReport, path: Path) -> bool:
    from frazil.verify import lab

    try:
        lab.plot(report, path)
    except Unsupported as error:
        # The figures are there all the same; who asked for this very picture wants to know.
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

"""The demo: a pipeline of PySpark jobs, in processes of their own, that share one table.

frazil demo
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

import frazil
from frazil.cli import _output as out
from frazil.on_spark.session import check_java
from frazil.verify.fleet import run as fleet
from frazil.verify.fleet.plan import Plan, Report
from frazil.wording import counted

_WHAT = {
    "stream": "a streaming query with an exactly-once sink",
    "micro-batch": "an append every second",
    "backfill": "large appends with patient retries",
    "gdpr": "deletes one customer after another",
    "merge": "MERGE INTO by key",
    "compaction": "compacts small files",
    "schema": "adds columns",
    "reader": "reads one pinned snapshot twice",
}


@dataclass(frozen=True, slots=True)
class Demo:
    folder: Path = Path("demo-lake")
    seconds: float = 60.0
    streams: int = 2


def run(demo: Demo, *, json: bool = False) -> int:
    """The whole demo. Returns the exit code: 0 when nothing was lost and every failure was a true conflict."""
    check_java()
    with frazil.connect(str(demo.folder)) as lake:
        lake.create_namespace("demo", exists_ok=True)
        name = _fresh(lake)
        reports = demo.folder / f"{name.partition('.')[2]}-reports"
        shutil.rmtree(reports, ignore_errors=True)
        plan = Plan(
            str(demo.folder.resolve()), name, str(reports.resolve()), seconds=demo.seconds, streams=demo.streams
        )
        fleet.prepare(lake, name)
        with _Display(plan) as show:
            outcome = fleet.run(lake, plan, show.update)
        table = lake.table(name)
        if json:
            out.print_json(
                {
                    "table": name,
                    "nothing_lost": not outcome.findings,
                    "commits": outcome.commits,
                    "rebased_over": outcome.rebased,
                    "conflicts": outcome.conflicts,
                    "seconds": outcome.seconds,
                    "findings": list(outcome.findings),
                    "jobs": {job: asdict(each) for job, each in outcome.reports.items()},
                }
            )
        else:
            _tell(table, outcome)
    return 1 if outcome.findings else 0


def _fresh(lake: frazil.Lake) -> str:
    """The name of a new table; tables of earlier runs are kept."""
    taken = set(lake.tables("demo"))
    return next(name for n in range(1, len(taken) + 2) if (name := f"demo.pipeline_{n}") not in taken)


def _tell(table: frazil.Table, outcome: fleet.Outcome) -> None:
    out.print_grid(
        ["job", "commits", "rows", "attempts", "rebased over", "conflicts"],
        (
            [each.job, each.commits, each.rows, each.attempts, each.rebased_over, len(each.conflicts)]
            for each in outcome.reports.values()
        ),
        right=frozenset({"commits", "rows", "attempts", "rebased over", "conflicts"}),
    )
    out.print_text(
        f"\n{counted(outcome.commits, 'commit')} by {counted(len(outcome.reports), 'job')} to {table.name}. "
        f"Rebased over {counted(outcome.rebased, 'commit')} by other writers; "
        f"{counted(outcome.conflicts, 'true conflict')} aborted."
    )
    for job, report in outcome.reports.items():
        for sentence in report.conflicts[:2]:
            out.print_text(f"  {job}: {sentence}")
    for finding in outcome.findings:
        out.print_text(f"FAILED  {finding}")
    verdict = "SOMETHING WENT WRONG." if outcome.findings else "Nothing was lost: the table equals the model."
    out.print_text(f"\n{verdict} The demo took {outcome.seconds:.0f} s.")


class _Display:
    """Progress on stderr: a live table on a terminal, a line every five seconds elsewhere."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, refresh_per_second=4) if self._console.is_terminal else None
        self._spoke = -5.0

    def __enter__(self) -> _Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, reports: Mapping[str, Report], seconds: float) -> None:
        line = self._line(reports, seconds)
        if self._live is not None:
            self._live.update(self._grid(reports, line))
        elif seconds - self._spoke >= 5:
            self._spoke = seconds
            self._console.print(Text(line))

    def _line(self, reports: Mapping[str, Report], seconds: float) -> str:
        commits = sum(each.commits for each in reports.values())
        if not commits:
            return f"starting {counted(len(self._plan.processes()), 'Spark application')} · {seconds:.0f} s"
        rows = sum(each.rows for each in reports.values())
        conflicts = sum(len(each.conflicts) for each in reports.values())
        counts = (counted(commits, "commit"), counted(rows, "row"), counted(conflicts, "conflict"))
        return f"{' · '.join(counts)} · {seconds:.0f} s"

    def _grid(self, reports: Mapping[str, Report], line: str) -> Grid:
        grid = Grid.grid(padding=(0, 2))
        for job, each in reports.items():
            kind = job.rpartition("-")[0] if job.startswith(("stream-", "reader-")) else job
            state = each.failures[-1] if each.failures else f"{each.commits:>4} commits {each.rows:>8} rows"
            grid.add_row(job, Text(_WHAT[kind], style="dim"), Text(state))
        grid.add_row("", "", Text(line, style="bold"))
        return grid

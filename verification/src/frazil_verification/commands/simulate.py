"""``frazil simulate``: run seeds, follow the progress on stderr, print the report."""

from __future__ import annotations

import json
from pathlib import Path

from frazil.cli import _output as out
from frazil.cli._verification import Simulate
from frazil.errors import InvalidInput
from frazil_verification.simulator import (
    ACTORS,
    Case,
    CatalogKind,
    Report,
    Result,
    campaign,
    failure_json,
    of_one_table,
    of_the_bank,
    parse_faults,
    shrink,
    usual,
)

_EVENTS_SHOWN = 25


def run(options: Simulate) -> int:
    case = _case(options)
    with out.progress() as tell:
        report = campaign(case, 1 if options.replay is not None else options.seeds, options.jobs, tell)
    kept = []
    if options.keep is not None:
        for failure in report.failures:
            with out.progress() as tell:
                kept.append(_keep(shrink(failure, on_progress=tell), options.keep))
    if options.json:
        out.print_json({**report.to_json(), "kept": [str(each) for each in kept]})
    else:
        _print(report, kept)
    return 1 if report.failures else 0


def _case(options: Simulate) -> Case:
    if options.replay is not None:
        return Case.from_json(json.loads(options.replay.read_text())["case"])
    try:
        faults = parse_faults(options.faults)
    except ValueError as error:
        raise InvalidInput(f"--faults takes all, none or a list: {error}") from error
    named = {"usual": usual(), "all": of_one_table(), "bank": of_the_bank()}
    actors = named.get(options.actors) or tuple(each.strip() for each in options.actors.split(","))
    unknown = [each for each in actors if each not in ACTORS]
    if unknown:
        raise InvalidInput(f"There is no actor {unknown[0]!r}", advice=f"There are {', '.join(ACTORS)}")
    if not (set(actors) <= {*of_one_table()} or set(actors) <= {*of_the_bank()}):
        raise InvalidInput(
            "Some of these actors work on one table, and some on several",
            advice=f"Those of several tables are {', '.join(of_the_bank())}",
        )
    if options.catalog not in list(CatalogKind):
        raise InvalidInput(f"There is no catalog {options.catalog!r}", advice=f"There are {', '.join(CatalogKind)}")
    if set(actors) <= {*of_the_bank()} and not CatalogKind(options.catalog).is_ours:
        raise InvalidInput(
            f"The catalog {options.catalog} commits one table at a time", advice="Use --catalog database"
        )
    return Case(
        options.seed, options.steps, faults, actors, catalog=CatalogKind(options.catalog), severity=options.severity
    )


def _keep(smallest: Result, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed-{smallest.case.seed}.json"
    path.write_text(json.dumps(failure_json(smallest), indent=2) + "\n")
    return path


def _print(report: Report, kept: list[Path]) -> None:
    out.print_text(
        f"{report.seeds} seeds, {report.commits} commits in {report.snapshots} snapshots, {report.reads} reads, "
        f"{report.redone} statements redone, "
        f"{report.elapsed_s:.1f} s: {report.seeds_per_s:.2f} seeds and {report.commits_per_s:.0f} commits a second"
    )
    out.print_text(f"digest of all histories: {report.digest}")
    out.print_heading("Faults")
    out.print_grid(["fault", "times"], ([name, count] for name, count in report.faults.most_common()))
    if not report.failures:
        out.print_text("\nNo rule was broken.")
    for failure in report.failures:
        out.print_heading(f"Seed {failure.case.seed}")
        for violation in failure.violations[:3]:
            out.print_text(str(violation))
        out.print_text("\n".join(failure.last_events[-_EVENTS_SHOWN:]))
    for path in kept:
        out.print_text(f"Kept as a small case in {path}")

"""``frazil simulate``: run seeds, follow the progress on stderr, print what came of it."""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from frazil.cli import _output as out
from frazil.cli._verify import progress
from frazil.errors import InvalidInput, Unsupported

if TYPE_CHECKING:
    from frazil.verify.simulator import Case, Report, Result

_EVENTS_SHOWN = 25


@dataclass(frozen=True, slots=True)
class Asked:
    """The options as they were given."""

    seed: int
    steps: int
    seeds: int
    jobs: int
    faults: str
    actors: str
    catalog: str
    severity: float
    keep: Path | None
    """Where a small case of each failing seed goes."""
    replay: Path | None
    """A case that was kept; it stands for all that decides a run."""


def run(asked: Asked, *, json: bool) -> int:
    try:
        from frazil.verify.simulator import campaign, shrink
    except ImportError as error:
        raise Unsupported(
            "The simulator needs the package greenlet", advice="pip install 'frazil[simulator]'"
        ) from error

    case = _case(asked)
    with progress() as tell:
        report = campaign(case, 1 if asked.replay is not None else asked.seeds, asked.jobs, tell)
    kept = []
    if asked.keep is not None:
        for failure in report.failures:
            with progress() as tell:
                kept.append(_keep(shrink(failure, on_progress=tell), asked.keep))
    if json:
        out.print_json({**report.to_json(), "kept": [str(each) for each in kept]})
    else:
        _print(report, kept)
    return 1 if report.failures else 0


def _case(asked: Asked) -> Case:
    from frazil.verify.simulator import ACTORS, Case, CatalogKind, parse_faults, usual

    if asked.replay is not None:
        return Case.from_json(json_format.loads(asked.replay.read_text())["case"])
    try:
        faults = parse_faults(asked.faults)
    except ValueError as error:
        raise InvalidInput(f"--faults takes all, none or a list: {error}") from error
    named = {"usual": usual(), "all": tuple(ACTORS)}
    actors = named.get(asked.actors) or tuple(each.strip() for each in asked.actors.split(","))
    unknown = [each for each in actors if each not in ACTORS]
    if unknown:
        raise InvalidInput(f"There is no actor {unknown[0]!r}", advice=f"There are {', '.join(ACTORS)}")
    if asked.catalog not in list(CatalogKind):
        raise InvalidInput(f"There is no catalog {asked.catalog!r}", advice=f"There are {', '.join(CatalogKind)}")
    return Case(asked.seed, asked.steps, faults, actors, catalog=CatalogKind(asked.catalog), severity=asked.severity)


def _keep(smallest: Result, folder: Path) -> Path:
    from frazil.verify.simulator import failure_json

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed-{smallest.case.seed}.json"
    path.write_text(json_format.dumps(failure_json(smallest), indent=2) + "\n")
    return path


def _print(report: Report, kept: list[Path]) -> None:
    out.print_text(
        f"{report.seeds} seeds, {report.commits} commits in {report.snapshots} snapshots, {report.reads} reads, "
        f"{report.elapsed_s:.1f} s: {report.seeds_per_s:.2f} seeds and {report.commits_per_s:.0f} commits a second"
    )
    out.print_text(f"digest of all histories: {report.digest}")
    out.print_heading("What went wrong meanwhile")
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

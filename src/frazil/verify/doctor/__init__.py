"""``frazil doctor URI``: races real processes on a catalog, and reports "not atomic" with evidence, or no violation.

N rounds without a violation are evidence, not proof.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from frazil.catalog.base import OpenedCatalog
from frazil.catalog.open import open_catalog
from frazil.errors import InvalidInput
from frazil.runtime import SYSTEM, Runtime
from frazil.verify.doctor import races
from frazil.verify.doctor.crew import Crew
from frazil.verify.doctor.judge import condense, judge_history
from frazil.verify.doctor.model import Finding, Report, Severity
from frazil.verify.doctor.surroundings import clock, database_behind, inspect_database, shared_locations
from frazil.verify.doctor.worker import Opener
from frazil.verify.probe import Scratch, scratch_table
from frazil.wording import counted

__all__ = ["Finding", "Opener", "Report", "Severity", "examine"]

Progress = Callable[[int, int, str], None]

_PATIENCE_S = 120.0
# Fractions of the time that an uncontended swap takes: a catalog with a lock holds it at some of them.
_PAUSE_AT = (0.2, 0.4, 0.6, 0.8)


@dataclass(frozen=True, slots=True)
class _OpenByUri:
    """Picklable: each process opens the catalog by itself."""

    uri: str
    warehouse: str | None = None
    name: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    create: bool = True

    def __call__(self) -> OpenedCatalog:
        return open_catalog(
            self.uri,
            warehouse=self.warehouse,
            name=self.name,
            properties=dict(self.properties),
            read_only=False,
            create=self.create,
        )


def examine(
    uri: str,
    *,
    rounds: int = 50,
    processes: int = 8,
    stall_s: float = 2.0,
    warehouse: str | None = None,
    name: str | None = None,
    properties: Mapping[str, str] | None = None,
    create: bool = True,
    opener: Opener | None = None,
    on_progress: Progress | None = None,
    runtime: Runtime = SYSTEM,
) -> Report:
    """Race ``processes`` processes on a scratch table for ``rounds`` rounds, then inspect the catalog's environment.

    ``stall_s``: how long a request is delayed, and how long a process is stopped in the middle of a swap; it should
    exceed the lease of any lock the catalog may use. The scratch namespace and table are removed at the end.
    ``opener``: a picklable function that opens the catalog, instead of the URI. ``on_progress(done, total, what)`` is
    called after each game. A script that calls this needs ``if __name__ == "__main__":``, since it starts processes.
    """
    _check(uri, rounds, processes, stall_s, opener)
    open_one = opener or _OpenByUri(uri, warehouse, name, dict(properties or {}), create)
    started = runtime.monotonic()
    opened = open_one()
    try:
        leftovers: list[str] = []
        with scratch_table(opened, "doctor", runtime, leftovers) as scratch:
            findings = _race(opened, open_one, scratch, rounds, processes, stall_s, on_progress, runtime)
            findings += shared_locations(opened.catalog, scratch.ident)
        database = database_behind(opened, uri)
        if database is not None:
            findings += inspect_database(database, mine=opened.catalog.name)
        findings += _left_behind(leftovers)
    finally:
        opened.catalog.close()
    ordered = sorted(findings, key=lambda finding: ("violation", "warning", "ok").index(finding.severity))
    return Report(opened.uri_shown, rounds, processes, runtime.monotonic() - started, tuple(ordered))


def _check(uri: str, rounds: int, processes: int, stall_s: float, opener: Opener | None) -> None:
    if rounds < 1 or processes < 2 or stall_s < 0:
        raise InvalidInput(
            f"The doctor needs rounds >= 1, processes >= 2 and stall >= 0, not {rounds}, {processes} and {stall_s:g}"
        )
    if opener is None and uri.startswith("memory:"):
        raise InvalidInput(
            "Processes cannot race on a memory:// lake: it exists in one process only",
            advice="Pass a folder, sqlite:///…, postgresql://…, or a REST catalog",
        )


def _race(
    opened: OpenedCatalog,
    open_one: Opener,
    scratch: Scratch,
    rounds: int,
    processes: int,
    stall_s: float,
    on_progress: Progress | None,
    runtime: Runtime,
) -> list[Finding]:
    capabilities = opened.catalog.capabilities
    ledger = races.Ledger(capabilities.stale_is_certain)
    games: list[tuple[str, Callable[[races.Game], None]]] = [
        *[("race", races.race)] * rounds,
        ("late request", races.delayed),
        ("repeated request", races.repeated),
        *[("process stopped in its swap", partial(races.paused, share=share)) for share in _PAUSE_AT],
    ]
    with Crew(processes, open_one, scratch, _PATIENCE_S + stall_s) as crew:
        game = races.Game(crew, ledger, runtime, stall_s)
        for number, (what, play) in enumerate(games, 1):
            play(game)
            if on_progress is not None:
                on_progress(number, len(games), what)
    head = opened.catalog.load(scratch.ident)
    history = [snapshot.snapshot_id for snapshot in head.metadata.ancestors(head.metadata.ref_snapshot_id())]
    found = [*ledger.findings, *judge_history(ledger.acknowledged, ledger.denied, history)]
    return [*condense(found), *_summary(ledger, atomic=capabilities.atomic), clock(ledger.worst_skew_ms)]


def _summary(ledger: races.Ledger, *, atomic: bool) -> list[Finding]:
    found = []
    if not ledger.findings:
        found.append(
            Finding(
                "ok",
                "Every race had at most one winner, and no acknowledged commit was lost",
                f"{counted(ledger.played, 'round')}, {counted(len(ledger.acknowledged), 'acknowledged commit')}, "
                "all in the history",
            )
        )
    if not atomic:
        found.append(
            Finding(
                "warning",
                "This kind of catalog has no compare-and-swap: it relies on a lock, which can be lost",
                "The catalog declares that its swap is not atomic",
                "Keep one writer per table, or move the tables to a catalog with a compare-and-swap",
            )
        )
    if ledger.without_winner:
        found.append(
            Finding(
                "warning",
                "In some rounds no swap landed",
                f"The head did not move in {ledger.without_winner} of {counted(ledger.played, 'round')}",
                "Nothing was lost, but under load commits may run out of tries",
            )
        )
    if ledger.refused or ledger.unknown:
        found.append(_unclear(ledger))
    return found


def _unclear(ledger: races.Ledger) -> Finding:
    errors = "; ".join(f"{count} × {error}" for error, count in sorted(ledger.refused.items())[:3])
    parts = [f"{counted(ledger.unknown, 'Unknown outcome')}, all resolved"] if ledger.unknown else []
    parts += [f"errors: {errors}"] if errors else []
    return Finding(
        "warning",
        "Some swaps ended without a clear answer",
        ", ".join(parts),
        "Frazil resolves such outcomes; each one delays a commit",
    )


def _left_behind(leftovers: list[str]) -> list[Finding]:
    if not leftovers:
        return []
    shown = ", ".join(leftovers[:3]) + (f" and {len(leftovers) - 3} more" if len(leftovers) > 3 else "")
    return [Finding("warning", "The scratch table could not be removed completely", shown, "Remove the rest by hand")]

"""``frazil doctor``: run, follow the progress on stderr, print the report."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from frazil.cli import _output as out
from frazil.cli._target import Target

if TYPE_CHECKING:
    from frazil.verify.doctor import Report

_MARKS = {"violation": "VIOLATION", "warning": "warning", "ok": "ok"}


def run(target: Target, uri: str | None, rounds: int, processes: int, stall_s: float, create: bool) -> int:
    from frazil.verify.doctor import examine

    named = replace(target, uri=uri) if uri else target
    with out.progress() as tell:
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

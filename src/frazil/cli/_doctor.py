"""``frazil doctor``: run, follow the progress on stderr, print the report."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frazil.cli import _output as out
from frazil.cli._target import Target
from frazil.wording import counted

if TYPE_CHECKING:
    from frazil.services.resurrection import Returned
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


def names_table(target: Target, place: str) -> bool:
    """Whether this is a table rather than a catalog: a dotted name that is neither a URI nor a file."""
    is_name = "." in place.strip(".") and not set(place) & set(":/\\")
    return is_name and not Path(place).exists() and bool(target.uri or os.environ.get("FRAZIL_URI"))


def run_on_table(target: Target, name: str) -> int:
    """Deletes that a rewrite by another engine dropped, and that still apply."""
    from frazil.services.resurrection import returned

    with target.connect(read_only=True) as lake:
        metadata = lake.catalog.load(lake.table(name)._source.ident).metadata
        branches = sorted({"main", *(key for key, ref in metadata.refs.items() if ref["type"] == "branch")})
        found = [_came_back(branch, each) for branch in branches for each in returned(lake.storage, metadata, branch)]
    if target.json:
        out.print_json(found)
        return 1 if found else 0
    if not found:
        out.print_text(f"{out.printable(name)}: no delete was dropped that still applies")
    for each in found:
        out.print_text(
            f"{_MARKS['violation']}: the rewrite {each['snapshot_id']} by {each['engine']} dropped a delete that still "
            f"applies to {counted(each['rows'], 'row')} of {each['branch']}\n"
            f"  {each['delete_file']}, sequence number {each['sequence_number']}\n"
            "  The next statement of Frazil on this table puts it back"
        )
    return 1 if found else 0


def _came_back(branch: str, found: Returned) -> dict[str, Any]:
    summary = found.snapshot.summary
    return {
        "branch": branch,
        "snapshot_id": found.snapshot.snapshot_id,
        "engine": summary.get("engine-name") or summary.get("app-id") or "another engine",
        "delete_file": found.entry.file.file_path,
        "sequence_number": found.entry.sequence_number,
        "rows": sum(found.rows.values()),
        "data_files": sorted(found.rows),
    }


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

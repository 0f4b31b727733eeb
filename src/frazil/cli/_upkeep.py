"""What ``frazil expire``, ``orphans``, ``vacuum`` and ``erase`` print."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from frazil.cli import _output as out
from frazil.errors import InvalidInput
from frazil.format.times import milliseconds
from frazil.model import Commit, Expiry
from frazil.services.orphans import OrphanReport
from frazil.wording import counted

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def age_ms(text: str, option: str) -> int:
    """``7d``, ``12h``, ``30m``, ``10s``, ``500ms``."""
    number = text.rstrip("dhms")
    unit = text[len(number) :]
    if not number.isdigit() or unit not in _UNITS:
        raise InvalidInput(f"{option} must be an age such as 7d, 12h or 30m, not {text!r}")
    return int(number) * _UNITS[unit]


def moment_ms(text: str, now_ms: int, option: str) -> int:
    """An age, or a moment with a time zone."""
    return now_ms - age_ms(text, option) if text.rstrip("dhms").isdigit() else milliseconds(text, option)


def expiry_facts(done: Commit) -> dict[str, Any]:
    found = done.expired or Expiry()
    return {"changed": done.changed, "commit_id": done.commit_id, **asdict(found), "files_deleted": found.files_deleted}


def expiry_sentence(done: Commit, table: str, *, dry_run: bool) -> str:
    found = done.expired or Expiry()
    refs = f" and {counted(found.refs, 'branch or tag', 'branches and tags')}" if found.refs else ""
    if dry_run:
        return f"{table}: {counted(found.snapshots, 'snapshot')}{refs} would expire"
    rest = f"; {out.printable(found.unfinished)}" if found.unfinished else ""
    return (
        f"{table}: {counted(found.snapshots, 'snapshot')}{refs} expired, {counted(found.files_deleted, 'file')} deleted"
        f" ({counted(found.data_files, 'data file')}){rest}"
    )


def orphans_sentence(report: OrphanReport, table: str) -> str:
    found = counted(len(report.orphans), "orphan")
    size = f"{report.bytes / 1e6:,.1f} MB"
    kept = f"; {report.kept_young} younger and {report.kept_staged} staged by live writers are kept"
    what = (
        f"{found} of {size}, none removed (--remove removes them)"
        if report.dry_run
        else (f"{report.files_removed} of {found} removed, {size}")
    )
    names = "\n".join(map(out.printable, report.orphans)) if report.dry_run else ""
    return f"{names}\n{table}: {what}{kept}".strip()

"""``frazil check``: check a recorded history."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from frazil.cli import _output as out
from frazil.cli._errors import CONFLICT, OK
from frazil.cli._target import Target
from frazil.errors import NoSuchTable

if TYPE_CHECKING:
    from frazil.verify.checker.history import History
    from frazil.verify.checker.model import Version


class Wanted(enum.StrEnum):
    """The level that a history must not rule out."""

    READ_UNCOMMITTED = "read-uncommitted"
    READ_COMMITTED = "read-committed"
    SNAPSHOT_ISOLATION = "snapshot-isolation"
    SERIALIZABLE = "serializable"
    STRICT_SERIALIZABLE = "strict-serializable"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to check, and how strictly."""

    history: Path
    lake: str | None
    level: Wanted
    slack: float


def run(target: Target, plan: Plan, *, json: bool) -> int:
    """Print the report. 0: the wanted level is not ruled out; 1: it is."""
    from frazil.verify.checker import Level, check
    from frazil.verify.checker.history import read_history, with_versions
    from frazil.verify.checker.report import sentences, to_json

    history = read_history(plan.history)
    if plan.lake is not None:
        history = with_versions(history, _versions(replace(target, uri=plan.lake), history))
    report = check(history.transactions, history.versions, slack=plan.slack)
    if json:
        out.print_json(to_json(report))
    else:
        out.print_text("\n".join(map(out.printable, sentences(report))))
    return CONFLICT if Level[plan.level.name] in report.ruled_out() else OK


def _versions(target: Target, history: History) -> list[Version]:
    from frazil.verify.checker.from_lake import versions_of
    from frazil.verify.recording.columns import Named

    found: list[Version] = []
    with target.connect(read_only=True) as lake:
        for table in history.tables:
            named = history.columns.get(table)
            try:
                found.extend(versions_of(lake, table, None if named is None else Named(*named)))
            except NoSuchTable:
                # Dropped since: only the recorded history has its versions.
                continue
    return found

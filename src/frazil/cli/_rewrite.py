"""``frazil compact`` and ``frazil cluster``: the plan, or what was done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frazil.cli import _output as out
from frazil.cli._target import Target, pairs
from frazil.table.table import Table
from frazil.wording import counted


def run(
    target: Target,
    table: Table,
    where: str | None,
    options: list[str],
    *,
    dry_run: bool,
    strategy: Any = "binpack",
    by: Sequence[str] | None = None,
) -> None:
    chosen = pairs(options, "--option")
    if dry_run:
        planned = table.compaction_plan(where, strategy=strategy, by=by, options=chosen)
        if target.json:
            out.print_json(planned.to_dict())
            return
        groups, commits = counted(len(planned.groups), "group"), counted(len(planned.commits), "commit")
        out.print_text(f"{counted(planned.files, 'file')} ({planned.size_in_bytes} bytes) in {groups} and {commits}")
        return
    done = table.compact(where, strategy=strategy, by=by, options=chosen)
    if target.json:
        facts = ("changed", "snapshot_id", "commit_id", "files_added", "files_removed", "bytes_written", "redone")
        out.print_json({name: getattr(done, name) for name in facts})
    elif done.changed:
        out.print_text(f"{counted(done.files_removed, 'file')} became {counted(done.files_added, 'file')}")
    else:
        out.print_text("Nothing was left to do")

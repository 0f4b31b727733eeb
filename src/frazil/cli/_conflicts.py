"""``frazil conflicts``: what the catalog keeps of commits that met other writers, in all processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from frazil.catalog.base import AttemptsRecord
from frazil.cli import _output as out
from frazil.commit.checks import Check
from frazil.errors import Unsupported
from frazil.lake import Lake
from frazil.model import Ident
from frazil.wording import counted

MOST = 1_000_000
_RETRY = "Retry: the statement then sees what was committed"
_AFTER_CONFLICT = {
    Check.NO_ADDED_ROWS: f"{_RETRY}. At isolation='snapshot' added rows are not a conflict",
    Check.NOT_DELETED: "Append again to keep the rows, or pass on_deleted='keep' or 'drop'",
    Check.SAME_TABLE: "The table was replaced: open it again",
    Check.SCHEMA_COMPATIBLE: "The schema was changed: write rows that fit it",
    Check.ADDED_ONCE: "Nothing is left to do: the rows are in the table",
    Check.SINK_UNMOVED: "Two queries write through one sink: stop one, or give it an id of its own",
}
_ADVICE = {
    "committed": "Nothing is left to do: it was committed",
    "exhausted": "Call again, or allow more with retry=frazil.Retry(tries=…)",
    "unknown": "Repeat the call with the same commit_id: if it landed, it is found",
    "error": "See the log of the application on that host",
}


def conflicts(lake: Lake, name: str, limit: int) -> list[dict[str, Any]]:
    """The newest first."""
    ident = Ident.parse(name)
    uuid = lake.catalog.load(ident).metadata.uuid
    log = lake.catalog.attempts
    if log is None:
        raise Unsupported(
            f"The catalog of {ident} keeps no log of conflicts",
            advice="SQL catalogs keep one from the first writer of this version on; elsewhere, the writers' own logs "
            "and metrics have it (docs/metrics.md)",
        )
    return [_facts(each) for each in log.find(uuid, limit or MOST)]


def _facts(record: AttemptsRecord) -> dict[str, Any]:
    known = asdict(record)
    for key in ("table_uuid", "at_ms", "winner_app", "winner_verb", "winner_commit_id"):
        del known[key]
    winner = {"app": record.winner_app, "verb": record.winner_verb, "commit_id": record.winner_commit_id}
    has_winner = any(winner.values())
    return {
        "at": out.iso_time(record.at_ms),
        **known,
        "winner": winner if has_winner else None,
        "advice": _advice(record),
    }


def _advice(record: AttemptsRecord) -> str:
    if record.outcome == "conflict":
        return next((text for check, text in _AFTER_CONFLICT.items() if check == record.check), _RETRY)
    return _ADVICE.get(record.outcome, "")


def print_conflicts(found: Sequence[dict[str, Any]]) -> None:
    if not found:
        out.print_text("No commit to this table has met other writers, as far as the log reaches back.")
        return
    columns = ["at", "app", "verb", "outcome", "attempts", "lost", "redone", "took", "winner", "evidence", "advice"]
    rows = (
        [
            each["at"],
            f"{each['app'] or '?'} on {each['host']}" if each["host"] else each["app"],
            each["verb"],
            each["outcome"],
            each["attempts"],
            each["lost"],
            each["redone"],
            f"{each['elapsed_ms']} ms",
            _winner(each["winner"]),
            each["detail"],
            each["advice"],
        ]
        for each in found
    )
    out.print_grid(columns, rows, right=frozenset({"attempts", "lost", "redone", "took"}))
    out.print_text(f"{counted(len(found), 'commit')}; lost: races that another writer won.")


def _winner(winner: dict[str, str | None] | None) -> str | None:
    if winner is None:
        return None
    return f"{winner['verb'] or 'commit'} by {winner['app'] or '?'}"

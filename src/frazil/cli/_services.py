"""``frazil timeline``, ``frazil advise`` and ``frazil services run``."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from frazil.cli import _output as out
from frazil.cli._target import Target
from frazil.lake import Lake
from frazil.model import TimelineEntry
from frazil.services.advice import Advice, Saving
from frazil.services.execution import Done
from frazil.services.runner import Services
from frazil.wording import counted

_FAILED = 1


def timeline(lake: Lake, table: str, limit: int) -> list[dict[str, Any]]:
    """The newest first."""
    return [_facts(each) for each in lake.table(table).timeline(limit or None)]


def _facts(entry: TimelineEntry) -> dict[str, Any]:
    times = {"requested": entry.requested_ms, "started": entry.started_ms, "completed": entry.completed_ms}
    known = {key: value for key, value in entry.to_dict().items() if not key.endswith("_ms")}
    shown = {key: None if ms is None else out.iso_time(ms) for key, ms in times.items()}
    return {**known, **shown, "heartbeat": out.iso_time(entry.heartbeat_ms)}


def print_timeline(found: Sequence[dict[str, Any]]) -> None:
    if not found:
        out.print_text("No service has run on this table, as far as the timeline reaches back.")
        return
    rows = (
        [
            each["requested"],
            each["service"],
            each["state"],
            f"{each['done']}/{each['total']}" if each["total"] else None,
            f"{each['app'] or '?'} on {each['host']}, process {each['pid']}",
            each["completed"] or f"alive at {each['heartbeat']}",
            each["plan"].get("reason"),
            ", ".join(f"{key} {value}" for key, value in each["outcome"].items()),
        ]
        for each in found
    )
    out.print_grid(["requested", "service", "state", "progress", "owner", "completed", "reason", "outcome"], rows)


def print_advice(found: Advice) -> None:
    out.print_facts([("table", found.table), ("services", found.mode), *found.health.to_dict().items()])
    columns = ["service", "would save", "reads", "due"]
    rows = ([_name(each), str(each), f"{each.bytes_read} bytes", each.reason or "no"] for each in found.savings)
    out.print_grid(columns, rows)


def _name(each: Saving) -> str:
    return each.service if each.is_available else f"{each.service} (not in this version)"


def run(target: Target, place: str | None, tables: Sequence[str], interval: float, *, once: bool) -> int:
    """Until SIGTERM or Ctrl-C, or one round. Services that failed in that round are exit code 1."""
    named = replace(target, uri=place) if place else target
    with named.connect() as lake:
        services = lake.services(list(tables) or None, interval)
        if threading.current_thread() is threading.main_thread():
            for each in (signal.SIGTERM, signal.SIGINT):
                signal.signal(each, lambda _number, _frame: _stop(services))
        done = services.run(once=once)
    if not once:
        return 0
    if target.json:
        out.print_json([each.to_dict() for each in done])
    else:
        _print_done(done)
    return _FAILED if any(each.error is not None for each in done) else 0


def _stop(services: Services) -> None:
    # Not in the handler: it may interrupt the main thread while that holds the event's lock.
    threading.Thread(target=services.stop, daemon=True).start()


def _print_done(done: Sequence[Done]) -> None:
    for each in done:
        what = "done" if each.error is None else f"failed: {each.error}"
        out.print_text(f"{each.table}: {each.service} ({each.reason}): {what}")
    out.print_text(f"{counted(len(done), 'service')} ran.")

"""``frazil top``: a live view of the commits of all writers, from the lake's shared state."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from frazil.catalog._queue_stats import LATELY_MS
from frazil.catalog.base import LakeCatalog
from frazil.cli import _output as out
from frazil.cli._errors import masked
from frazil.cli._target import Target
from frazil.errors import InvalidInput
from frazil.runtime import SYSTEM, Runtime
from frazil.watch import TableActivity, activity, sample
from frazil.wording import counted

_UNKNOWN = "?"
_MOST_APPS = 3

Column = tuple[str, Callable[[TableActivity], str]]


def _rate(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.1f}"


def _queue(name: str, unit: str = "") -> Callable[[TableActivity], str]:
    return lambda each: "" if each.queue is None else f"{getattr(each.queue, name)}{unit}"


def _apps(each: TableActivity) -> str:
    """The busiest applications, with their verbs."""
    shown = [f"{by.app or _UNKNOWN} {by.verb or _UNKNOWN} {by.commits}" for by in each.apps[:_MOST_APPS]]
    more = len(each.apps) - len(shown)
    return ", ".join([*shown, f"{more} more"] if more else shown)


_TABLE: tuple[Column, ...] = (
    ("commits/s", lambda each: _rate(each.commits_per_s)),
    ("foreign/s", lambda each: _rate(each.foreign_per_s)),
    ("swaps/s", lambda each: _rate(each.swaps_per_s)),
    ("groups/s", lambda each: _rate(each.groups_per_s)),
    ("largest", lambda each: str(each.largest_group or "")),
)
# Conflicts and retries have a command of their own (``frazil conflicts``).
_QUEUE: tuple[Column, ...] = (
    ("waiting", _queue("waiting")),
    ("oldest wait", _queue("oldest_wait_ms", " ms")),
    ("returned", _queue("returned")),
    ("withdrawn", _queue("withdrawn")),
    ("late tries", _queue("late_tries")),
)


def run(target: Target, place: str | None, interval: float, *, once: bool, json: bool) -> None:
    """Watch until Ctrl-C, or print one answer."""
    if json and not once:
        raise InvalidInput("Live mode cannot print JSON", advice="Add --once")
    if not once and not sys.stdout.isatty():
        raise InvalidInput("Live mode needs a terminal, and stdout is not one", advice="Add --once")
    named = replace(target, uri=place) if place else target
    with named.connect(read_only=True) as lake:
        answers = watched(lake.catalog, interval)
        if not once:
            _live(answers)
            return
        found = next(answers)
    if json:
        out.print_json({"interval": interval, "tables": [facts(each) for each in found]})
    else:
        out.console().print(picture(found))


def watched(catalog: LakeCatalog, interval: float, runtime: Runtime = SYSTEM) -> Iterator[tuple[TableActivity, ...]]:
    """The activity of each interval, without end."""
    before = sample(catalog, runtime=runtime)
    while True:
        runtime.sleep(interval)
        after = sample(catalog, before, runtime)
        yield activity(before, after)
        before = after


def _live(answers: Iterator[tuple[TableActivity, ...]]) -> None:
    with Live(Text("Waiting for the first interval …"), console=out.console(), auto_refresh=False) as live:
        try:
            for found in answers:
                live.update(picture(found), refresh=True)
        except KeyboardInterrupt:
            # Ctrl-C ends the view; the last table stays on the screen.
            return


def facts(each: TableActivity) -> dict[str, Any]:
    """For programs."""
    rates = {
        "commits_per_s": each.commits_per_s,
        "foreign_per_s": each.foreign_per_s,
        "swaps_per_s": each.swaps_per_s,
        "groups_per_s": each.groups_per_s,
    }
    return {**asdict(each), "problem": None if each.problem is None else masked(each.problem), **rates}


def picture(found: Sequence[TableActivity]) -> RenderableType:
    """For people: a row per table, problems, totals and a legend."""
    if not found:
        return Text("The lake has no tables.")
    has_queue = any(each.queue is not None for each in found) or all(each.problem for each in found)
    columns = _TABLE + (_QUEUE if has_queue else ())
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column(Text("table"), overflow="fold")
    for name, _ in columns:
        grid.add_column(Text(name), justify="right")
    grid.add_column(Text("by"), overflow="fold")
    for each in found:
        values = (Text("" if each.problem else value(each)) for _, value in columns)
        grid.add_row(out.cell(each.table), *values, out.cell(_apps(each)))
    lines = [Text(_sum(found)), Text(_legend(has_queue), style="dim")]
    problems = [Text(out.printable(f"{each.table}: {masked(each.problem)}")) for each in found if each.problem]
    return Group(grid, *problems, *lines)


def _sum(found: Sequence[TableActivity]) -> str:
    rate = sum(each.commits_per_s or 0.0 for each in found)
    text = f"{counted(len(found), 'table')} · {rate:.1f} commits/s"
    grouped, groups = sum(each.grouped for each in found), sum(each.groups for each in found)
    if groups:
        text += f" · {grouped / groups:.1f} commits per group"
    queues = [each.queue for each in found if each.queue is not None]
    return text + (f" · {sum(each.waiting for each in queues)} waiting" if queues else "")


def _legend(has_queue: bool) -> str:
    if not has_queue:
        return "Waiting commits are not shown: this catalog has no queue that other processes can see."
    return (
        f"returned, withdrawn, late tries: queued commits of the last {LATELY_MS // 1000} s. Returned ones are "
        "committed by their own writers, or conflict."
    )

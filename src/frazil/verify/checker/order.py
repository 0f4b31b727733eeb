"""Who was answered before whom was called: edges by process and by clock, and what plainly contradicts the clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from frazil.verify.checker.edges import DATA, PROCESS, REAL_TIME, RW, Graph
from frazil.verify.checker.findings import Findings, Names
from frazil.verify.checker.landing import Landing, Line
from frazil.verify.checker.model import Kind, Outcome, Read

Explain = Callable[[int], str]
"""An edge's number → why it is there, in words."""


def add_order(graph: Graph, landing: Landing, slack: float) -> None:
    """Process order: each to the next one. Real time: through a chain of all answers, in their order.

    A node of the chain stands for one answer. Whoever was called after it follows it, and the chain hands on the rest,
    so that n transactions need n nodes and not n² edges.
    """
    members = [number for number in range(len(landing.transactions)) if _is_in_time(landing, number)]
    last: dict[str, int] = {}
    for number in sorted(members, key=lambda each: landing.transactions[each].began):
        transaction = landing.transactions[number]
        before = last.get(transaction.process)
        # A process may read lazily while it does other things: only what was over is an order.
        if before is not None and (_answer(landing, before) or 0.0) <= transaction.began:
            graph.add(before, number, PROCESS)
        if transaction.outcome is Outcome.OK and transaction.ended is not None:
            last[transaction.process] = number
    answered = sorted((end, number) for number in members if (end := _answer(landing, number)) is not None)
    ends = [end for end, _ in answered]
    chain = [graph.node() for _ in answered]
    for place, (_, number) in enumerate(answered):
        graph.add(number, chain[place], REAL_TIME)
        if place:
            graph.add(chain[place - 1], chain[place], REAL_TIME)
    for number in members:
        # Strictly before: two moments that a clock cannot tell apart have no order.
        place = bisect_left(ends, landing.transactions[number].began - slack)
        if place:
            graph.add(chain[place - 1], number, REAL_TIME)


def _is_in_time(landing: Landing, number: int) -> bool:
    """Who only looked at old versions on purpose has no place in time."""
    ops = landing.transactions[number].ops
    return landing.landed[number] and not (ops and all(isinstance(op, Read) and op.historic for op in ops))


def _answer(landing: Landing, number: int) -> float | None:
    """When the client knew that it had landed; None: never."""
    transaction = landing.transactions[number]
    return transaction.ended if transaction.outcome is Outcome.OK else None


def judge_edges(graph: Graph, landing: Landing, findings: Findings, slack: float, explain: Explain) -> None:
    """Edges that go against the clock by themselves: no search is needed for them."""
    tables = [line.table for line in landing.lines.values()]
    size = graph.size
    began = [each.began for each in landing.transactions]
    answered = [_answer(landing, number) for number in range(size)]
    names = Names(landing)
    for edge, kind in enumerate(graph.kinds):
        before, after = graph.sources[edge], graph.targets[edge]
        if not kind & DATA or before >= size or after >= size:
            continue
        end = answered[after]
        if end is None or end >= began[before] - slack:
            continue
        found = Kind.STALE_READ if kind == RW else Kind.REAL_TIME
        findings.add(
            found,
            tables[graph.tables[edge]],
            [before, after],
            lambda edge=edge, before=before, after=after: (  # type: ignore[misc]
                f"{explain(edge)}; but {names.who(after)} was answered {_gap(landing, after, before)} before "
                f"{names.who(before)} was called"
            ),
        )


def _gap(landing: Landing, first: int, second: int) -> str:
    return f"{landing.transactions[second].began - (landing.transactions[first].ended or 0.0):.6f} s"


def judge_pins(landing: Landing, line: Line, findings: Findings, slack: float, pinned: list[tuple[int, int]]) -> None:
    """Reads that were pinned to a version although a newer one had already been acknowledged."""
    first: list[tuple[float, int] | None] = [None] * (len(line.versions) + 1)
    # From the newest version back: the earliest answer to anybody who landed from there on.
    for index in reversed(range(len(line.versions))):
        ends = [
            (end, each)
            for each in line.slots[index]
            if each is not None and (end := _answer(landing, each)) is not None
        ]
        first[index] = min((each for each in (*ends, first[index + 1]) if each is not None), default=None)
    names = Names(landing)
    for reader, index in pinned:
        earliest = first[index + 1]
        if earliest is None or earliest[0] >= landing.transactions[reader].began - slack or earliest[1] == reader:
            continue
        writer = earliest[1]
        saw = f"version {line.versions[index].id}" if index >= 0 else "no version yet"
        words = (
            f"{names.who(reader)} read {line.table} at {saw}; but {names.who(writer)}, which is in "
            f"{names.version(writer, line.table)}, was answered {_gap(landing, writer, reader)} before "
            f"{names.who(reader)} was called"
        )
        findings.add(Kind.STALE_READ, line.table, [reader, writer], lambda w=words: w)  # type: ignore[misc]

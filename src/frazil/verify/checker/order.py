"""Edges of process order and real time, and anomalies that contradict real time without a search."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from frazil.verify.checker.edges import DATA, PROCESS, REAL_TIME, RW, Graph
from frazil.verify.checker.findings import Findings, Names
from frazil.verify.checker.landing import Landing, TableHistory
from frazil.verify.checker.model import Kind, Outcome, Read

Explain = Callable[[int], str]
"""An edge's number → its explanation."""


def add_order(graph: Graph, landing: Landing, slack: float) -> None:
    """Process order: an edge from each transaction to the next one. Real time: through a chain of all answers.

    A node of the chain is one answer, in the order of time. It has edges to the transactions called after it and to
    the next node, so that n transactions need n nodes and not n² edges.
    """
    members = [number for number in range(len(landing.transactions)) if _is_in_time(landing, number)]
    last: dict[str, int] = {}
    for number in sorted(members, key=lambda each: landing.transactions[each].began):
        transaction = landing.transactions[number]
        before = last.get(transaction.process)
        # A process may read lazily during other calls: only transactions that ended are ordered.
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
        # Strictly before: equal times have no order.
        place = bisect_left(ends, landing.transactions[number].began - slack)
        if place:
            graph.add(chain[place - 1], number, REAL_TIME)


def _is_in_time(landing: Landing, number: int) -> bool:
    """False: the transaction only read versions whose age does not matter."""
    ops = landing.transactions[number].ops
    is_ageless = ops and all(isinstance(op, Read) and (op.historic or op.ageless) for op in ops)
    return landing.landed[number] and not is_ageless


def _answer(landing: Landing, number: int) -> float | None:
    """When the transaction was acknowledged; None: never."""
    transaction = landing.transactions[number]
    return transaction.ended if transaction.outcome is Outcome.OK else None


def judge_edges(graph: Graph, landing: Landing, findings: Findings, slack: float, explain: Explain) -> None:
    """Single edges against real time, which need no search."""
    tables = [history.table for history in landing.histories.values()]
    size = graph.size
    began = [each.began for each in landing.transactions]
    answered = [_answer(landing, number) for number in range(size)]
    names = Names(landing)
    for edge, kind in enumerate(graph.kinds):
        before, after = graph.sources[edge], graph.targets[edge]
        if not kind & DATA or before >= size or after >= size:
            continue
        end = answered[after]
        if end is None or end >= began[before] - slack or not _is_in_time(landing, before):
            continue
        found = Kind.STALE_READ if kind == RW else Kind.REAL_TIME
        findings.add(
            found,
            tables[graph.tables[edge]],
            [before, after],
            lambda edge=edge, before=before, after=after: (  # type: ignore[misc]
                f"{explain(edge)}; but {names.tx(after)} was answered {_gap(landing, after, before)} before "
                f"{names.tx(before)} was called"
            ),
        )


def _gap(landing: Landing, first: int, second: int) -> str:
    return f"{landing.transactions[second].began - (landing.transactions[first].ended or 0.0):.6f} s"


def judge_pins(
    landing: Landing, history: TableHistory, findings: Findings, slack: float, pinned: list[tuple[int, int]]
) -> None:
    """Reads pinned to a version although a newer one was already acknowledged."""
    first: list[tuple[float, int] | None] = [None] * (len(history.versions) + 1)
    # From the newest version back: the earliest answer to a transaction in this or a later version.
    for index in reversed(range(len(history.versions))):
        ends = [
            (end, each)
            for each in history.slots[index]
            if each is not None and (end := _answer(landing, each)) is not None
        ]
        first[index] = min((each for each in (*ends, first[index + 1]) if each is not None), default=None)
    names = Names(landing)
    for reader, index in pinned:
        earliest = first[index + 1]
        if earliest is None or earliest[0] >= landing.transactions[reader].began - slack or earliest[1] == reader:
            continue
        writer = earliest[1]
        saw = f"version {history.versions[index].id}" if index >= 0 else "no version yet"
        words = (
            f"{names.tx(reader)} read {history.table} at {saw}; but {names.tx(writer)}, which is in "
            f"{names.version(writer, history.table)}, was answered {_gap(landing, writer, reader)} before "
            f"{names.tx(reader)} was called"
        )
        findings.add(Kind.STALE_READ, history.table, [reader, writer], lambda w=words: w)  # type: ignore[misc]

"""The check as one pure function: transactions and versions in, a report out."""

from __future__ import annotations

from collections.abc import Iterable

from frazil.verify.checker.cycles import search
from frazil.verify.checker.edges import DATA, Graph
from frazil.verify.checker.explain import Explainer
from frazil.verify.checker.findings import Findings, Names
from frazil.verify.checker.landing import Landing, by_version, land
from frazil.verify.checker.model import Figures, Key, Kind, Outcome, Read, Report, Transaction, Version
from frazil.verify.checker.order import add_order, judge_edges, judge_pins
from frazil.verify.checker.replay import Replay, chain_whole_reads
from frazil.verify.checker.tracing import Tracer, unpinned_reads

WITNESSES = 3


def check(
    transactions: Iterable[Transaction],
    versions: Iterable[Version],
    *,
    slack: float = 0.0,
    witnesses: int = WITNESSES,
) -> Report:
    """Check a history.

    ``slack``: by how many seconds the clocks of two clients may differ; 0 where all run on one machine.
    ``witnesses``: how many anomalies of each kind are reported in full.
    """
    landing = land(transactions, versions)
    findings = Findings(landing, witnesses)
    graph = Graph(len(landing.transactions))
    keys: list[tuple[int, Key]] = []
    _judge_landing(landing, findings)
    pinned, unpinned = by_version(landing), unpinned_reads(landing, findings)
    explainer = Explainer(landing, graph, keys)
    for history in landing.histories.values():
        guessed, loose = unpinned.get(history.table, ({}, []))
        done = Replay(landing, history, graph, findings, keys).run(pinned.get(history.table, {}), guessed)
        tracer = Tracer(landing, history, graph, findings, done.cells)
        for read in (*done.loose, *loose):
            tracer.place(read)
        chain_whole_reads(graph, landing, history, done.whole)
        judge_pins(landing, history, findings, slack, done.pinned)
    judge_edges(graph, landing, findings, slack, explainer.edge)
    edges = len(graph)
    add_order(graph, landing, slack)
    cut_short = _judge_cycles(landing, graph, findings, explainer, witnesses)
    return Report(
        anomalies=tuple(findings.anomalies()),
        counts=dict(findings.counts),
        tables=tuple(sorted(landing.histories)),
        figures=_figures(landing, edges),
        notes=tuple(_notes(landing, cut_short)),
    )


def _judge_landing(landing: Landing, findings: Findings) -> None:
    names = Names(landing)
    for number, table in landing.missing:
        lost = landing.transactions[number]
        if lost.outcome is Outcome.OK:
            words = f"{lost.id} was acknowledged ({lost.commit_id}), and no version of {table} has it"
        else:
            words = f"{lost.id} ({lost.commit_id}) landed in another table, and no version of {table} has it"
        findings.add(Kind.LOST_WRITE, table, [number], lambda w=words: w)  # type: ignore[misc]
    for history in landing.histories.values():
        for number, index in history.repeated:
            who, at = names.tx(number), names.version(number, history.table)
            words = f"{who} is in {at} of {history.table} and again in version {history.versions[index].id}"
            findings.add(Kind.DUPLICATE, history.table, [number], lambda w=words: w)  # type: ignore[misc]
        for number in history.place:
            if landing.transactions[number].outcome is Outcome.FAILED:
                who, at = names.tx(number), names.version(number, history.table)
                words = f"{who} was reported as failed, and {at} of {history.table} has it"
                findings.add(Kind.FALSE_FAILURE, history.table, [number], lambda w=words: w)  # type: ignore[misc]


def _judge_cycles(landing: Landing, graph: Graph, findings: Findings, explainer: Explainer, witnesses: int) -> int:
    """Add the cycles; returns the number of searches that were cut short."""
    if not graph.components():
        return 0
    # Edges against real time were found one by one; without any, real time may still close a longer cycle.
    in_time = not (findings.counts[Kind.STALE_READ] or findings.counts[Kind.REAL_TIME])
    if not in_time and not graph.components(DATA):
        return 0
    numbers = [history.number for history in landing.histories.values()]
    places: list[int | None] = [*numbers, None] if len(numbers) > 1 else [None]
    seen: set[frozenset[int]] = set()
    cut_short = 0
    for table in places:
        found = search(graph, table, witnesses, in_time=in_time)
        cut_short += found.cut_short
        for cycle in found.cycles:
            edges = frozenset(link.before for link in cycle)
            if edges in seen:
                continue
            seen.add(edges)
            kind, level = explainer.classify(cycle)
            findings.add_cycle(kind, level, explainer.steps(cycle), explainer.sentence(kind))
    return cut_short


def _figures(landing: Landing, edges: int) -> Figures:
    reads = writes = 0
    tally = {"ok": 0, "failed": 0, "landed": 0, "absent": 0}
    for number, each in enumerate(landing.transactions):
        mine = sum(1 for op in each.ops if isinstance(op, Read))
        reads += mine
        writes += len(each.ops) - mine
        if each.outcome is Outcome.UNKNOWN:
            tally["landed" if landing.landed[number] else "absent"] += 1
        else:
            tally[each.outcome.value] += 1
    return Figures(
        transactions=len(landing.transactions),
        committed=tally["ok"],
        failed=tally["failed"],
        unknown_landed=tally["landed"],
        unknown_absent=tally["absent"],
        reads=reads,
        writes=writes,
        versions=sum(len(history.versions) for history in landing.histories.values()),
        edges=edges,
    )


def _notes(landing: Landing, cut_short: int) -> Iterable[str]:
    for history in landing.histories.values():
        if not history.is_given:
            yield f"The versions of {history.table} were not given, so the order of its writes is not known."
        elif history.is_truncated:
            yield f"The first versions of {history.table} have expired; their rows are not checked."
        elif not history.is_closed:
            yield f"{history.table} has unrecorded changes; rows that they may have touched are not checked."
        if any(writer is None for writer in history.writer_of.values()):
            yield f"Some values of {history.table} were written more than once; reads of them cannot be traced."
    if landing.withdrawn:
        yield f"Acknowledged transactions in rolled back versions: {landing.withdrawn}."
    if landing.beyond:
        yield f"Acknowledged transactions older than the oldest kept version: {landing.beyond}."
    if landing.unnamed:
        yield f"Acknowledged transactions without a commit id, which cannot be searched for: {landing.unnamed}."
    if cut_short:
        yield f"Components in which the search for the shortest cycle was cut short: {cut_short}."

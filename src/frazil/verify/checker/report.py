"""A report as sentences and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from frazil.verify.checker.model import Anomaly, Figures, Level, Report
from frazil.wording import counted


def sentences(report: Report) -> Iterator[str]:
    """The report for people: the size of the history, the levels it rules out, and each witness step by step."""
    yield _figures(report.figures)
    for table in report.tables:
        yield f"{table}: {_result(report, table)}"
    if len(report.tables) > 1:
        yield f"All tables together: {_result(report, None)}"
    for note in report.notes:
        yield f"Note: {note}"
    for anomaly in report.anomalies:
        yield ""
        yield from _anomaly_sentences(anomaly)
    totals = [f"{kind.value}: {count}" for kind, count in report.counts.items() if count]
    if totals:
        yield ""
        yield f"Total: {', '.join(totals)}. Numbers of cycles are lower bounds."


def _figures(figures: Figures) -> str:
    unknown = figures.unknown_landed + figures.unknown_absent
    parts = [f"{figures.committed} committed", f"{figures.failed} failed"]
    if unknown:
        parts.append(f"{unknown} without an answer, of which {figures.unknown_landed} landed")
    transactions = f"{counted(figures.transactions, 'transaction')} ({', '.join(parts)})"
    counts = [counted(figures.reads, "read"), counted(figures.writes, "write"), counted(figures.versions, "version")]
    return ", ".join([transactions, *counts, counted(figures.edges, "dependency", "dependencies")])


def _result(report: Report, table: str | None) -> str:
    strongest = report.holds(table)
    if strongest is Level.STRICT_SERIALIZABLE:
        return "nothing found; no level is ruled out"
    ruled = _listed([level.words for level in report.ruled_out(table)])
    if strongest is None:
        return f"ruled out: {ruled}. No level is left"
    return f"ruled out: {ruled}. {strongest.words.capitalize()} is not"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _anomaly_sentences(anomaly: Anomaly) -> Iterator[str]:
    where = " and ".join(anomaly.tables)
    yield f"{anomaly.kind.value} in {where} (forbidden from {anomaly.rules_out.words} on): {anomaly.words}."
    for number, step in enumerate(anomaly.cycle, 1):
        yield f"  {number}. {step.words}. So {step.before} comes before {step.after} ({step.edge.value})."
    if anomaly.cycle:
        yield f"  So {anomaly.cycle[0].before} would have to come before itself."


def to_json(report: Report) -> dict[str, Any]:
    """The report for programs."""
    return {
        "clean": report.is_clean,
        "holds": _name(report.holds()),
        "ruled_out": [level.words for level in report.ruled_out()],
        "tables": {
            table: {"holds": _name(report.holds(table)), "ruled_out": [each.words for each in report.ruled_out(table)]}
            for table in report.tables
        },
        "counts": {kind.value: count for kind, count in report.counts.items()},
        "anomalies": [_anomaly(each) for each in report.anomalies],
        "figures": asdict(report.figures),
        "notes": list(report.notes),
    }


def _name(level: Level | None) -> str | None:
    return None if level is None else level.words


def _anomaly(anomaly: Anomaly) -> dict[str, Any]:
    return {
        "kind": anomaly.kind.value,
        "rules_out": anomaly.rules_out.words,
        "tables": list(anomaly.tables),
        "transactions": list(anomaly.transactions),
        "words": anomaly.words,
        "cycle": [{**asdict(step), "edge": step.edge.value} for step in anomaly.cycle],
    }

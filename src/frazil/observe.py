"""What an operator sees: one structured log event per attempt, and metrics through OpenTelemetry's API.

Without an OpenTelemetry SDK the metrics go nowhere and cost next to nothing. No event holds a predicate, a key or a
row: those are personal data. Names in Prometheus: ``frazil_commit_attempts_total{operation,outcome}``,
``frazil_commit_conflict_total{operation,check}``, ``frazil_commit_retries_total{reason}``, ``frazil_commit_seconds``.
"""

from __future__ import annotations

import logging

from opentelemetry import metrics

from frazil.model import Conflict

log = logging.getLogger("frazil.commit")

# OpenTelemetry's meters are proxies: instruments made here reach an SDK that is set up later.
_meter = metrics.get_meter("frazil")
_attempts = _meter.create_counter("frazil_commit_attempts", description="Attempts to commit, by outcome")
_conflicts = _meter.create_counter("frazil_commit_conflict", description="Commits refused by a check")
_retries = _meter.create_counter("frazil_commit_retries", description="Attempts repeated, by reason")
_seconds = _meter.create_histogram(
    "frazil_commit_seconds", description="Time from first look at the head to the outcome"
)


def attempt(
    *, table: str, operation: str, outcome: str, number: int, commit_id: str, seconds: float, detail: str = ""
) -> None:
    """One attempt ended. ``detail`` must not hold data of the table."""
    _attempts.add(1, {"operation": operation, "outcome": outcome})
    log.log(
        logging.DEBUG if outcome == "committed" else logging.INFO,
        "%s on %s: attempt %d %s",
        operation,
        table,
        number,
        outcome,
        extra={
            "event": "commit.attempt",
            "table": table,
            "operation": operation,
            "outcome": outcome,
            "attempt": number,
            "commit_id": commit_id,
            "attempt_seconds": round(seconds, 6),
            "detail": detail,
        },
    )


def retried(reason: str) -> None:
    _retries.add(1, {"reason": reason})


def finished(operation: str, seconds: float) -> None:
    _seconds.record(seconds, {"operation": operation})


def refused(operation: str, conflicts: tuple[Conflict, ...]) -> None:
    for conflict in conflicts:
        _conflicts.add(1, {"operation": operation, "check": str(conflict.check)})

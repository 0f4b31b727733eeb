"""What an operator sees: one structured log event per attempt, and metrics through OpenTelemetry's API.

Without an OpenTelemetry SDK the metrics go nowhere and cost next to nothing. No event holds a predicate, a key or a
row: those are personal data. Names in Prometheus: ``frazil_commit_attempts_total{operation,outcome}``,
``frazil_commit_conflict_total{operation,check}``, ``frazil_commit_retries_total{reason}``, ``frazil_commit_seconds``;
for group commits ``frazil_commit_group_size{operation}``, ``frazil_commit_queue_wait_seconds`` and
``frazil_commit_returned_total``.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from opentelemetry import metrics

from frazil.model import Commit, Conflict, Origin, TransactionCommit

Done = TypeVar("Done", bound=Commit | TransactionCommit)

log = logging.getLogger("frazil.commit")

# OpenTelemetry's meters are proxies: instruments made here reach an SDK that is set up later.
_meter = metrics.get_meter("frazil")
_attempts = _meter.create_counter("frazil_commit_attempts", description="Attempts to commit, by outcome")
_conflicts = _meter.create_counter("frazil_commit_conflict", description="Commits refused by a check")
_retries = _meter.create_counter("frazil_commit_retries", description="Attempts repeated, by reason")
_seconds = _meter.create_histogram(
    "frazil_commit_seconds", description="Time from the first read of the head to the outcome"
)
# The default boundaries are for milliseconds: almost every wait and every group would be in one bucket.
_group_size = _meter.create_histogram(
    "frazil_commit_group_size",
    description="Commits in one swap",
    explicit_bucket_boundaries_advisory=tuple(float(2**n) for n in range(10)),
)
_queue_wait = _meter.create_histogram(
    "frazil_commit_queue_wait_seconds",
    description="Time from queueing a commit to its outcome",
    explicit_bucket_boundaries_advisory=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
_returned = _meter.create_counter("frazil_commit_returned", description="Queued commits returned to their writers")


def attempt(
    *,
    table: str,
    operation: str,
    outcome: str,
    number: int,
    commit_id: str,
    seconds: float,
    detail: str = "",
    origin: Origin | None = None,
) -> None:
    """One attempt ended. ``detail`` must not contain data of the table."""
    app, verb = (origin.app, origin.verb) if origin is not None else ("", operation)
    _attempts.add(1, {"operation": operation, "outcome": outcome})
    log.log(
        logging.DEBUG if outcome == "committed" else logging.INFO,
        "%s on %s%s: attempt %d %s",
        verb,
        table,
        f" by {app}" if app else "",
        number,
        outcome,
        extra={
            "event": "commit.attempt",
            "table": table,
            "operation": operation,
            "app": app,
            "verb": verb,
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


def grouped(operation: str, size: int) -> None:
    """A swap landed with so many commits. Only the leader of the group calls this; ``operation`` is its own."""
    _group_size.record(size, {"operation": operation})


def waited(seconds: float) -> None:
    """A queued commit of this process has left the queue, whatever its outcome."""
    _queue_wait.record(seconds)


def returned(count: int) -> None:
    """So many queued commits were returned to their writers, by a group that this process led."""
    if count:
        _returned.add(count)


# The recorder's seam (docs/checker.md): None unless a log of all calls and answers is asked for.


class Recorder(Protocol):
    """Records the calls of clients and their answers. Its arguments are typed Any: their types are in higher layers."""

    def calling(self) -> None: ...
    def scanned(self, source: Any, scan: Any, branch: str, is_historic: bool) -> Any: ...
    def committing(self, context: Any, operations: Any, identity: Any, run: Callable[[], Commit]) -> Commit: ...
    def committing_tables(self, context: Any, unit: Any, identity: Any, run: Callable[[], Done]) -> Done: ...
    def redone(self, context: Any, operations: Any, identity: Any) -> None: ...
    def begun(self, transaction: Any) -> None: ...
    def ending(self, transaction: Any) -> contextlib.AbstractContextManager[None]: ...
    def rolled_back(self, transaction: Any) -> None: ...


recorder: Recorder | None = None


def calling() -> None:
    """A client's call begins that may end in a scan or a commit."""
    if recorder is not None:
        recorder.calling()


def scanned(source: Any, scan: Any, branch: str, is_historic: bool) -> Any:
    """The scan, or the same one that also records what is read with it."""
    return scan if recorder is None else recorder.scanned(source, scan, branch, is_historic)


def committing(context: Any, operations: Any, identity: Any, run: Callable[[], Commit]) -> Commit:
    """Run a commit to its end."""
    return run() if recorder is None else recorder.committing(context, operations, identity, run)


def committing_tables(context: Any, unit: Any, identity: Any, run: Callable[[], Done]) -> Done:
    """Run a commit to several tables to its end."""
    return run() if recorder is None else recorder.committing_tables(context, unit, identity, run)


def redone(context: Any, operations: Any, identity: Any) -> None:
    """The statement of the commit that this thread runs was evaluated again, to these operations."""
    if recorder is not None:
        recorder.redone(context, operations, identity)


def begun(transaction: Any) -> None:
    if recorder is not None:
        recorder.begun(transaction)


def ending(transaction: Any) -> contextlib.AbstractContextManager[None]:
    """Around a transaction's commit."""
    return contextlib.nullcontext() if recorder is None else recorder.ending(transaction)


def rolled_back(transaction: Any) -> None:
    if recorder is not None:
        recorder.rolled_back(transaction)

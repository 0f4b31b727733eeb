"""Verdicts: pure functions from what processes were told and saw to findings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from frazil.catalog.base import Committed, Stale
from frazil.verify.doctor.model import Answer, Finding, QueuedCommit, Round, Sight

_NOT_A_SWAP = (
    "Do not let two writers share this catalog. Move the tables to a catalog with a real compare-and-swap "
    "(SQLite, Postgres, a REST catalog that passes this test)"
)
_STALE_READS = "Read from the primary, without a cache in between; a commit that reads an old head overwrites new work"
_KEPT = 3


def judge_round(played: Round, *, stale_is_certain: bool) -> list[Finding]:
    """All promises that one round can break. ``stale_is_certain``: the catalog says so of its own Stale (rule P30)."""
    return [
        *_too_many_winners(played),
        *_winner_from_old_head(played),
        *_head_is_not_the_winners(played),
        *_moved_without_a_winner(played, stale_is_certain),
        *_answers_of_losers(played, stale_is_certain),
    ]


def judge_repeat(again: Answer, *, had_won: bool, before: Sight, after: Sequence[Sight]) -> list[Finding]:
    """A swap was sent a second time: the head must stay, and a loser must not be told that it won."""
    found = []
    for sight in after:
        if sight.snapshot_id != before.snapshot_id:
            evidence = f"The head was {before.snapshot_id}; after the repetition process {sight.worker} saw "
            found.append(_violation("A repeated request moved the head", f"{evidence}{sight.snapshot_id}"))
    if isinstance(again, Committed) and not had_won:
        found.append(
            _violation(
                "A swap that had lost was told Committed when it was sent again",
                f"Process {before.worker} sent it while the head was {before.snapshot_id}",
            )
        )
    return found


def nobody_won(played: Round) -> bool:
    """A race from the true head in which no swap landed: nothing is lost, but nothing moves either."""
    mine = {ticket.snapshot_id for ticket in played.tickets if ticket.expected == played.head}
    seen = {sight.snapshot_id for sight in played.after}
    return bool(mine) and not (mine & seen)


def judge_history(acknowledged: Sequence[int], denied: Collection[int], history: Sequence[int]) -> list[Finding]:
    """``history``: the snapshots from the head back to the first: every acknowledged one, once, and no denied one."""
    found = []
    kept = set(history)
    lost = [snapshot for snapshot in acknowledged if snapshot not in kept]
    if lost:
        found.append(
            _violation(
                "Acknowledged commits are missing from the table's history (lost updates)",
                f"{len(lost)} of {len(acknowledged)} acknowledged snapshots are gone: {_few(lost)}",
            )
        )
    risen = [snapshot for snapshot in history if snapshot in denied]
    if risen:
        found.append(
            _violation(
                "Commits that were answered with Stale are in the table's history",
                f"{len(risen)} snapshots landed although their writers were told they had not: {_few(risen)}",
            )
        )
    twice = [snapshot for snapshot in kept if list(history).count(snapshot) > 1]
    if twice:
        found.append(_violation("A commit is in the history twice", f"Snapshots {_few(twice)}"))
    return found


def _too_many_winners(played: Round) -> Iterable[Finding]:
    winners = [ticket for ticket in _committed(played) if ticket.expected == played.head]
    if len(winners) > 1:
        yield _violation(
            f"{len(winners)} swaps from one expected value were all told Committed",
            f"Round {played.number} ({played.kind}), head {played.head}: "
            + "; ".join(f"process {ticket.worker} made {ticket.snapshot_id}" for ticket in winners),
        )


def _winner_from_old_head(played: Round) -> Iterable[Finding]:
    for ticket in _committed(played):
        if ticket.expected != played.head:
            yield _violation(
                "A swap with an old expected value was told Committed",
                f"Round {played.number} ({played.kind}): process {ticket.worker} expected {ticket.expected} "
                f"while the head was {played.head}",
            )


def _head_is_not_the_winners(played: Round) -> Iterable[Finding]:
    possible = {ticket.snapshot_id for ticket in _committed(played)}
    for sight in played.after if possible else ():
        if sight.snapshot_id in possible:
            continue
        evidence = (
            f"Round {played.number} ({played.kind}): {_few(sorted(possible))} was acknowledged, process "
            f"{sight.worker} then saw {sight.snapshot_id}"
        )
        if sight.snapshot_id == played.head:
            what = "A read after an acknowledged commit did not see it (stale read)"
            yield Finding("violation", what, evidence, _STALE_READS)
        else:
            yield _violation("The head after a round is not the winner's", evidence)


def _moved_without_a_winner(played: Round, stale_is_certain: bool) -> Iterable[Finding]:
    if _committed(played):
        return
    sent = {ticket.snapshot_id: ticket for ticket in played.tickets}
    for sight in played.after:
        if sight.snapshot_id == played.head:
            continue
        ticket = sent.get(sight.snapshot_id or 0)
        evidence = (
            f"Round {played.number} ({played.kind}): the head was {played.head}, process {sight.worker} then saw "
            f"{sight.snapshot_id}"
        )
        if ticket is None:
            yield _violation("The head moved to a snapshot that nobody sent in this round", evidence)
        elif ticket.expected != played.head:
            yield _violation("A swap with an old expected value landed over newer work", evidence)
        elif stale_is_certain and isinstance(ticket.answer, Stale):
            yield _violation("A swap that was answered with Stale is the head", evidence)


def _answers_of_losers(played: Round, stale_is_certain: bool) -> Iterable[Finding]:
    for ticket in played.tickets:
        answer = ticket.answer
        if not isinstance(answer, Stale):
            continue
        where = f"Round {played.number} ({played.kind}), process {ticket.worker}"
        if answer.actual is None:
            yield _violation("A loser was told that the table is gone", f"{where}: the table was there all the time")
        elif stale_is_certain and answer.actual == played.head_location and ticket.expected == played.head:
            yield _violation(
                "A loser was shown the value it had expected, not the one that beat it",
                f"{where}: {answer.actual} was named as current, which was the expected value",
            )


def _committed(played: Round) -> list[QueuedCommit]:
    return [ticket for ticket in played.tickets if isinstance(ticket.answer, Committed)]


def _violation(what: str, evidence: str) -> Finding:
    return Finding("violation", what, evidence, _NOT_A_SWAP)


def _few(values: Sequence[int]) -> str:
    shown = ", ".join(map(str, values[:_KEPT]))
    return shown if len(values) <= _KEPT else f"{shown} and {len(values) - _KEPT} more"


def condense(findings: Iterable[Finding]) -> list[Finding]:
    """One finding per kind, with the first evidence and how often it was seen."""
    grouped: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        # "2 swaps …" and "7 swaps …" are one kind.
        grouped.setdefault((finding.severity, finding.what.lstrip("0123456789 ")), []).append(finding)
    return [_with_count(group) for group in grouped.values()]


def _with_count(group: Sequence[Finding]) -> Finding:
    first = group[0]
    if len(group) == 1:
        return first
    return Finding(first.severity, first.what, f"{first.evidence} (seen {len(group)} times)", first.advice)

"""The checks of the doctor: pure functions from answers and observations to findings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from frazil.catalog.base import Committed, Stale
from frazil.verify.doctor.model import Answer, Finding, Observation, Round, SentSwap
from frazil.wording import counted

_NOT_A_SWAP = (
    "Do not let two writers share this catalog. Move the tables to a catalog with an atomic compare-and-swap "
    "(SQLite, Postgres, a REST catalog that passes this test)"
)
_STALE_READS = "Read from the primary, without a cache in between; a commit that reads an old head overwrites new work"
_KEPT = 3


def judge_round(played: Round, *, stale_is_certain: bool) -> list[Finding]:
    """Findings of one round. ``stale_is_certain``: the catalog's Stale proves that the swap did not land (P30)."""
    return [
        *_too_many_winners(played),
        *_winner_from_old_head(played),
        *_head_is_not_the_winners(played),
        *_moved_without_a_winner(played, stale_is_certain),
        *_answers_of_losers(played, stale_is_certain),
    ]


def judge_repeat(again: Answer, *, had_won: bool, before: Observation, after: Sequence[Observation]) -> list[Finding]:
    """A swap was sent a second time: the head must not move, and a lost swap must not be answered Committed."""
    found = []
    for observed in after:
        if observed.snapshot_id != before.snapshot_id:
            evidence = f"The head was {before.snapshot_id}; after the repetition process {observed.worker} saw "
            found.append(_violation("A repeated request moved the head", f"{evidence}{observed.snapshot_id}"))
    if isinstance(again, Committed) and not had_won:
        found.append(
            _violation(
                "A lost swap was answered Committed when it was sent again",
                f"Process {before.worker} sent it while the head was {before.snapshot_id}",
            )
        )
    return found


def no_swap_landed(played: Round) -> bool:
    """No swap from the current head landed: nothing is lost, but there is no progress."""
    mine = {swap.snapshot_id for swap in played.swaps if swap.expected == played.head}
    seen = {observed.snapshot_id for observed in played.after}
    return bool(mine) and not (mine & seen)


def judge_history(acknowledged: Sequence[int], denied: Collection[int], history: Sequence[int]) -> list[Finding]:
    """``history``, from the head back to the first, must hold each acknowledged snapshot once, and no denied one."""
    found = []
    kept = set(history)
    lost = [snapshot for snapshot in acknowledged if snapshot not in kept]
    if lost:
        found.append(
            _violation(
                "Acknowledged commits are missing from the table's history (lost updates)",
                f"{len(lost)} of {counted(len(acknowledged), 'acknowledged snapshot')} missing: {_few(lost)}",
            )
        )
    risen = [snapshot for snapshot in history if snapshot in denied]
    if risen:
        found.append(
            _violation(
                "Commits that were answered Stale are in the table's history",
                f"{counted(len(risen), 'snapshot')} landed although the answer was Stale: {_few(risen)}",
            )
        )
    twice = [snapshot for snapshot in kept if list(history).count(snapshot) > 1]
    if twice:
        found.append(_violation("A commit is in the history twice", f"Snapshots {_few(twice)}"))
    return found


def _too_many_winners(played: Round) -> Iterable[Finding]:
    winners = [swap for swap in _committed(played) if swap.expected == played.head]
    if len(winners) > 1:
        yield _violation(
            f"{len(winners)} swaps from one expected value were all answered Committed",
            f"Round {played.number} ({played.kind}), head {played.head}: "
            + "; ".join(f"process {swap.worker} made {swap.snapshot_id}" for swap in winners),
        )


def _winner_from_old_head(played: Round) -> Iterable[Finding]:
    for swap in _committed(played):
        if swap.expected != played.head:
            yield _violation(
                "A swap with an old expected value was answered Committed",
                f"Round {played.number} ({played.kind}): process {swap.worker} expected {swap.expected} "
                f"while the head was {played.head}",
            )


def _head_is_not_the_winners(played: Round) -> Iterable[Finding]:
    possible = {swap.snapshot_id for swap in _committed(played)}
    for observed in played.after if possible else ():
        if observed.snapshot_id in possible:
            continue
        evidence = (
            f"Round {played.number} ({played.kind}): {_few(sorted(possible))} was acknowledged, process "
            f"{observed.worker} then saw {observed.snapshot_id}"
        )
        if observed.snapshot_id == played.head:
            what = "A read after an acknowledged commit did not see it (stale read)"
            yield Finding("violation", what, evidence, _STALE_READS)
        else:
            yield _violation("The head after a round is not the winner's", evidence)


def _moved_without_a_winner(played: Round, stale_is_certain: bool) -> Iterable[Finding]:
    if _committed(played):
        return
    sent = {swap.snapshot_id: swap for swap in played.swaps}
    for observed in played.after:
        if observed.snapshot_id == played.head:
            continue
        swap = sent.get(observed.snapshot_id or 0)
        evidence = (
            f"Round {played.number} ({played.kind}): the head was {played.head}, process {observed.worker} then saw "
            f"{observed.snapshot_id}"
        )
        if swap is None:
            yield _violation("The head moved to a snapshot that no process sent in this round", evidence)
        elif swap.expected != played.head:
            yield _violation("A swap with an old expected value landed over newer work", evidence)
        elif stale_is_certain and isinstance(swap.answer, Stale):
            yield _violation("A swap that was answered Stale is the head", evidence)


def _answers_of_losers(played: Round, stale_is_certain: bool) -> Iterable[Finding]:
    for swap in played.swaps:
        answer = swap.answer
        if not isinstance(answer, Stale):
            continue
        where = f"Round {played.number} ({played.kind}), process {swap.worker}"
        if answer.actual is None:
            yield _violation("A lost swap was answered that the table is gone", f"{where}: the table existed all along")
        elif stale_is_certain and answer.actual == played.head_location and swap.expected == played.head:
            yield _violation(
                "A lost swap was answered with its own expected value, not with the winner's",
                f"{where}: {answer.actual} was returned as current, which is the expected value",
            )


def _committed(played: Round) -> list[SentSwap]:
    return [swap for swap in played.swaps if isinstance(swap.answer, Committed)]


def _violation(what: str, evidence: str) -> Finding:
    return Finding("violation", what, evidence, _NOT_A_SWAP)


def _few(values: Sequence[int]) -> str:
    shown = ", ".join(map(str, values[:_KEPT]))
    return shown if len(values) <= _KEPT else f"{shown} and {len(values) - _KEPT} more"


def condense(findings: Iterable[Finding]) -> list[Finding]:
    """One finding per kind, with the first evidence and the number of occurrences."""
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

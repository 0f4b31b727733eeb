"""The invariants of group commit, and the situations that the model has to reach."""

from __future__ import annotations

from collections.abc import Iterator

from frazil_verification.model.group_state import (
    COMMITTED,
    FORGOTTEN,
    RETURNED,
    WITHDRAWN,
    At,
    Process,
    Setting,
    State,
    bits,
)


def broken(setting: Setting, state: State) -> Iterator[str]:
    if state.decided_twice:
        yield "ticket_leaves_waiting_once"
    if state.too_late:
        yield "no_commit_after_the_deadline"
    if state.poisoned > setting.bounds.most_tries:
        yield "a_bad_ticket_stops_few"
    for number, process in enumerate(state.processes):
        op = setting.op(number)
        times = sum(count for at, count in enumerate(state.counts) if setting.op(at) == op)
        if times > 1:
            yield "lands_at_most_once"
        if process.at == At.OK and times != 1:
            yield "acknowledged_is_there_once"
        if process.at == At.FAILED and state.counts[number]:
            yield "failed_is_not_there"
        if state.counts[number] and state.deleted >> number & 1:
            yield "no_live_file_is_deleted"


def marks(state: State) -> Iterator[str]:
    if state.widest > 1:
        yield f"a group of {state.widest} commits"
    if all(process.at == At.OK for process in state.processes):
        yield "all writers commit"
    for status in (COMMITTED, RETURNED, WITHDRAWN, FORGOTTEN):
        if status in state.tickets:
            yield f"a {status} ticket"
    for number, process in enumerate(state.processes):
        yield from _marks(state, number, process)


def _marks(state: State, number: int, process: Process) -> Iterator[str]:
    if process.at == At.READY and process.group and process.base != state.version:
        yield "a stalled leader is about to lose"
    if process.at == At.READY and any(state.tickets[at] == WITHDRAWN for at in bits(process.group)):
        yield "a leader holds a ticket that was withdrawn"
    if process.at == At.SENT and process.landed:
        yield "landed without its leader's knowledge"
    if process.at == At.DEAD and state.tickets[number] == COMMITTED:
        yield "a dead writer's ticket was committed in time"
    if process.at == At.DEAD and state.lock == number:
        yield "a dead leader holds the commit lock"
    if process.at == At.QUEUED and state.expired >> number & 1:
        yield "a live writer's ticket has expired"

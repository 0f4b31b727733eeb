"""The database in the model of group commit: every function is one transaction."""

from __future__ import annotations

from frazil_verification.model.group_state import (
    COMMITTED,
    FORGOTTEN,
    RETURNED,
    WAITING,
    WITHDRAWN,
    At,
    Flight,
    Rule,
    Setting,
    State,
    bits,
    put,
    set_ticket,
)


def withdrawn(setting: Setting, state: State, number: int) -> State:
    status = state.tickets[number]
    if status == WAITING:
        return set_ticket(state, number, WITHDRAWN)
    if not setting.on(Rule.WITHDRAWING_IS_GUARDED) and status != FORGOTTEN:
        return set_ticket(state, number, WITHDRAWN)._replace(decided_twice=True)
    return state


def applied(setting: Setting, state: State, flight: Flight) -> tuple[bool, State]:
    """The transaction of a swap, which is atomic."""
    group = flight.group | (flight.own << flight.number)
    if setting.on(Rule.POINTER_IS_COMPARED) and flight.base != state.version:
        return False, state
    guarded = group if setting.on(Rule.TICKETS_ARE_GUARDED) else flight.own << flight.number
    late = state.expired & guarded if setting.on(Rule.DEADLINE_IS_GUARDED) else 0
    if setting.on(Rule.ONE_TRANSACTION) and (late or any(state.tickets[at] != WAITING for at in bits(guarded))):
        return False, state
    landing = [*bits(flight.group), flight.number]
    ids = [setting.op(at) for at in landing if setting.is_recorded(at)]
    if setting.on(Rule.IDS_ARE_UNIQUE) and (len(set(ids)) < len(ids) or any(state.ids >> op & 1 for op in ids)):
        return False, state
    counts = list(state.counts if setting.on(Rule.POINTER_IS_COMPARED) else flight.had)
    for at in landing:
        counts[at] += 1
    for op in ids:
        state = state._replace(ids=state.ids | 1 << op)
    state = state._replace(
        version=state.version + 1,
        counts=tuple(counts),
        too_late=state.too_late or bool(state.expired & group),
        widest=len(landing),
    )
    sender = state.processes[flight.number]
    if sender.at in (At.READY, At.SENT):
        state = put(state, flight.number, sender._replace(landed=True))
    return True, settled(state, group, flight.returned) if setting.on(Rule.ONE_TRANSACTION) else state


def settled(state: State, group: int, returned: int) -> State:
    for at in bits(group):
        if state.tickets[at] not in (WAITING, COMMITTED):
            state = state._replace(decided_twice=True)
        state = set_ticket(state, at, COMMITTED)
    for at in bits(returned):
        if state.tickets[at] == WAITING:
            state = set_ticket(state, at, RETURNED)
    return state

"""Group commit with crashes: tickets, a commit lock that is only a hint, and swaps that decide all tickets of a group.

    put ticket ─▶ try the lock ─▶ read head ─▶ read queue, prepare ─▶ swap ─▶ conclude
         └────────── or a leader commits or returns it, or its writer withdraws it

Every process may stop anywhere for any time: a stalled leader is one whose next step comes late. Writers are sorted, so
that states which differ only in names are one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from frazil_verification.model.group_database import applied, settled, withdrawn
from frazil_verification.model.group_invariants import broken, marks
from frazil_verification.model.group_state import (
    COMMITTED,
    DECIDED,
    FORGOTTEN,
    NONE,
    RETURNED,
    UNLOCKED,
    WAITING,
    WITHDRAWN,
    At,
    Bounds,
    Flight,
    Process,
    Rule,
    Setting,
    State,
    bits,
    name_of,
    names,
    put,
    renamed,
    set_ticket,
)

Steps = Iterator[tuple[str, State]]


@dataclass(frozen=True, slots=True)
class Group:
    """The model."""

    setting: Setting = field(default_factory=Setting)

    @property
    def bounds(self) -> Bounds:
        return self.setting.bounds

    def on(self, rule: Rule) -> bool:
        return self.setting.on(rule)

    def initial(self) -> Iterable[State]:
        count, bounds = self.bounds.writers, self.bounds
        processes = [Process(At.NEW)] * count
        if bounds.rerun:
            processes[-1] = Process(At.LATER)
        yield State(
            processes=tuple(processes),
            counts=(0,) * count,
            tickets=(NONE,) * count,
            tries=(0,) * count,
            crashes=bounds.crashes,
            losses=bounds.losses,
            expiries=bounds.expiries,
        )

    def steps(self, state: State) -> Steps:
        for number, process in enumerate(state.processes):
            if process.at not in DECIDED:
                yield from self._process(state, number, process)
                if state.crashes:
                    dead = put(state._replace(crashes=state.crashes - 1), number, Process(At.DEAD))
                    yield f"{name_of(number)} crashes", dead
            elif process.at == At.DEAD:
                yield from self._after_death(state, number)
            yield from self._time(state, number)
        for flight in dict.fromkeys(state.flights):
            left = list(state.flights)
            left.remove(flight)
            lands, after = applied(self.setting, state._replace(flights=tuple(left)), flight)
            what = f"lands{_with(flight.group)}" if lands else "is stale"
            yield f"the late swap of {name_of(flight.number)} arrives and {what}", after
        for number in bits(state.putting):
            after = state._replace(putting=state.putting & ~(1 << number))
            if state.tickets[number] == NONE:
                after = set_ticket(after, number, WAITING)
            yield f"the late ticket of {name_of(number)} arrives", after

    # One process

    def _process(self, state: State, number: int, process: Process) -> Steps:
        step = {
            At.LATER: self._later,
            At.NEW: self._begins,
            At.PUTTING: self._fence,
            At.QUEUED: self._queued,
            At.STARTING: self._first_read,
            At.HEAD: self._reads_queue,
            At.READY: self._swap,
            At.SENT: self._in_doubt,
            At.SETTLING: self._settles,
        }
        return step[process.at](state, number, process)

    def _later(self, state: State, number: int, process: Process) -> Steps:
        if state.processes[0].at not in (At.DEAD, At.UNKNOWN):
            return
        if self.setting.is_found(state, number):
            words = f"{name_of(number)} repeats A's call and finds its commit id"
            yield words, put(state, number, Process(At.OK))
        else:
            words = f"{name_of(number)} repeats A's call with the same commit id"
            yield words, put(self._first_call_fenced(state), number, process._replace(at=At.NEW))

    def _first_call_fenced(self, state: State) -> State:
        """If A chose no id, only its ticket and its snapshot have the generated one."""
        if self.bounds.has_ids:
            return state
        if state.tickets[0] == NONE and self.on(Rule.FIRST_CALL_IS_FENCED):
            return set_ticket(state, 0, WITHDRAWN)
        return withdrawn(self.setting, state, 0)

    def _queued(self, state: State, number: int, process: Process) -> Steps:
        yield from self._waits(state, number, process)
        if self.bounds.may_give_up:
            yield from self._gives_up(state, number, process, f"{name_of(number)}'s time is up:")

    def _settles(self, state: State, number: int, process: Process) -> Steps:
        after = settled(state, process.group | (process.has_ticket << number), process.returned)
        words = f"{name_of(number)} writes the outcomes of the tickets"
        yield words, put(_released(after, number), number, Process(At.OK))

    def _begins(self, state: State, number: int, process: Process) -> Steps:
        name = name_of(number)
        queue_not_empty = any(
            status == WAITING and not state.expired >> at & 1 for at, status in enumerate(state.tickets)
        )
        if not process.lost and not queue_not_empty:
            yield from self._reads_head(state, number, process._replace(is_alone=True), "at once, without the queue")
        if not process.may_queue:
            yield (
                f"{name} waits for the commit lock without a ticket",
                put(state, number, process._replace(at=At.QUEUED)),
            )
            return
        queued = put(state, number, process._replace(at=At.QUEUED, has_ticket=True))
        yield f"{name} puts its ticket", set_ticket(queued, number, WAITING)
        if state.losses:
            doubt = put(state._replace(losses=state.losses - 1), number, process._replace(at=At.PUTTING))
            yield f"{name} puts its ticket, and the answer is lost", set_ticket(doubt, number, WAITING)
            late = doubt._replace(putting=doubt.putting | 1 << number)
            yield f"{name} puts its ticket, which is delayed, and gets no answer", late

    def _fence(self, state: State, number: int, process: Process) -> Steps:
        """A row that is put first under the same key fences the late ticket off; its state is then authoritative."""
        name, status = name_of(number), state.tickets[number]
        own = process._replace(at=At.NEW, may_queue=False)
        if state.losses:
            poorer = state._replace(losses=state.losses - 1)
            words = f"{name} gets no answer again and reports an unknown outcome"
            yield words, put(poorer, number, Process(At.UNKNOWN))
        if not self.on(Rule.PUT_IS_FENCED):
            words = f"{name} assumes that its ticket was not sent"
            yield words, put(state, number, own)
        elif status == NONE:
            yield f"{name} fences its ticket off", put(set_ticket(state, number, WITHDRAWN), number, own)
        elif status == WAITING or self.on(Rule.FENCE_IS_READ):
            words = f"{name} asks again and finds its ticket {status}"
            yield words, put(state, number, process._replace(at=At.QUEUED, has_ticket=True))
        else:
            words = f"{name} asks again, finds its ticket {status} and assumes that it was not sent"
            yield words, put(state, number, own)

    def _waits(self, state: State, number: int, process: Process) -> Steps:
        """The steps of a waiting writer that need no other process."""
        name = name_of(number)
        ahead = put(state, number, process._replace(at=At.STARTING))
        if state.lock == UNLOCKED:
            yield f"{name} takes the commit lock", ahead._replace(lock=number)
        elif self.on(Rule.LOCK_IS_A_HINT):
            yield f"{name} sees no progress and goes ahead without the commit lock", ahead
        if process.has_ticket and state.tickets[number] != WAITING:
            yield from self._decided(state, number, process, f"{name} reads its ticket")

    def _decided(self, state: State, number: int, process: Process, words: str) -> Steps:
        status = state.tickets[number]
        if status == COMMITTED:
            yield f"{words}: committed", put(_released(state, number), number, Process(At.OK))
        elif status == FORGOTTEN:
            if self.on(Rule.GONE_IS_UNKNOWN):
                unknown = put(_released(state, number), number, Process(At.UNKNOWN))
                yield f"{words}: gone, so the outcome is unknown", unknown
            else:
                yield f"{words}: gone, which it treats as failed", self._failed(state, number)
        else:
            again = process._replace(at=At.NEW, has_ticket=False, may_queue=False, lost=process.lost)
            yield (
                f"{words}: {status}, so it commits by itself",
                put(state, number, again._replace(lost=max(1, again.lost))),
            )

    # An attempt

    def _first_read(self, state: State, number: int, process: Process) -> Steps:
        if self.on(Rule.HEAD_FIRST):
            yield from self._reads_head(state, number, process, "")
            return
        for words, group, returned in self._groups(state, number, process):
            ready = process._replace(at=At.HEAD, group=group, returned=returned)
            yield f"{name_of(number)} reads the queue{words}", put(state, number, ready)

    def _reads_head(self, state: State, number: int, process: Process, how: str) -> Steps:
        words = f"{name_of(number)} reads the head" + (f" {how}" if how else "")
        if self.setting.is_found(state, number):
            yield from self._done_before(state, number, process, words)
            return
        read = process._replace(at=At.READY if process.is_alone else At.HEAD, base=state.version, had=self._had(state))
        yield words, put(state, number, read)

    def _had(self, state: State) -> tuple[int, ...]:
        # Only a swap that does not compare the pointer can land on a head other than its own.
        return () if self.on(Rule.POINTER_IS_COMPARED) else state.counts

    def _done_before(self, state: State, number: int, process: Process, words: str) -> Steps:
        """The commit id is already recorded, perhaps by the writer's own ticket: then its files are in the table."""
        words = f"{words} and finds its commit id"
        if process.has_ticket and self.on(Rule.ID_MAY_BE_OWN):
            state = withdrawn(self.setting, state, number)
            if state.tickets[number] == FORGOTTEN:
                yield from self._decided(state, number, process, f"{words}; its ticket")
                return
        is_own = state.tickets[number] == COMMITTED and self.on(Rule.ID_MAY_BE_OWN)
        done = put(_released(state, number), number, Process(At.OK))
        yield words, done if is_own else done._replace(deleted=state.deleted | 1 << number)

    def _reads_queue(self, state: State, number: int, process: Process) -> Steps:
        name = name_of(number)
        if not self.on(Rule.HEAD_FIRST):
            ready = process._replace(at=At.READY, base=state.version, had=self._had(state))
            yield f"{name} reads the head and prepares", put(state, number, ready)
            return
        poison = 1 << 0 if self.bounds.has_poison else 0
        for words, group, returned in self._groups(state, number, process):
            if group & poison:
                tries = (state.tries[0] + 1, *state.tries[1:]) if self.on(Rule.TRIES_ARE_COUNTED) else state.tries
                dead = put(state._replace(tries=tries, poisoned=state.poisoned + 1), number, Process(At.DEAD))
                yield f"{name} reads the queue{words} and is killed by A's ticket", dead
                continue
            ready = process._replace(at=At.READY, group=group, returned=returned)
            yield f"{name} reads the queue and prepares{words}", put(state, number, ready)

    def _groups(self, state: State, number: int, process: Process) -> Iterator[tuple[str, int, int]]:
        """The possible groups. Any member may need a check that only its own writer makes (rule P4)."""
        taken = {self.setting.op(number)}
        group = returned = 0
        for at, status in enumerate(state.tickets):
            if status != WAITING or at == number or state.expired >> at & 1:
                continue
            op = self.setting.op(at)
            # The swap inserts recorded ids, which are unique; an id that only the table has must be searched.
            searches = process.lost if self.bounds.has_ids else self.on(Rule.MEMBERS_ARE_SEARCHED)
            known = op in taken or (searches and self.setting.is_found(state, at))
            if known or state.tries[at] >= self.bounds.most_tries:
                returned |= 1 << at
            else:
                group |= 1 << at
                taken.add(op)
        yield f"{_with(group)}{_and_returns(returned)}", group, returned
        if self.bounds.returns_tickets:
            for at in bits(group):
                some, back = group & ~(1 << at), returned | 1 << at
                yield f"{_with(some)}{_and_returns(back)}", some, back

    def _swap(self, state: State, number: int, process: Process) -> Steps:
        name = name_of(number)
        flight = self._flight(number, process)
        lands, after = applied(self.setting, state, flight)
        if lands:
            yield f"{name}'s swap lands{_with(process.group)}", self._concluded(after, number, process)
        else:
            yield from self._lost(after, number, process, f"{name}'s swap is stale")
        if not state.losses:
            return
        doubt = process._replace(at=At.SENT)
        poorer = state._replace(losses=state.losses - 1)
        if lands:
            after = after._replace(losses=after.losses - 1)
            words = f"{name}'s swap lands{_with(process.group)}, and the answer is lost"
            yield words, put(after, number, after.processes[number]._replace(at=At.SENT))
        late = put(poorer._replace(flights=tuple(sorted((*state.flights, flight)))), number, doubt)
        yield f"{name} sends its swap, which is delayed, and gets no answer", late

    def _flight(self, number: int, process: Process) -> Flight:
        own = process.has_ticket and self.on(Rule.OWN_TICKET_IS_GUARDED)
        return Flight(number, process.base, process.group, process.returned, own, process.had)

    def _concluded(self, state: State, number: int, process: Process) -> State:
        if self.on(Rule.ONE_TRANSACTION):
            return put(_released(state, number), number, Process(At.OK))
        return put(state, number, process._replace(at=At.SETTLING))

    def _lost(self, state: State, number: int, process: Process, words: str) -> Steps:
        """A certain loss. The loser deletes the files of its own attempt, and no file of the other members."""
        if not self.on(Rule.ONLY_OWN_FILES):
            state = state._replace(deleted=state.deleted | process.group)
        state = _released(state, number)
        lost = process.lost + 1
        if lost < self.bounds.attempts:
            again = Process(
                At.QUEUED if process.has_ticket else At.NEW,
                has_ticket=process.has_ticket,
                may_queue=process.may_queue,
                lost=lost,
            )
            yield words, put(state, number, again)
        else:
            yield from self._gives_up(state, number, process, f"{words}, for the last time:")

    def _in_doubt(self, state: State, number: int, process: Process) -> Steps:
        """The identical swap again; without an answer, the writer's ticket still has the outcome (rules P3 and P9)."""
        name = name_of(number)
        if process.landed:
            words = f"{name} sends the identical swap again and learns that it has landed"
            yield words, self._concluded(state, number, process)
        else:
            lands, after = applied(self.setting, state, self._flight(number, process))
            words = f"{name} sends the identical swap again"
            if lands:
                yield f"{words}, which lands{_with(process.group)}", self._concluded(after, number, process)
            elif process.base != state.version or not self.on(Rule.HEAD_HAS_MOVED):
                yield from self._lost(after, number, process, f"{words}, which is stale")
        if process.has_ticket:
            yield from self._gives_up(state, number, process, f"{name} gets no answer again:")
        else:
            words = f"{name} gets no answer again and reports an unknown outcome"
            yield words, put(_released(state, number), number, Process(At.UNKNOWN))

    def _gives_up(self, state: State, number: int, process: Process, words: str) -> Steps:
        """Afterwards no leader may commit the ticket, or its outcome is known."""
        state = _released(state, number)
        if not process.has_ticket or not self.on(Rule.WITHDRAWN_BEFORE_DELETED):
            yield f"{words} it deletes its files", self._failed(state, number)
            return
        state = withdrawn(self.setting, state, number)
        if state.tickets[number] in (WITHDRAWN, RETURNED):
            yield f"{words} its ticket is {state.tickets[number]}, it deletes its files", self._failed(state, number)
        else:
            yield from self._decided(state, number, process, f"{words} its ticket")

    def _failed(self, state: State, number: int) -> State:
        return put(state._replace(deleted=state.deleted | 1 << number), number, Process(At.FAILED))

    # Time, death and clean-up

    def _time(self, state: State, number: int) -> Steps:
        name, bit = name_of(number), 1 << number
        if state.tickets[number] in (NONE, FORGOTTEN):
            return
        if not state.expired & bit:
            if state.expiries:
                after = state._replace(expired=state.expired | bit, expiries=state.expiries - 1)
                yield f"the deadline of {name}'s ticket passes", after
            return
        if state.tickets[number] == WAITING and state.processes[number].at == At.QUEUED:
            yield f"{name} extends its deadline", state._replace(expired=state.expired & ~bit)
        yield f"the queue deletes {name}'s old ticket", set_ticket(state, number, FORGOTTEN)

    def _after_death(self, state: State, number: int) -> Steps:
        name, bit = name_of(number), 1 << number
        if state.lock == number:
            yield f"the database releases the lock of {name}, which is dead", _released(state, number)
        is_in_flight = any(each.number == number for each in state.flights) or state.putting & bit
        status = state.tickets[number]
        if state.deleted & bit or is_in_flight or status in (NONE, COMMITTED, FORGOTTEN) or state.counts[number]:
            return
        if self.on(Rule.CLEANUP_WITHDRAWS):
            state = withdrawn(self.setting, state, number)
        yield f"clean-up deletes the files of {name}, which is dead", state._replace(deleted=state.deleted | bit)

    # Invariants

    def broken(self, state: State) -> Iterator[str]:
        yield from broken(self.setting, state)
        for number, process in enumerate(state.processes):
            is_stuck = process.at == At.QUEUED and not any(True for _ in self._waits(state, number, process))
            if is_stuck and state.processes[state.lock].at == At.DEAD:
                yield "no_wait_for_a_dead_leader"

    def marks(self, state: State) -> Iterator[str]:
        return marks(state)

    def canonical(self, state: State) -> Hashable:
        if self.bounds.rerun or self.bounds.has_poison:
            return state
        return renamed(state)


def _released(state: State, number: int) -> State:
    return state._replace(lock=UNLOCKED) if state.lock == number else state


def _with(group: int) -> str:
    return f" with {names(group)}" if group else ""


def _and_returns(returned: int) -> str:
    return f", returning {names(returned)}" if returned else ""

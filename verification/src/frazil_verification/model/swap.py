"""The swap: one pointer, lost answers, late or duplicate requests, and operators that change the history.

    read head ─▶ prepare ─▶ swap ─┬ committed
                                  ├ stale ─▶ (search) ─▶ read head again, or give up
                                  └ no answer ─▶ the identical swap again ─▶ search ─▶ … ─▶ outcome unknown

A table is a sequence of snapshots, each by one writer's attempt. Operators roll back and expire concurrently.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from frazil_verification.model.swap_state import (
    BASE,
    DECIDED,
    NAMES,
    Bounds,
    Head,
    Request,
    Rule,
    Snapshot,
    Stage,
    State,
    Writer,
    done,
    put,
    renamed,
    with_request,
)


@dataclass(frozen=True, slots=True)
class Swap:
    """The model. ``off``: rules that are switched off."""

    bounds: Bounds = field(default_factory=Bounds)
    off: frozenset[Rule] = frozenset()

    def on(self, rule: Rule) -> bool:
        return rule not in self.off

    def initial(self) -> Iterable[State]:
        bounds = self.bounds
        head = Head(BASE, (BASE,), frozenset(), ())
        writers = (Writer(Stage.START),) * bounds.writers
        none: frozenset[int] = frozenset()
        kept: frozenset[Snapshot] = frozenset()
        budget = (bounds.duplicates, bounds.crashes, bounds.reruns, bounds.rollbacks, bounds.expiries)
        yield State(head, writers, (), (), none, none, kept, *budget)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, writer in enumerate(state.writers):
            yield from self._writer(state, number, writer, NAMES[number])
        for request in dict.fromkeys(state.flying):
            yield from self._arrives(state, request)
        yield from self._operator(state)

    # Writers

    def _writer(self, state: State, number: int, writer: Writer, name: str) -> Iterator[tuple[str, State]]:
        match writer.at:
            case Stage.START:
                yield self._read_head(state, number, writer, name)
            case Stage.PREPARED:
                assert writer.request is not None
                sent = state._replace(flying=with_request(state.flying, writer.request))
                waits = writer._replace(at=Stage.WAITING, sent=1)
                yield f"{name} sends its swap", put(sent, number, waits)
            case Stage.WAITING:
                yield f"{name} gets no answer", put(state, number, writer._replace(at=Stage.DOUBT))
                if self.bounds.is_vague and writer.request in state.flying:
                    words = f"{name} gets the answer stale, although its swap is still in flight"
                    yield words, self._answered(state, number, writer, lands=False)
            case Stage.DOUBT:
                yield from self._in_doubt(state, number, writer, name)
            case Stage.SEARCHING:
                yield from self._search(state, number, writer, name)
            case Stage.UNKNOWN | Stage.DEAD if state.reruns:
                again = Writer(Stage.START, writer.attempt, writer.attempt + 1)
                after = put(state._replace(reruns=state.reruns - 1), number, again)
                yield f"{name}'s caller repeats the call with the same commit id", after
        if state.crashes and writer.at not in DECIDED:
            dead = put(state._replace(crashes=state.crashes - 1), number, writer._replace(at=Stage.DEAD, request=None))
            yield f"{name} crashes", dead

    def _read_head(self, state: State, number: int, writer: Writer, name: str) -> tuple[str, State]:
        head = state.head
        if self.bounds.reruns and self.on(Rule.ID_IS_LOOKED_UP) and number in state.ids:
            return f"{name} reads the head and finds its commit id", put(state, number, done(writer, Stage.OK))
        snapshot = (number, writer.attempt + 1)
        rows = tuple(sorted((*head.rows, number)))
        new = Head(snapshot, (*head.history, snapshot), head.aside, rows, self._logged(head))
        request = Request(snapshot, head.location, new)
        prepared = writer._replace(at=Stage.PREPARED, attempt=writer.attempt + 1, request=request, answered=False)
        return f"{name} reads the head and prepares attempt {snapshot[1]}", put(state, number, prepared)

    def _logged(self, head: Head) -> frozenset[Snapshot]:
        return head.log | {head.location} if self.bounds.has_log else head.log

    def _in_doubt(self, state: State, number: int, writer: Writer, name: str) -> Iterator[tuple[str, State]]:
        if not self.on(Rule.UNKNOWN_IS_NOT_LOST):
            yield from self._lost(state, number, writer, f"{name} treats that as a lost race")
        elif not self.on(Rule.RESENT_FIRST):
            searching = writer._replace(at=Stage.SEARCHING, answered=True)
            yield f"{name} reads the head to search it", put(state, number, searching)
        elif writer.sent < self.bounds.sends:
            assert writer.request is not None
            sent = state._replace(flying=with_request(state.flying, writer.request))
            again = writer._replace(at=Stage.WAITING, sent=writer.sent + 1)
            yield f"{name} sends the identical swap again", put(sent, number, again)
        else:
            yield self._unknown(state, number, writer, name)

    def _search(self, state: State, number: int, writer: Writer, name: str) -> Iterator[tuple[str, State]]:
        """Absence is believed only if it proves something (rule P9)."""
        head, request = state.head, writer.request
        assert request is not None
        kept = {*head.history, *(head.aside if self.on(Rule.ANCESTOR_OR_NOT) else ())}
        if self.on(Rule.LOG_IS_SEARCHED):
            kept |= head.log
        if any((number, attempt) in kept for attempt in range(writer.first, writer.attempt + 1)):
            yield f"{name} searches the head and finds its snapshot", put(state, number, done(writer, Stage.OK))
            return
        unchanged = head.location == request.expected and self.on(Rule.HEAD_HAS_MOVED)
        # The history of the new head ends with the attempt's own snapshot; the one before that is its base.
        is_cut = request.new.history[-2] not in head.history and self.on(Rule.HISTORY_IS_WHOLE)
        if unchanged or is_cut:
            yield self._unknown(state, number, writer, name)
        else:
            yield from self._lost(state, number, writer, f"{name} searches the head and does not find its snapshot")

    def _lost(self, state: State, number: int, writer: Writer, words: str) -> Iterator[tuple[str, State]]:
        if writer.attempt - writer.first + 1 < self.bounds.attempts:
            yield f"{words}, and retries", put(state, number, writer._replace(at=Stage.START, request=None))
        yield f"{words}, gives up and deletes its files", self._gives_up(state, number, writer)

    def _gives_up(self, state: State, number: int, writer: Writer) -> State:
        """A repeated call owns its files and never deletes those of the previous call (rule P13)."""
        if self.bounds.reruns and number in state.ids and self.on(Rule.LOOKED_UP_BEFORE_GIVING_UP):
            return put(state, number, done(writer, Stage.OK))
        files = frozenset((number, attempt) for attempt in range(writer.first, writer.attempt + 1))
        return put(state, number, done(writer, Stage.FAILED))._replace(deleted=state.deleted | files)

    def _unknown(self, state: State, number: int, writer: Writer, name: str) -> tuple[str, State]:
        outcome = put(state, number, done(writer, Stage.UNKNOWN))
        if not self.on(Rule.UNKNOWN_KEEPS_FILES):
            outcome = outcome._replace(deleted=state.deleted | {(number, writer.attempt)})
        return f"{name} reports an unknown outcome", outcome

    # The catalog

    def _arrives(self, state: State, request: Request) -> Iterator[tuple[str, State]]:
        number, attempt = request.snapshot
        words = f"the catalog gets the swap of {NAMES[number]}'s attempt {attempt}"
        left = list(state.flying)
        left.remove(request)
        for copies in range(min(state.duplicates, 1) + 1):
            again = ", of which a duplicate is in flight," if copies else ""
            flying = tuple(left) if not copies else state.flying
            before = state._replace(flying=flying, duplicates=state.duplicates - copies)
            lands, after = self._swapped(before, request)
            outcome = "lands it" if lands else "answers stale"
            yield f"{words}{again} and {outcome}; the answer is lost", after
            writer = state.writers[number]
            if writer.at == Stage.WAITING and writer.request == request:
                yield f"{words}{again} and {outcome}", self._answered(after, number, writer, lands)

    def _swapped(self, state: State, request: Request) -> tuple[bool, State]:
        at = state.head.location
        if at == request.snapshot:
            # Names are unique, so this swap has already landed.
            return True, state
        if at != request.expected and self.on(Rule.EXPECTED_IS_COMPARED):
            return False, state
        landed = tuple(sorted((*state.landed, request.snapshot)))
        return True, state._replace(head=request.new, landed=landed, ids=state.ids | {request.snapshot[0]})

    def _answered(self, state: State, number: int, writer: Writer, lands: bool) -> State:
        if lands:
            return put(state, number, done(writer, Stage.OK))
        answered = writer._replace(answered=writer.sent > 1)
        proves_nothing = self.bounds.duplicates or self.bounds.is_vague
        is_certain = writer.sent == 1 and not (proves_nothing and self.on(Rule.STALE_IS_SEARCHED))
        if not is_certain:
            return put(state, number, answered._replace(at=Stage.SEARCHING))
        if writer.attempt - writer.first + 1 < self.bounds.attempts:
            return put(state, number, answered._replace(at=Stage.START, request=None))
        return self._gives_up(state, number, writer)

    # Operators

    def _operator(self, state: State) -> Iterator[tuple[str, State]]:
        head = state.head
        mark: Snapshot = (-1, state.rollbacks * 8 + state.expiries + 1)
        if state.rollbacks and len(head.history) > 1 and head.history[-1][0] >= 0:
            last = head.history[-1]
            rows = list(head.rows)
            if last[0] in rows:
                rows.remove(last[0])
            after = Head(mark, head.history[:-1], head.aside | {last}, tuple(rows), self._logged(head))
            undone = state.undone | {last[0]}
            yield (
                f"an operator rolls {NAMES[last[0]]}'s snapshot back",
                state._replace(head=after, undone=undone, rollbacks=state.rollbacks - 1),
            )
        if state.expiries and (len(head.history) > 1 or head.aside):
            after = Head(mark, head.history[-1:], frozenset(), head.rows, self._logged(head))
            yield (
                "an operator expires all snapshots but the newest",
                state._replace(head=after, expiries=state.expiries - 1),
            )

    # Invariants

    def broken(self, state: State) -> Iterator[str]:
        for number, writer in enumerate(state.writers):
            times = sum(1 for each in state.landed if each[0] == number)
            is_there = number in state.head.rows or number in state.undone
            if times > 1:
                yield "lands_at_most_once"
            if writer.at == Stage.OK and not (times == 1 and is_there):
                yield "acknowledged_is_there_once"
            if writer.at == Stage.FAILED and times:
                yield "failed_is_not_there"
            if any(each in state.deleted for each in state.landed if each[0] == number):
                yield "no_live_file_is_deleted"
            untouched = (state.rollbacks, state.expiries) == (self.bounds.rollbacks, self.bounds.expiries)
            if writer.at == Stage.UNKNOWN and writer.answered and untouched and not self.bounds.is_vague:
                yield "known_when_the_catalog_answers"

    def marks(self, state: State) -> Iterator[str]:
        outcome = [writer.at for writer in state.writers]
        if outcome.count(Stage.OK) == len(outcome) and len(state.landed) == len(outcome):
            yield "all writers commit"
        for number, writer in enumerate(state.writers):
            times = sum(1 for each in state.landed if each[0] == number)
            if writer.at == Stage.DOUBT and times:
                yield "landed without its writer's knowledge"
            if writer.at == Stage.UNKNOWN:
                yield "unknown, landed" if times else "unknown, not landed"
            if writer.at == Stage.FAILED:
                yield "gave up while a request is still in flight" if state.flying else "gave up"
            if writer.at == Stage.OK:
                yield from _marks_of_success(state, number, writer)

    def canonical(self, state: State) -> Hashable:
        """Writers are interchangeable."""
        return renamed(state)


def _marks_of_success(state: State, number: int, writer: Writer) -> Iterator[str]:
    if writer.sent > 1:
        yield "resolved after a lost answer"
    if writer.attempt > 1:
        yield "committed at the second attempt"
    if writer.first > 1:
        yield "a repeated call finds its commit"
    if number in state.undone:
        yield "rolled back and acknowledged"

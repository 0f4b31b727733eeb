"""The swap of several tables: pointers, guards, row locks of the database, lost answers, and calls that are repeated.

    pin all tables ─▶ read the heads, check what was read ─▶ swap ─┬ committed
                                                                   ├ stale ─▶ read the heads again, or give up
                                                                   └ no answer ─▶ the identical swap again ─┬ committed
                                    outcome unknown ◀─ no table has moved, or ─▶ the commit id is recorded ◀┴ stale

The database locks the rows of a swap one by one, compares each, and then sets all pointers. Writers that only write
commute; a version of a table that a writer has read must still be the newest one when it commits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from frazil_verification.model.tables_state import (
    DECIDED,
    NAMES,
    TABLE_NAMES,
    TABLES,
    Bounds,
    History,
    Kind,
    Request,
    Row,
    Rule,
    Stage,
    State,
    Writer,
    put,
    with_request,
    without,
)


@dataclass(frozen=True, slots=True)
class Tables:
    """The model. ``off``: rules that are switched off."""

    bounds: Bounds = field(default_factory=Bounds)
    off: frozenset[Rule] = frozenset()

    def on(self, rule: Rule) -> bool:
        return rule not in self.off

    def initial(self) -> Iterable[State]:
        bounds = self.bounds
        writers = (Writer(Stage.START),) * len(bounds.cast)
        yield State(((), ()), writers, (), frozenset(), bounds.aborts, bounds.crashes, bounds.reruns)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, writer in enumerate(state.writers):
            yield from self._writer(state, number, writer, NAMES[number])
        for request in dict.fromkeys(state.flying):
            yield from self._database(state, request)

    # Writers

    def _writer(self, state: State, number: int, writer: Writer, name: str) -> Iterator[tuple[str, State]]:
        match writer.at:
            case Stage.START:
                yield self._pins(state, number, writer, name)
            case Stage.LOOKING:
                yield self._looks_up(state, number, writer, name)
            case Stage.PINNED:
                yield self._prepares(state, number, writer, name)
            case Stage.PREPARED:
                assert writer.request is not None
                sent = state._replace(flying=with_request(state.flying, writer.request))
                yield f"{name} sends its swap", put(sent, number, writer._replace(at=Stage.WAITING, sent=1))
            case Stage.WAITING:
                yield f"{name} gets no answer", put(state, number, writer._replace(at=Stage.DOUBT))
            case Stage.DOUBT:
                yield self._in_doubt(state, number, writer, name)
            case Stage.SEEN | Stage.SEARCHING:
                yield self._searches(state, number, writer, name)
            case Stage.UNKNOWN | Stage.DEAD if state.reruns and self.bounds.cast[number].writes:
                again = Writer(Stage.LOOKING, writer.attempt)
                after = put(state._replace(reruns=state.reruns - 1), number, again)
                yield f"{name}'s caller repeats the call with the same commit id", after
        if state.crashes and writer.at not in DECIDED:
            dead = put(state._replace(crashes=state.crashes - 1), number, Writer(Stage.DEAD, writer.attempt))
            yield f"{name} crashes", dead

    def _pins(self, state: State, number: int, writer: Writer, name: str) -> tuple[str, State]:
        done = len(writer.pinned)
        is_reader = self.bounds.cast[number] is Kind.READER
        after = Stage.OK if is_reader else Stage.PINNED
        if self.on(Rule.ONE_INSTANT) or not is_reader:
            return f"{name} reads both pointers", put(state, number, writer._replace(at=after, pinned=state.heads))
        pinned = (*writer.pinned, state.heads[done])
        at = after if len(pinned) == len(TABLES) else Stage.START
        words = f"{name} reads the pointer of {TABLE_NAMES[done]}"
        return words, put(state, number, writer._replace(at=at, pinned=pinned))

    def _looks_up(self, state: State, number: int, writer: Writer, name: str) -> tuple[str, State]:
        """A repeated call searches its commit id, table by table; ``pinned`` counts those that it has searched."""
        tables = self.bounds.cast[number].writes
        table = tables[len(writer.pinned)]
        found = number in state.ids
        named = (*writer.named, table) if found else writer.named
        words = f"{name} {'finds' if found else 'does not find'} its commit id in {TABLE_NAMES[table]}"
        searched = writer._replace(pinned=(*writer.pinned, ()), named=named)
        if len(searched.pinned) < len(tables):
            return words, put(state, number, searched)
        if not named:
            return words, put(state, number, Writer(Stage.START, writer.attempt))
        if self.on(Rule.LOOKED_UP_TOGETHER):
            named = tables
        return words, put(state, number, Writer(Stage.OK, writer.attempt, named=named))

    def _prepares(self, state: State, number: int, writer: Writer, name: str) -> tuple[str, State]:
        kind = self.bounds.cast[number]
        if self.bounds.reruns and number in state.ids:
            found = Writer(Stage.OK, writer.attempt, named=kind.writes)
            return f"{name} finds its commit id", put(state, number, found)
        if self.on(Rule.READS_ARE_CHECKED) and any(state.heads[each] != writer.pinned[each] for each in kind.reads):
            return f"{name} finds that what it read has changed, and fails", self._gives_up(state, number, writer)
        rows = [Row(each, state.heads[each], is_guard=False) for each in kind.writes]
        if self.on(Rule.GUARDS_ARE_COMPARED):
            rows += [Row(each, state.heads[each], is_guard=True) for each in kind.reads]
        if self.on(Rule.LOCKED_IN_ORDER) or number % 2 == 0:
            rows.sort()
        else:
            rows.sort(reverse=True)
        request = Request((number, writer.attempt + 1), tuple(rows))
        prepared = writer._replace(at=Stage.PREPARED, attempt=writer.attempt + 1, request=request, sent=0)
        return f"{name} reads the heads and prepares attempt {prepared.attempt}", put(state, number, prepared)

    def _in_doubt(self, state: State, number: int, writer: Writer, name: str) -> tuple[str, State]:
        if writer.sent >= self.bounds.sends:
            unknown = writer._replace(at=Stage.UNKNOWN, request=None)
            return f"{name} reports an unknown outcome", put(state, number, unknown)
        assert writer.request is not None
        sent = state._replace(flying=with_request(state.flying, writer.request))
        again = writer._replace(at=Stage.WAITING, sent=writer.sent + 1)
        return f"{name} sends the identical swap again", put(sent, number, again)

    def _searches(self, state: State, number: int, writer: Writer, name: str) -> tuple[str, State]:
        """After a stale answer that follows a lost one: two looks, of which the order matters."""
        is_second = writer.at == Stage.SEARCHING
        if self.on(Rule.MOVED_FIRST) is is_second:
            words = f"{name} reads the records"
            is_recorded = number in state.ids and self.on(Rule.RECORDS_ARE_SEARCHED)
            looked = writer._replace(is_recorded=is_recorded)
            if is_second or is_recorded:
                return self._concluded(state, number, looked, words)
            return words, put(state, number, looked._replace(at=Stage.SEARCHING))
        assert writer.request is not None
        has_moved = any(state.heads[each.table] != each.expected for each in writer.request.rows)
        if not has_moved and self.on(Rule.STALE_IS_DOUBTED):
            return f"{name} sees that no table has moved", put(state, number, writer._replace(at=Stage.DOUBT))
        words = f"{name} sees that a table has moved" if has_moved else f"{name} believes the stale answer"
        if is_second:
            return self._concluded(state, number, writer, words)
        return words, put(state, number, writer._replace(at=Stage.SEARCHING))

    def _concluded(self, state: State, number: int, writer: Writer, words: str) -> tuple[str, State]:
        if writer.is_recorded:
            named = self.bounds.cast[number].writes
            return f"{words} and finds its commit id", put(state, number, Writer(Stage.OK, writer.attempt, named=named))
        return f"{words}, and has lost", self._lost(state, number, writer)

    def _lost(self, state: State, number: int, writer: Writer) -> State:
        if writer.attempt < self.bounds.attempts:
            return put(state, number, writer._replace(at=Stage.PINNED, request=None, sent=0))
        return self._gives_up(state, number, writer)

    def _gives_up(self, state: State, number: int, writer: Writer) -> State:
        outcome = Stage.FAILED
        if self.bounds.reruns and number in state.ids:
            outcome = Stage.OK
        named = self.bounds.cast[number].writes if outcome == Stage.OK else ()
        return put(state, number, Writer(outcome, writer.attempt, named=named))

    # The database

    def _database(self, state: State, request: Request) -> Iterator[tuple[str, State]]:
        name = NAMES[request.snapshot[0]]
        if state.aborts:
            over = state._replace(flying=without(state.flying, request), aborts=state.aborts - 1)
            yield from self._answers(over, request, f"the database rolls {name}'s swap back", lands=False)
        row = request.rows[request.locked]
        if self._is_locked(state, request, row):
            return
        words = f"the database locks {TABLE_NAMES[row.table]} for {name}"
        left = state._replace(flying=without(state.flying, request))
        if self._was_sent_before(state, request, row):
            yield from self._answers(left, request, f"{words} and finds that its swap has landed", lands=True)
        elif self._is_compared(request) and state.heads[row.table] != row.expected:
            yield from self._answers(left, request, f"{words} and finds that it has moved", lands=False)
        else:
            yield from self._locked(left, request, row, words)

    def _was_sent_before(self, state: State, request: Request, row: Row) -> bool:
        first = next(each for each in request.rows if not each.is_guard)
        return row is first and state.heads[row.table] == (*row.expected, request.snapshot)

    def _is_compared(self, request: Request) -> bool:
        return self.on(Rule.EVERY_POINTER_IS_COMPARED) or request.locked == 0

    def _is_locked(self, state: State, request: Request, row: Row) -> bool:
        """By another swap, if one of the two changes the row."""
        others = list(state.flying)
        others.remove(request)
        return any(
            held.table == row.table and not (held.is_guard and row.is_guard)
            for each in others
            for held in self._held(each)
        )

    def _held(self, request: Request) -> Iterator[Row]:
        for row in request.rows[: request.locked]:
            is_kept = self.on(Rule.GUARDS_ARE_HELD) if row.is_guard else self.on(Rule.ALL_IN_ONE_TRANSACTION)
            if is_kept:
                yield row

    def _locked(self, state: State, request: Request, row: Row, words: str) -> Iterator[tuple[str, State]]:
        """``state``: without the request."""
        number = request.snapshot[0]
        is_last = request.locked + 1 == len(request.rows)
        if self.on(Rule.ALL_IN_ONE_TRANSACTION):
            changed = [each for each in request.rows if not each.is_guard] if is_last else []
        else:
            changed = [] if row.is_guard else [row]
        heads = list(state.heads)
        for each in changed:
            heads[each.table] = (*each.expected, request.snapshot)
        after = state._replace(heads=tuple(heads))
        if is_last:
            recorded = after._replace(ids=after.ids | {number})
            yield from self._answers(recorded, request, f"{words} and commits its swap", lands=True)
        else:
            held = request._replace(locked=request.locked + 1)
            yield words, after._replace(flying=with_request(after.flying, held))

    def _answers(self, state: State, request: Request, words: str, *, lands: bool) -> Iterator[tuple[str, State]]:
        yield f"{words}; the answer is lost", state
        number = request.snapshot[0]
        writer = state.writers[number]
        if writer.at != Stage.WAITING or writer.request != request._replace(locked=0):
            return
        if lands:
            named = self.bounds.cast[number].writes
            yield words, put(state, number, Writer(Stage.OK, writer.attempt, named=named))
        elif writer.sent > 1:
            yield words, put(state, number, writer._replace(at=Stage.SEEN))
        else:
            yield words, self._lost(state, number, writer)

    # Invariants

    def broken(self, state: State) -> Iterator[str]:
        for number, kind in enumerate(self.bounds.cast):
            writer = state.writers[number]
            times = [_times(state.heads[each], number) for each in kind.writes]
            is_landing = any(each.locked and each.snapshot[0] == number for each in state.flying)
            if max(times, default=0) > 1:
                yield "lands_at_most_once"
            if len(set(times)) > 1:
                yield "all_tables_or_none"
            if writer.at == Stage.OK and times and min(times) == 0:
                yield "acknowledged_is_there_once"
            if writer.at == Stage.FAILED and any(times) and not is_landing:
                yield "failed_is_not_there"
            if writer.at == Stage.OK and writer.named not in ((), kind.writes):
                yield "answers_name_every_table"
            if kind is Kind.READER and writer.at == Stage.OK and not self._is_one_instant(writer):
                yield "readers_see_one_instant"
        if self._is_deadlocked(state):
            yield "no_deadlock"
        if self._has_cycle(state):
            yield "serializable"

    def _is_one_instant(self, reader: Writer) -> bool:
        both = [number for number, kind in enumerate(self.bounds.cast) if kind is Kind.BOTH]
        first, second = reader.pinned
        return all(_times(first, number) == _times(second, number) for number in both)

    def _is_deadlocked(self, state: State) -> bool:
        begun = [each for each in state.flying if each.locked]
        return bool(begun) and all(self._is_locked(state, each, each.rows[each.locked]) for each in begun)

    def _has_cycle(self, state: State) -> bool:
        """Whether no order of the writers explains the tables and what each has read."""
        before: set[tuple[int, int]] = set()
        for table in TABLES:
            order = [number for number, _ in state.heads[table]]
            before.update(pairwise(order))
            for number, kind in enumerate(self.bounds.cast):
                if table in kind.reads and kind.writes and _times(state.heads[kind.writes[0]], number):
                    before.update(_around(number, state.writers[number].pinned, table, order))
        return _is_cyclic(before)

    def marks(self, state: State) -> Iterator[str]:
        outcomes = [each.at for each in state.writers]
        if set(outcomes) == {Stage.OK}:
            yield "all transactions commit"
        for number, writer in enumerate(state.writers):
            kind = self.bounds.cast[number]
            if writer.at == Stage.DOUBT and number in state.ids:
                yield "landed without its writer's knowledge"
            if writer.at == Stage.FAILED and kind.reads:
                yield "refused, as what was read has changed"
            if writer.at == Stage.FAILED and not kind.reads:
                yield "lost its races"
            if writer.at == Stage.UNKNOWN:
                yield "unknown, landed" if number in state.ids else "unknown, not landed"
            if writer.at == Stage.OK and kind is Kind.READER and any(writer.pinned):
                yield "a reader sees a commit"
        if any(each.locked for each in state.flying) and len(state.flying) > 1:
            yield "two swaps are in the database"

    def canonical(self, state: State) -> Hashable:
        return state


def _times(history: History, number: int) -> int:
    return sum(1 for each, _ in history if each == number)


def _around(reader: int, pinned: tuple[History, ...], table: int, order: list[int]) -> Iterator[tuple[int, int]]:
    """After the writers whose rows it has read, before the others."""
    if not pinned:
        return
    seen = {number for number, _ in pinned[table]}
    for number in order:
        if number != reader:
            yield (number, reader) if number in seen else (reader, number)


def _is_cyclic(before: set[tuple[int, int]]) -> bool:
    """Remove those with nothing before them until nothing is left, or nothing can be removed."""
    left = {each for pair in before for each in pair}
    while left:
        free = {each for each in left if not any(after == each and first in left for first, after in before)}
        if not free:
            return True
        left -= free
    return False

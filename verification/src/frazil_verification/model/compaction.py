"""Compaction against row-level deletes: plans that were made on an older table land on a newer one.

    read, plan ─▶ other writers commit ─▶ track the plan's rows to their current positions ─▶ refused, or committed

Beside the files, the model keeps a plain set of rows to which every commit is applied. Each state compares the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from frazil_verification.model.compaction_state import (
    CHANGED,
    COMPACT,
    COPY_UPDATE,
    FOREIGN,
    GONE,
    HERE,
    UNTRACKED,
    UPDATE,
    UPSERT,
    Actor,
    Bounds,
    File,
    Plan,
    Position,
    Row,
    Rule,
    State,
    Table,
    applies,
    plans,
    seen,
)

NEW, PLANNED, OK, REFUSED = "new", "planned", "ok", "refused"
_NAMES = "ABCDEFGH"


class _Refused(Exception):
    """The plan conflicts with a concurrent commit."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The model. ``off``: rules that are switched off."""

    bounds: Bounds = field(default_factory=Bounds)
    off: frozenset[Rule] = frozenset()

    def on(self, rule: Rule) -> bool:
        return rule not in self.off

    def initial(self) -> Iterable[State]:
        actors = (Actor(NEW),) * self.bounds.actors
        first = File(1, ((1, 1), (2, 1)), (None, None))
        second = File(2, ((3, 2),), (None,))
        plain = Table(2, (first, second), frozenset({0, 1}), frozenset(), frozenset())
        yield State(plain, frozenset({(1, 1), (2, 1), (3, 2)}), actors)
        # Row 2 was replaced by key.
        replaced = Table(2, (first, File(2, ((2, 2),), (None,))), frozenset({0, 1}), frozenset(), frozenset({(2, 2)}))
        yield State(replaced, frozenset({(1, 1), (2, 2)}), actors)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, actor in enumerate(state.actors):
            name = _NAMES[number]
            if actor.at == NEW:
                for plan in plans(state.table, self.bounds.kinds):
                    yield f"{name} reads the table to {plan.words}", _put(state, number, Actor(PLANNED, plan))
            elif actor.at == PLANNED:
                assert actor.plan is not None
                yield self._commits(state, number, actor.plan, name)

    def _commits(self, state: State, number: int, plan: Plan, name: str) -> tuple[str, State]:
        try:
            table = _Commit(self, state.table, plan).table()
        except _Refused as refused:
            return f"{name} is refused: {refused}", _put(state, number, Actor(REFUSED))
        words = f"{name} commits its {plan.kind}"
        return words, _put(state, number, Actor(OK, plan))._replace(table=table, logical=_logical(state, plan))

    # Invariants

    def broken(self, state: State) -> Iterator[str]:
        found = Counter(state.table.row(position) for position in seen(state.table))
        if any(row not in state.logical for row in found):
            yield "no_row_comes_back"
        if any(row not in found for row in state.logical):
            yield "no_row_is_lost"
        if any(times > 1 for times in found.values()):
            yield "no_row_is_there_twice"

    def marks(self, state: State) -> Iterator[str]:
        table = state.table
        if any(source is not None and source[0] > 1 for file in table.files for source in file.sources):
            yield "rows are copied twice in a row"
        if any(name in table.live and table.files[name].sources[at] is not None for name, at, _ in table.positions):
            yield "a delete by position is on a copy"
        copied = (name for name in table.live if any(table.files[name].sources))
        if any(applies(delete, table.files[name]) for name in copied for delete in table.keys):
            yield "a delete by key reaches a copy"
        if any(each.at == REFUSED for each in state.actors):
            yield "a commit is refused"
        done = [each.plan for each in state.actors if each.at == OK and each.plan is not None]
        if len(done) > 1 and all(each.number == done[0].number for each in done):
            yield f"{len(done)} commits from the same table"

    def canonical(self, state: State) -> Hashable:
        """Rows are identified by commits, not by actors, so the actors are interchangeable."""
        # A plan no longer matters once it is decided.
        actors = [each if each.at == PLANNED else Actor(each.at) for each in state.actors]
        return state.table, state.logical, frozenset(Counter(actors).items())


class _Commit:
    """The commit of one plan on a head."""

    def __init__(self, model: Compaction, head: Table, plan: Plan) -> None:
        self._model = model
        self._head = head
        self._plan = plan
        self._number = head.number + 1
        self._positions: set[Position] = set()
        self._changed: set[Position] = set()

    def table(self) -> Table:
        """The table after the commit. Raises _Refused."""
        head, plan, on = self._head, self._plan, self._model.on
        if plan.kind == FOREIGN:
            self._check_foreign()
        if plan.kind == COMPACT and plan.removed & head.rewritten and not self._model.bounds.rewrites_meet:
            raise _Refused("another compaction has replaced one of its files")
        self._check_moved()
        self._delete_rows()
        whole, stale = self._replaced()
        files = list(head.files)
        added = set()
        copies = self._copies(stale)
        if copies is not None:
            added.add(len(files))
            self._positions |= {(len(files), at) for at in stale}
            files.append(copies)
        if plan.kind in (UPDATE, COPY_UPDATE, UPSERT):
            added.add(len(files))
            files.append(File(self._number, ((plan.key, self._number),), (None,)))
        live = (head.live - whole) | added
        keys = head.keys | ({(plan.key, self._number)} if plan.kind == UPSERT else set())
        newcomers = [files[name] for name in live if plan.known <= name < len(head.files)]
        needed = {each for each in plan.unneeded if any(applies(each, file) for file in newcomers)}
        dropped = plan.unneeded - (needed if on(Rule.NEEDED_DELETES_STAY) else set())
        positions = head.positions | {(*position, self._number) for position in self._positions}
        return Table(
            self._number,
            tuple(files),
            frozenset(live),
            frozenset(each for each in positions if each[0] in live),
            keys - dropped,
            head.changed | self._changed,
            head.untracked | (whole if plan.kind == FOREIGN else frozenset()),
            head.rewritten | (whole if plan.kind in (COMPACT, FOREIGN) else frozenset()),
        )

    def _check_foreign(self) -> None:
        """Other engines refuse if one of their files was removed or has new position deletes."""
        for name in self._plan.removed:
            new = any(file == name and number > self._plan.number for file, _, number in self._head.positions)
            if name not in self._head.live or new:
                raise _Refused(f"file {name} was changed")

    def _check_moved(self) -> None:
        position = self._plan.moved
        if position is None:
            return
        status, now = self._head.follow(position)
        if status == UNTRACKED:
            self._require_lineage(position)
        elif status in (GONE, CHANGED):
            if self._model.on(Rule.LEFT_OUT_IS_A_CONFLICT):
                raise _Refused(f"row {self._plan.key} is {status}")
        elif self._is_hit_since(position) and self._model.on(Rule.HIT_BY_KEY_IS_A_CONFLICT):
            raise _Refused(f"row {self._plan.key} was replaced by key")
        elif status == HERE:
            self._changed.add(now)

    def _is_hit_since(self, position: Position) -> bool:
        key = self._head.row(position)[0]
        return any(each == key and number > self._plan.number for each, number in self._head.keys)

    def _require_lineage(self, position: Position) -> None:
        if self._model.on(Rule.NO_LINEAGE_IS_A_CONFLICT):
            raise _Refused(f"file {position[0]} was replaced without lineage")

    def _delete_rows(self) -> None:
        """Rows that are deleted by position: the deleted row, or the updated one."""
        for position in (self._plan.deleted, self._plan.moved):
            if position is None:
                continue
            status, now = self._head.follow(position)
            if status == CHANGED and position == self._plan.deleted:
                raise _Refused(f"row {self._plan.key} is {status}")
            if status == UNTRACKED:
                self._require_lineage(position)
            if not self._model.on(Rule.DELETES_ARE_REBASED):
                now = position
            if status == HERE:
                self._positions.add(now)

    def _replaced(self) -> tuple[frozenset[int], set[int]]:
        """Files that are removed whole, and the copies whose rows are in a remaining file or were deleted."""
        stale: set[int] = set()
        at_head: dict[int, set[int]] = {}
        for name in self._plan.removed:
            for at in range(len(self._head.files[name].rows)):
                status, now = self._head.follow((name, at))
                if status == UNTRACKED:
                    self._require_lineage((name, at))
                elif now[0] in self._head.live:
                    at_head.setdefault(now[0], set()).add(now[1])
        whole = {name for name, rows in at_head.items() if len(rows) == len(self._head.files[name].rows)}
        for at, position in enumerate(self._plan.copies):
            status, now = self._head.follow(position)
            is_out = status != HERE and self._model.on(Rule.COPIES_FOLLOW_DELETES)
            if is_out or (status == HERE and now[0] not in whole):
                stale.add(at)
        self._positions = {position for position in self._positions if position[0] not in whole}
        return frozenset(whole), stale

    def _copies(self, stale: set[int]) -> File | None:
        plan, head = self._plan, self._head
        if len(stale) == len(plan.copies):
            return None
        number = plan.number
        if not self._model.on(Rule.COPIES_ARE_NOT_YOUNGER):
            number = self._number
        if not self._model.on(Rule.COPIES_ARE_NOT_OLDER):
            number = min(head.files[name].number for name, _ in plan.copies)
        is_rebased = self._model.on(Rule.LINEAGE_IS_REBASED)
        sources = tuple(head.follow(position)[1] if is_rebased else position for position in plan.copies)
        # Rows that this commit does not copy in the end are not in its lineage.
        kept = tuple(None if at in stale else source for at, source in enumerate(sources))
        return File(number, tuple(head.row(position) for position in plan.copies), kept)


def _logical(state: State, plan: Plan) -> frozenset[Row]:
    """The plan applied to a plain set of rows."""
    rows, number = state.logical, state.table.number + 1
    new = frozenset({(plan.key, number)})
    if plan.kind == UPSERT:
        return frozenset(row for row in rows if row[0] != plan.key) | new
    if plan.kind in (COMPACT, FOREIGN):
        return rows
    position = plan.deleted or plan.moved
    assert position is not None
    row = state.table.row(position)
    if plan.deleted is not None:
        return rows - {row}
    # Updating a deleted row changes nothing.
    return (rows - {row}) | new if row in rows else rows


def _put(state: State, number: int, actor: Actor) -> State:
    return state._replace(actors=(*state.actors[:number], actor, *state.actors[number + 1 :]))

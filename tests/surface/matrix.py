"""Every pair of operations, what must come of it, and two ways to make it happen without waiting for anything.

A model says what must come of it: a table is a set of row versions, an operation decides on the table it saw
(``decide``) and that decision lands on a later head (``land``). ``BY_HAND`` says the same once more, written
down by a person; the two must agree. Then each pair is run on a real lake and compared with the model.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import frazil
from frazil.commit.context import Phase
from frazil.format.manifests import read_manifest, read_manifest_list
from frazil.format.storage import Storage
from frazil.model import Ident, Manifest

# The model


class Row(NamedTuple):
    id: int
    part: str
    v: int


class Version(NamedTuple):
    """A row as one writer made it: two writers may make equal rows, and both are there."""

    row: Row
    born: str


Where = Callable[[Row], bool]
Isolation = Literal["serializable", "snapshot"]
Verdict = Literal["both", "mine fails", "redone"]
"""Of two commits: both land as they were decided; mine is refused; mine is evaluated again, and lands after theirs."""

BRANCH = "audit"
ISOLATIONS: tuple[Isolation, ...] = ("serializable", "snapshot")


@dataclass(frozen=True)
class State:
    """All that a table shows."""

    main: frozenset[Version]
    branch: frozenset[Version]
    columns: Mapping[str, str] = field(default_factory=dict)
    """Columns beyond id, part and v, with their types."""
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Effect:
    """What an operation decided, looking at one state of the table."""

    removed: frozenset[Version] = frozenset()
    """Rows that go."""
    moved: frozenset[Version] = frozenset()
    """Rows that live on with other values, which are in ``added``."""
    keys: frozenset[int] = frozenset()
    """Every row with one of these keys when the decision lands is also deleted (equality deletes)."""
    added: tuple[Row, ...] = ()
    asked: Where | None = None
    """The condition of its deletes."""
    is_append: bool = False
    is_rewrite: bool = False
    puts_in_place: bool = False
    """The added rows take the place of the removed ones (overwrite, replace_partitions)."""
    needs_rows: bool = True
    """False: the new values do not depend on the old row, nor on there being one (upsert)."""
    on_branch: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)


def land(state: State, effect: Effect, who: str) -> State:
    before = state.branch if effect.on_branch else state.main
    gone = effect.removed | effect.moved | {each for each in before if each.row.id in effect.keys}
    after = (before - gone) | {Version(row, f"{who} {number}") for number, row in enumerate(effect.added)}
    return State(
        main=state.main if effect.on_branch else after,
        branch=after if effect.on_branch else state.branch,
        columns={**state.columns, **effect.columns},
        properties={**state.properties, **effect.properties},
    )


def visible(state: State) -> tuple[list[Row], list[Row]]:
    return sorted(each.row for each in state.main), sorted(each.row for each in state.branch)


@dataclass(frozen=True)
class Outcome:
    verdict: Verdict
    state: State
    """The table afterwards."""
    may_be_idle: bool = False
    """Mine had nothing left to do, so a snapshot of it is optional."""
    excused: bool = False
    """Landing would be correct, but one of several winners alone is a conflict: a refusal is not a mistake."""


def judge(mine: Op, theirs: Sequence[Op], isolation: Isolation) -> Outcome:
    """Theirs land first, one after the other; mine was decided before that. All conflict rules, on the model."""
    decision = mine.decide(SEEDED)
    head, against = SEEDED, []
    for number, each in enumerate(theirs):
        effect = each.decide(head)
        against.append((effect, head))
        head = land(head, effect, f"theirs {number}")
    rebased = land(head, decision, "mine")
    if any(_written_by_both(decision, effect, before) for effect, before in against) or (
        isolation == "serializable"
        and (_differs(mine, decision, head) or any(_in_the_path(decision, effect) for effect, _ in against))
    ):
        return Outcome("mine fails", head)
    alone = [land(SEEDED, effect, "theirs") for effect, _ in against] if isolation == "serializable" else []
    return Outcome(
        "both",
        rebased,
        may_be_idle=_is_idle(decision, head),
        excused=len(theirs) > 1
        and (
            any(_differs(mine, decision, each) for each in alone)
            # Whether the two rewrote one file depends on how rows lie in files, which the model does not know.
            or (decision.is_rewrite and any(effect.is_rewrite for effect, _ in against))
        ),
    )


def redone(mine: Op, outcome: Outcome) -> Outcome:
    """What comes of it where a statement that would be refused is evaluated again instead."""
    if outcome.verdict != "mine fails" or not mine.is_whole:
        return outcome
    decision = mine.decide(outcome.state)
    idle = _is_idle(decision, outcome.state) or decision.is_rewrite
    return Outcome("redone", land(outcome.state, decision, "mine"), may_be_idle=idle)


def _differs(mine: Op, decision: Effect, head: State) -> bool:
    """Mine, had it been decided at this head, would have made another table of it."""
    return visible(land(head, decision, "mine")) != visible(land(head, mine.decide(head), "mine"))


def _written_by_both(mine: Effect, theirs: Effect, before: State) -> bool:
    """One row, changed by both: no order of the two gives what both meant. So it is at every level."""
    if mine.on_branch or theirs.on_branch:
        return False
    replaced = theirs.moved | {each for each in before.main if each.row.id in theirs.keys}
    gone = theirs.removed | replaced
    return (
        bool((mine.removed | mine.moved) & theirs.moved)
        or bool(mine.moved & (gone if mine.needs_rows else replaced))
        # What theirs put in place of one row is what mine was told to take out.
        or (
            mine.puts_in_place
            and theirs.puts_in_place
            and bool(mine.removed & theirs.removed)
            and mine.asked is not None
            and any(mine.asked(row) for row in theirs.added)
        )
        or (mine.is_rewrite and theirs.is_rewrite and _has_rows_to_rewrite(before))
        or any(theirs.columns.get(name, kind) != kind for name, kind in mine.columns.items())
    )


def _in_the_path(mine: Effect, theirs: Effect) -> bool:
    """Rule P23: rows are appended that a delete, landed meanwhile, was told to take out. A policy, not an anomaly."""
    if not mine.is_append or mine.on_branch or theirs.asked is None:
        return False
    return any(theirs.asked(row) for row in mine.added)


def _has_rows_to_rewrite(head: State) -> bool:
    """Rows are there yet of the files that a rewrite, decided at the beginning, puts together."""
    return any(each.born == "seed" and each.row.part == "A" for each in head.main)


def _is_idle(mine: Effect, head: State) -> bool:
    if mine.is_rewrite:
        return not _has_rows_to_rewrite(head)
    nothing_new = not (mine.added or mine.keys or mine.properties)
    return nothing_new and not (mine.removed & head.main) and all(head.columns.get(name) for name in mine.columns)


# The operations


Call = Callable[[Any, "Mode", Mapping[str, Any]], Any]
"""On a table, or on a transaction's; the mode is the table's own; further options."""


@dataclass(frozen=True)
class Op:
    """One operation: on a real table, and on the model."""

    name: str
    call: Call
    decide: Callable[[State], Effect]
    makes_snapshot: bool = True
    """False: it changes metadata only, and has no isolation level."""
    needs_partitions: bool = False

    @property
    def is_whole(self) -> bool:
        """The rows of the table decide what it does, so that it can be evaluated again."""
        return self.makes_snapshot and not self.name.startswith(("append", "upsert", "branch"))


def as_dict(row: Row) -> dict[str, Any]:
    return row._asdict()


def _matching(state: State, where: Where) -> frozenset[Version]:
    return frozenset(each for each in state.main if where(each.row))


def _append(name: str, row: Row, *, branch: bool = False) -> Op:
    target = {"branch": BRANCH} if branch else {}
    return Op(
        name,
        lambda table, _mode, how: table.append([as_dict(row)], **target, **how),
        lambda _state: Effect(added=(row,), is_append=True, on_branch=branch),
    )


def _overwrite(name: str, text: str, where: Where, row: Row) -> Op:
    return Op(
        name,
        lambda table, _mode, how: table.overwrite([as_dict(row)], where=text, **how),
        lambda state: Effect(removed=_matching(state, where), added=(row,), asked=where, puts_in_place=True),
    )


def _replace(name: str, row: Row) -> Op:
    same: Where = lambda each: each.part == row.part  # noqa: E731
    return Op(
        name,
        lambda table, _mode, how: table.replace_partitions([as_dict(row)], **how),
        lambda state: Effect(removed=_matching(state, same), added=(row,), asked=same, puts_in_place=True),
        needs_partitions=True,
    )


def _delete(name: str, text: str, where: Where) -> Op:
    return Op(
        name,
        lambda table, _mode, how: table.delete(text, **how),
        lambda state: Effect(removed=_matching(state, where), asked=where),
    )


def _update(name: str, text: str, where: Where, values: Mapping[str, str], new: Callable[[Row], Row]) -> Op:
    def decide(state: State) -> Effect:
        found = _matching(state, where)
        return Effect(moved=found, added=tuple(new(each.row) for each in sorted(found)))

    return Op(name, lambda table, _mode, how: table.update(set=dict(values), where=text, **how), decide)


def _upsert(name: str, row: Row) -> Op:
    return Op(
        name,
        lambda table, _mode, how: table.upsert([as_dict(row)], mode="equality", **how),
        lambda _state: Effect(keys=frozenset({row.id}), added=(row,)),
    )


def _upsert_by_looking(name: str, row: Row) -> Op:
    def call(table: Any, mode: Mode, how: Mapping[str, Any]) -> Any:
        return table.upsert([as_dict(row)], mode="copy-on-write" if mode is Mode.COPY_ON_WRITE else "position", **how)

    def decide(state: State) -> Effect:
        return Effect(moved=_matching(state, lambda each: each.id == row.id), added=(row,), needs_rows=False)

    return Op(name, call, decide)


def _add_column(name: str, kind: str) -> Op:
    return Op(
        name,
        lambda table, _mode, how: table.add_column("extra", kind, **how),
        lambda _state: Effect(columns={"extra": kind}),
        makes_snapshot=False,
    )


def _operations() -> Iterator[Op]:
    in_a: Where = lambda row: row.part == "A"  # noqa: E731
    in_b: Where = lambda row: row.part == "B"  # noqa: E731
    one: Where = lambda row: row.id == 1  # noqa: E731
    two: Where = lambda row: row.id == 2  # noqa: E731
    raised: Callable[[Row], Row] = lambda row: row._replace(v=row.v + 1000)  # noqa: E731
    yield _append("append_A", Row(6, "A", 60))
    yield _append("append_B", Row(16, "B", 160))
    yield _overwrite("overwrite_A", "part = 'A'", in_a, Row(21, "A", 210))
    yield _overwrite("overwrite_B", "part = 'B'", in_b, Row(31, "B", 310))
    yield _overwrite("overwrite_2", "id = 2", two, Row(2, "A", -2))
    yield _replace("replace_A", Row(41, "A", 410))
    yield _replace("replace_B", Row(51, "B", 510))
    yield _delete("delete_A", "part = 'A'", in_a)
    yield _delete("delete_B", "part = 'B'", in_b)
    yield _delete("delete_1", "id = 1", one)
    yield _delete("delete_2", "id = 2", two)
    yield _delete("delete_high", "v > 45", lambda row: row.v > 45)
    yield _update("update_1", "id = 1", one, {"v": "v + 1000"}, raised)
    yield _update("update_2", "id = 2", two, {"v": "v + 1000"}, raised)
    yield _update("update_A", "part = 'A'", in_a, {"v": "v + 1000"}, raised)
    yield _update("move_1_to_B", "id = 1", one, {"part": "'B'"}, lambda row: row._replace(part="B"))
    yield _upsert("upsert_1", Row(1, "A", -1))
    yield _upsert("upsert_7", Row(7, "A", 70))
    yield _upsert_by_looking("look_upsert_1", Row(1, "A", -11))
    yield _upsert_by_looking("look_upsert_7", Row(7, "A", -70))
    yield Op(
        "compact",
        lambda table, _mode, how: table.compact(**how),
        lambda _state: Effect(is_rewrite=True),
    )
    yield _add_column("add_int", "int")
    yield _add_column("add_text", "string")
    yield Op(
        "set_property",
        lambda table, _mode, how: table.set_properties({"note": "set"}, **how),
        lambda _state: Effect(properties={"note": "set"}),
        makes_snapshot=False,
    )
    yield _append("branch_append", Row(6, "A", 60), branch=True)


OPERATIONS: dict[str, Op] = {op.name: op for op in _operations()}

SEED_FILES: tuple[tuple[Row, ...], ...] = (
    # Row 8 is deleted and row 3 upserted right after: real tables have files with deletes on them.
    (Row(1, "A", 10), Row(2, "A", 20), Row(3, "A", -3), Row(8, "A", 80)),
    (Row(4, "A", 40), Row(5, "A", 50)),
    (Row(11, "B", 110), Row(12, "B", 120)),
)
SEED_UPSERT = Row(3, "A", 30)
_LIVE = [row for file in SEED_FILES for row in file if row.id not in (3, 8)]
SEEDED = State(
    main=frozenset(Version(row, "seed") for row in (*_LIVE, SEED_UPSERT)),
    branch=frozenset(Version(row, "seed") for row in (*_LIVE, SEED_UPSERT)),
)

# Written by hand from the rules. One line for each of mine, one column for each of theirs.
#   .  both land      s  mine fails at serializable, lands at snapshot      x  mine fails at both levels
BY_HAND = """
                append_A
                | append_B
                | | overwrite_A
                | | | overwrite_B
                | | | | overwrite_2
                | | | | | replace_A
                | | | | | | replace_B
                | | | | | | | delete_A
                | | | | | | | | delete_B
                | | | | | | | | | delete_1
                | | | | | | | | | | delete_2
                | | | | | | | | | | | delete_high
                | | | | | | | | | | | | update_1
                | | | | | | | | | | | | | update_2
                | | | | | | | | | | | | | | update_A
                | | | | | | | | | | | | | | | move_1_to_B
                | | | | | | | | | | | | | | | | upsert_1
                | | | | | | | | | | | | | | | | | upsert_7
                | | | | | | | | | | | | | | | | | | look_upsert_1
                | | | | | | | | | | | | | | | | | | | look_upsert_7
                | | | | | | | | | | | | | | | | | | | | compact
                | | | | | | | | | | | | | | | | | | | | | add_int
                | | | | | | | | | | | | | | | | | | | | | | add_text
                | | | | | | | | | | | | | | | | | | | | | | | set_property
                | | | | | | | | | | | | | | | | | | | | | | | | branch_append
append_A        . . s . . s . s . . . s . . . . . . . . . . . . .
append_B        . . . s . . s . s . . s . . . . . . . . . . . . .
overwrite_A     s . x . x x . . . . . . x x x x s s x s . . . . .
overwrite_B     . s . x . . x . . . . . . . . s . . . . . . . . .
overwrite_2     . . . . x . . . . . . . . x x . . . . . . . . . .
replace_A       s . x . x x . . . . . . x x x x s s x s . . . . .
replace_B       . s . x . . x . . . . . . . . s . . . . . . . . .
delete_A        s . s . s s . . . . . . x x x x s s x s . . . . .
delete_B        . s . s . . s . . . . . . . . s . . . . . . . . .
delete_1        . . . . . . . . . . . . x . x x s . x . . . . . .
delete_2        . . . . s . . . . . . . . x x . . . . . . . . . .
delete_high     s s s s . s s . . . . . s s x . . s . . . . . . .
update_1        . . x . . x . x . x . . x . x x x . x . . . . . .
update_2        . . x . x x . x . . x . . x x . . . . . . . . . .
update_A        s . x . x x . x . x x x x x x x x s x s . . . . .
move_1_to_B     . . x . . x . x . x . . x . x x x . x . . . . . .
upsert_1        . . . . . . . . . . . . . . . . . . . . . . . . .
upsert_7        . . . . . . . . . . . . . . . . . . . . . . . . .
look_upsert_1   . . . . . . . . . . . . x . x x x . x . . . . . .
look_upsert_7   . . . . . . . . . . . . . . . . . s . s . . . . .
compact         . . . . . . . . . . . . . . . . . . . . x . . . .
add_int         . . . . . . . . . . . . . . . . . . . . . . x . .
add_text        . . . . . . . . . . . . . . . . . . . . . x . . .
set_property    . . . . . . . . . . . . . . . . . . . . . . . . .
branch_append   . . . . . . . . . . . . . . . . . . . . . . . . .
"""


def by_hand() -> dict[tuple[str, str, Isolation], Verdict]:
    """The table above, as a mapping from (mine, theirs, isolation)."""
    fails: dict[str, tuple[Isolation, ...]] = {".": (), "s": ("serializable",), "x": ISOLATIONS}
    lines = [line.split() for line in BY_HAND.strip("\n").splitlines()]
    columns = [words[-1] for words in lines if set(words[:-1]) <= {"|"}]
    found: dict[tuple[str, str, Isolation], Verdict] = {}
    for mine, *cells in lines[len(columns) :]:
        for theirs, cell in zip(columns, cells, strict=True):
            for isolation in ISOLATIONS:
                found[mine, theirs, isolation] = "mine fails" if isolation in fails[cell] else "both"
    return found


# The cases


class Mode(enum.StrEnum):
    MERGE_ON_READ = "merge-on-read"
    COPY_ON_WRITE = "copy-on-write"


class Driver(enum.StrEnum):
    """How mine is decided before theirs lands, and committed after it."""

    TRANSACTION = "transaction"
    """A transaction is pinned first; then theirs commits; then mine is written and committed in the transaction."""
    LOST_RACE = "lost race"
    """Mine has staged its files and read the head when theirs commits, so the first swap loses and is rebased."""
    REDO = "redo"
    """The same, and instead of being refused mine is evaluated again (``on_conflict="redo"``, the default)."""


@dataclass(frozen=True)
class Setting:
    partitioned: bool
    mode: Mode
    driver: Driver

    def __str__(self) -> str:
        return f"{'partitioned' if self.partitioned else 'flat'}, {self.mode}, {self.driver}"

    def suits(self, op: Op) -> bool:
        return self.partitioned or not op.needs_partitions


SETTINGS = tuple(itertools.starmap(Setting, itertools.product((True, False), Mode, Driver)))


@dataclass(frozen=True)
class Case:
    mine: str
    theirs: str
    """One operation, or several with a "+" between them, one commit after the other."""
    isolation: Isolation
    verdict: Verdict
    rows: tuple[Row, ...]
    """Of main, afterwards."""

    def __str__(self) -> str:
        return f"{self.mine}-{self.theirs}-{self.isolation}"


def winners(theirs: str) -> list[Op]:
    return [OPERATIONS[name] for name in theirs.split("+")]


def outcome_of(mine: str, theirs: str, isolation: Isolation, driver: Driver) -> Outcome:
    outcome = judge(OPERATIONS[mine], winners(theirs), isolation)
    return redone(OPERATIONS[mine], outcome) if driver is Driver.REDO else outcome


def case(mine: str, theirs: str, isolation: Isolation, driver: Driver = Driver.TRANSACTION) -> Case:
    outcome = outcome_of(mine, theirs, isolation, driver)
    return Case(mine, theirs, isolation, outcome.verdict, tuple(visible(outcome.state)[0]))


def cases(setting: Setting) -> list[Case]:
    names = [name for name, op in OPERATIONS.items() if setting.suits(op)]
    return [case(*each, setting.driver) for each in itertools.product(names, names, ISOLATIONS)]


# Real tables

DDL = "id bigint not null, part string, v bigint"
QUICK = frazil.Retry(tries=4, base_ms=0)
NAME = "ns.seed"


def seeded(partitioned: bool, mode: Mode) -> frazil.Lake:
    """A lake in memory with the table ``ns.seed``, which has several files, deletes and a branch."""
    lake = frazil.connect("memory://")
    lake.create_namespace("ns")
    properties = {f"write.{verb}.mode": str(mode) for verb in ("delete", "update", "merge")}
    table = lake.create_table(
        NAME, DDL, partition_by=["part"] if partitioned else [], keys=["id"], properties=properties
    )
    for rows in SEED_FILES:
        table.append([as_dict(row) for row in rows])
    table.delete("id = 8")
    table.upsert([as_dict(SEED_UPSERT)], mode="equality")
    table.create_branch(BRANCH)
    return lake


@lru_cache(maxsize=8)
def _shared_lake(partitioned: bool, mode: Mode, mine: str) -> frazil.Lake:
    # One for each of mine, so that listing files stays cheap.
    return seeded(partitioned, mode)


_numbers = itertools.count()


def copy_of_seed(lake: frazil.Lake) -> frazil.Table:
    """A table of its own that starts with the seed's files. Files never change, so the copies cannot meet."""
    return lake.register_table(f"ns.copy{next(_numbers)}", lake.table(NAME).metadata_location)


def files_of(table: frazil.Table) -> set[str]:
    """Every file under the table's location, live or not."""
    return {_plain(info.path) for info in table._lake.storage.list(table.location)}


def _plain(path: str) -> str:
    """Local paths have a scheme or not."""
    return path.removeprefix("file://")


def named_files(table: frazil.Table) -> set[str]:
    """Every file that the table's metadata leads to."""
    storage = table._lake.storage
    head = table._lake.catalog.load(Ident.parse(table.name))
    found = {head.location, *(entry["metadata-file"] for entry in head.metadata.raw.get("metadata-log") or ())}
    for snapshot in head.metadata.snapshots():
        assert snapshot.manifest_list is not None
        found |= {snapshot.manifest_list, *filter(None, [snapshot.summary.get("frazil.lineage")])}
        found |= _named_by_list(storage, snapshot.manifest_list)
    return {_plain(path) for path in found}


@lru_cache(maxsize=1000)
def _named_by_list(storage: Storage, path: str) -> frozenset[str]:
    # Files never change, and neither does what they name.
    return frozenset().union(*(_named_by_manifest(storage, each) for each in read_manifest_list(storage, path)))


@lru_cache(maxsize=1000)
def _named_by_manifest(storage: Storage, manifest: Manifest) -> frozenset[str]:
    entries = read_manifest(storage, manifest, live_only=False, stats=frozenset())
    return frozenset({manifest.manifest_path, *(entry.file.file_path for entry in entries)})


@dataclass(frozen=True)
class Race:
    """What came of one pair on a real table."""

    table: frazil.Table
    theirs: list[frazil.Commit]
    error: frazil.ConflictError | None
    leftovers: set[str]
    """Files that came during the race and that nothing names."""
    snapshots: int
    """How many of mine there are."""
    mine: frazil.Commit | None
    """What mine returned, outside of a transaction."""


def race(setting: Setting, mine: str, theirs: str, isolation: Isolation) -> Race:
    table = copy_of_seed(_shared_lake(setting.partitioned, setting.mode, mine))
    files = files_of(table)
    drive = DRIVERS[setting.driver]
    done: list[frazil.Commit] = []
    before: list[int] = []
    error: frazil.ConflictError | None = None
    own: frazil.Commit | None = None

    def land_theirs() -> None:
        done.extend(each.call(table, setting.mode, {}) for each in winners(theirs))
        before.append(len(table.history()))

    try:
        own = drive(table, setting.mode, OPERATIONS[mine], isolation, land_theirs)
    except frazil.ConflictError as caught:
        error = caught
    assert len(before) == 1, "theirs must have landed, once"
    return Race(
        table=table,
        theirs=done,
        error=error,
        leftovers=files_of(table) - files - named_files(table),
        snapshots=len(table.history()) - before[0],
        mine=own,
    )


Act = Callable[[], object]


def _in_transaction(table: frazil.Table, mode: Mode, mine: Op, isolation: Isolation, theirs: Act) -> None:
    with table._lake.transaction(isolation=isolation) as tx:
        pinned = tx.table(table.name)
        theirs()
        mine.call(pinned, mode, {})


def _after_lost_race(
    on_conflict: str, table: frazil.Table, mode: Mode, mine: Op, isolation: Isolation, theirs: Act
) -> frazil.Commit:
    how: dict[str, Any] = {"retry": QUICK}
    done: frazil.Commit
    if mine.makes_snapshot:
        how |= {"on_phase": once(Phase.HEAD_READ, theirs), "isolation": isolation, "on_conflict": on_conflict}
        done = mine.call(table, mode, how)
        return done
    with losing_a_race(table._lake, theirs):
        done = mine.call(table, mode, how)
        return done


DRIVERS: Mapping[Driver, Callable[[frazil.Table, Mode, Op, Isolation, Act], frazil.Commit | None]] = {
    Driver.TRANSACTION: _in_transaction,
    Driver.LOST_RACE: partial(_after_lost_race, "abort"),
    Driver.REDO: partial(_after_lost_race, "redo"),
}


@contextmanager
def losing_a_race(lake: frazil.Lake, theirs: Act) -> Iterator[None]:
    """Just before the next swap of this lake is sent, theirs commits. For changes that have no ``on_phase``."""
    catalog: Any = lake.catalog
    swap = catalog.swap

    def late(prepared: Any) -> Any:
        catalog.swap = swap
        theirs()
        return swap(prepared)

    catalog.swap = late
    try:
        yield
    finally:
        catalog.swap = swap


def once(phase: Phase, act: Act) -> Callable[[Phase, int], None]:
    """Do something when a commit first comes to this moment, and never again."""
    left = [act]

    def on_phase(now: Phase, _attempt: int) -> None:
        if now is phase and left:
            left.pop()()

    return on_phase


def rows_of(table: Any, **scan: Any) -> list[dict[str, Any]]:
    """The rows a scan shows, in an order that does not depend on files."""
    found: list[dict[str, Any]] = table.scan(**scan).to_arrow().to_pylist()
    return sorted(found, key=lambda row: tuple((value is None, value) for value in row.values()))


def expected_rows(state: State, *, branch: bool = False) -> list[dict[str, Any]]:
    main, other = visible(state)
    return [{**as_dict(row), **dict.fromkeys(state.columns)} for row in (other if branch else main)]


def check(setting: Setting, given: Case) -> None:
    """Run one case and compare everything that can be seen with the model."""
    theirs = winners(given.theirs)
    outcome = outcome_of(given.mine, given.theirs, given.isolation, setting.driver)
    found = race(setting, given.mine, given.theirs, given.isolation)
    if found.error is not None:
        made = {commit.snapshot_id for op, commit in zip(theirs, found.theirs, strict=True) if op.makes_snapshot}
        # A change of columns is refused for another one, which has no snapshot.
        check_evidence(found.error, *(made if OPERATIONS[given.mine].makes_snapshot else ()))
        if outcome.excused:
            return
    assert _verdict(found) in ({given.verdict, "both", "redone"} if outcome.excused else {given.verdict}), found.error
    rows = rows_of(found.table)
    assert rows == expected_rows(outcome.state)
    assert [Row(row["id"], row["part"], row["v"]) for row in rows] == list(given.rows)
    _check_branch_and_metadata(found.table, given, outcome.state)
    mine = OPERATIONS[given.mine].makes_snapshot and outcome.verdict != "mine fails"
    assert found.snapshots in ((0, 1) if mine and outcome.may_be_idle else (mine,))
    assert found.leftovers == set()


def _verdict(found: Race) -> Verdict:
    if found.error is not None:
        return "mine fails"
    return "redone" if found.mine is not None and found.mine.redone else "both"


def check_evidence(error: frazil.ConflictError, *snapshots: int | None) -> None:
    """A conflict says which check found what, in whose snapshot (if they made any), and what to do."""
    assert error.conflicts
    for each in error.conflicts:
        assert each.check
        assert each.detail
        assert each.advice
        assert each.detail in str(error)
        if snapshots:
            assert each.snapshot_id in snapshots
            assert each.operation


def _check_branch_and_metadata(table: frazil.Table, given: Case, state: State) -> None:
    if "branch_append" in (given.mine, *given.theirs.split("+")):
        assert rows_of(table, ref=BRANCH) == expected_rows(state, branch=True)
    kinds = {"int": "int", "string": "string"}
    for name, kind in state.columns.items():
        assert str(table.schema.find_field(name).field_type) == kinds[kind]
    assert state.properties.items() <= table.properties.items()

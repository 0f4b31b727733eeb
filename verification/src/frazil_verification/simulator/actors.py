"""The actors. An actor is a function that does one thing with its session; the registry has its weight.

To add one: write a function, decorate it, and add its verbs to ``steps.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from frazil.commit.retention import expires_with_commits
from frazil.errors import FrazilError
from frazil.format.metadata import MAIN, TableMetadata
from frazil.model import Ident
from frazil.table.destination import CommitNow
from frazil.table.table import Table
from frazil_verification.simulator.lake import TABLE
from frazil_verification.simulator.records import CallOutcome
from frazil_verification.simulator.session import KEYS, PARTITIONS, Session
from frazil_verification.simulator.steps import OLD_MS, Condition, Row, State, Step

Act = Callable[[Session], None]
_MODES = (None, "merge-on-read", "copy-on-write")
_ON_CONFLICT = (None, None, None, "abort")
_UPSERTS = (*(None,) * 6, "position", "copy-on-write")
_PARTITIONINGS = ((), ("p",), ("truncate(4, id)",), ("bucket(3, id)",))


@dataclass(frozen=True, slots=True)
class Actor:
    name: str
    act: Act
    weight: float
    is_foreign: bool = False
    is_usual: bool = True
    """It takes part unless a case names its actors."""
    tables: tuple[Ident, ...] = (TABLE,)
    """The tables that it works on."""
    rubbish: Condition = ()
    """The rows that it may delete so that tables stay small."""


ACTORS: dict[str, Actor] = {}


def usual() -> tuple[str, ...]:
    return tuple(each.name for each in ACTORS.values() if each.is_usual)


def of_one_table() -> tuple[str, ...]:
    """Those of the scenes that have one table."""
    return tuple(each.name for each in ACTORS.values() if each.tables == (TABLE,))


def of_the_bank() -> tuple[str, ...]:
    """Those of the scenes with transactions over several tables (``bank.py``)."""
    return tuple(each.name for each in ACTORS.values() if each.tables != (TABLE,))


def actor(
    weight: float,
    *,
    is_foreign: bool = False,
    is_usual: bool = True,
    tables: tuple[Ident, ...] = (TABLE,),
    rubbish: Condition = (),
) -> Callable[[Act], Act]:
    def register(act: Act) -> Act:
        name = act.__name__.replace("_", " ")
        ACTORS[name] = Actor(name, act, weight, is_foreign, is_usual, tables, rubbish)
        return act

    return register


@actor(10)
def appender(session: Session) -> None:
    rows = session.rows()
    if session.draw.random() < 0.3:
        rows = _with_new_column(session, rows)
    session.write(Step("append", rows=rows))


@actor(2)
def overwriter(session: Session) -> None:
    key, row = session.draw.randrange(KEYS), session.row()
    where, fixed = session.draw.choice(
        (
            ((("id", "=", key),), {"id": key}),
            ((("p", "=", row["p"]),), {"p": row["p"]}),
            ((("p", "=", row["p"]), ("id", "=", key)), {"p": row["p"], "id": key}),
        )
    )
    session.write(Step("overwrite", rows=session.rows(**fixed), where=where, on_conflict=_on_conflict(session)))


@actor(2)
def deleter(session: Session) -> None:
    mode = session.draw.choice(_MODES)
    session.write(Step("delete", where=session.condition(), mode=mode, on_conflict=_on_conflict(session)))


@actor(2)
def updater(session: Session) -> None:
    tag = f"{session.name}.{session.draw.randrange(1000)}"
    moved = {"p": session.draw.choice(PARTITIONS), "note": tag}
    assigned = session.draw.choice(({"+v": session.draw.randint(1, 60)}, {"note": tag}, moved))
    where, mode = session.condition(), session.draw.choice(_MODES)
    session.write(Step("update", where=where, set=assigned, mode=mode, on_conflict=_on_conflict(session)))


@actor(4)
def upserter(session: Session) -> None:
    rows, mode = session.keyed_rows(), session.draw.choice(_UPSERTS)
    session.write(Step("upsert", rows=rows, mode=mode, on_conflict=_on_conflict(session)))


@actor(1.5)
def transactor(session: Session) -> None:
    """Writes to one partition depending on another: two transactors in opposite directions are a write skew."""
    read, written = session.draw.sample(PARTITIONS, 2)
    key = session.draw.randrange(KEYS)
    new = session.row()

    def elsewhere(rows: State) -> Step:
        return Step("append", rows=({**new, "p": written, "v": sum(row["v"] for row in rows) % 100},))

    def if_absent(rows: State) -> Step:
        if rows:
            return Step("update", where=(("id", "=", key),), set={"v": max(row["v"] for row in rows) + 1})
        return Step("append", rows=({**new, "id": key},))

    if session.draw.random() < 0.5:
        session.transact((("p", "=", read),), elsewhere)
    else:
        session.transact((("id", "=", key),), if_absent)


@actor(3)
def ledger_keeper(session: Session) -> None:
    """Changes single rows at snapshot isolation; no actor adds rows that another one selects, so none can be missed."""
    known = session.world.ledger
    if len(known) < 2 or session.draw.random() < 0.2:
        keys = [1000 + 10 * session.number + n for n in range(3)]
        if (
            session.write(Step("append", rows=tuple(session.row(id=key, p="a") for key in keys))).outcome
            is CallOutcome.COMMITTED
        ):
            known.extend(keys)
        return
    key = session.draw.choice(known[-6:])
    where, mode = (("id", "=", key),), session.draw.choice(_MODES)
    choices = (
        Step("update", where=where, set={"+v": session.draw.randint(1, 9)}, mode=mode),
        Step("update", where=where, set={"p": session.draw.choice(PARTITIONS)}, mode=mode),
        # At this level, a delete need not see rows that an upsert adds concurrently.
        Step("delete", where=where, mode=mode) if key % 2 else Step("upsert", rows=(session.row(id=key),)),
    )
    session.write(replace(session.draw.choice(choices), isolation="snapshot"))


@actor(1)
def compactor(session: Session) -> None:
    session.write(Step("compact", on_conflict=_on_conflict(session)))


@actor(1)
def schema_changer(session: Session) -> None:
    """Column names are used once, so that a name identifies a column; property names are contended."""
    if session.draw.random() < 0.4:
        session.write(Step("set_properties", name=session.draw.choice(("k1", "k2")), value=session.name))
    elif names := _added_columns(session)[:1]:
        session.write(Step("drop_column", name=names[0]))
    else:
        session.write(Step("add_column", name=f"c{session.name}"))


@actor(0.4)
def spec_changer(session: Session) -> None:
    session.write(Step("set_partitioning", value=session.draw.choice(_PARTITIONINGS)))


@actor(1)
def branch_publisher(session: Session) -> None:
    """Write, audit, publish; if main has moved concurrently, cherry-pick onto main."""
    name = f"b{session.name}.{session.draw.randrange(1 << 30)}".replace(" ", "-")
    if session.write(Step("create_branch", name=name)).outcome is not CallOutcome.COMMITTED:
        return
    if session.draw.random() < 0.5:
        session.write(Step("append", rows=session.rows(), branch=name))
    rows = session.rows()
    written = session.write(Step("append", rows=rows, branch=name))
    if written.commit is None:
        return
    snapshot_id = written.commit.snapshot_id
    published = session.write(Step("fast_forward", name=name, value=snapshot_id))
    if published.outcome is CallOutcome.FAILED:
        session.write(Step("cherry_pick", rows=rows, value=snapshot_id))


@actor(1)
def pinned_reader(session: Session) -> None:
    session.read(times=2)


@actor(1, is_foreign=True)
def foreign_writer(session: Session) -> None:
    """Another engine: it swaps the pointer without the queue, and leaves no Frazil properties or summaries."""
    if session.draw.random() < 0.8:
        session.write(Step("append", rows=session.rows()))
    else:
        session.write(Step("delete", where=session.condition(), mode="copy-on-write"))


@actor(0.6)
def surveyor(session: Session) -> None:
    """Lists the table's folder as a clean-up would."""
    try:
        table = Table(CommitNow(session.lake, TABLE))
        listed = {info.path for info in session.lake.storage.list(table.location)}
    except FrazilError:
        return
    session.process.note(f"lists {len(listed)} files")


@actor(2, is_usual=False)
def undoer(session: Session) -> None:
    """Rolls main back by a few snapshots."""
    if (found := _metadata(session)) is not None:
        past = [each.snapshot_id for each in found.ancestors(found.ref_snapshot_id(MAIN))][1:4]
        if past:
            session.write(Step("rollback_to", value=session.draw.choice(past)))


@actor(2, is_usual=False)
def janitor(session: Session) -> None:
    """Expires old snapshots, unless commits to the table do."""
    found = _metadata(session)
    if found is not None and not expires_with_commits(found):
        older_than = found.raw["last-updated-ms"] - OLD_MS
        session.write(Step("expire_snapshots", value=(older_than, session.draw.randint(1, 4))))


@actor(3, is_usual=False)
def streamer(session: Session) -> None:
    """The driver of a stream. Several may run at once, as drivers do that were wrongly believed dead."""
    session.stream(session.draw.choice(("one", "two")))


def _on_conflict(session: Session) -> str | None:
    return session.draw.choice(_ON_CONFLICT)


def _metadata(session: Session) -> TableMetadata | None:
    try:
        return session.lake.catalog.load(TABLE).metadata
    except FrazilError:
        return None


def _with_new_column(session: Session, rows: tuple[Row, ...]) -> tuple[Row, ...]:
    names = _added_columns(session)[:1]
    return tuple({**row, **{name: session.draw.randrange(10) for name in names}} for row in rows)


def _added_columns(session: Session) -> list[str]:
    try:
        return [each.name for each in Table(CommitNow(session.lake, TABLE)).schema.fields if each.name.startswith("c")]
    except FrazilError:
        return []

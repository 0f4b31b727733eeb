"""The bank: tables of accounts and a ledger that change together, and the actors that work on them.

Rows belong to three kinds by their ``p``. Money moves and neither appears nor disappears, notes are what transactions
over both tables of accounts decide from, and single-table writers do what they like with the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from frazil.model import Ident
from frazil.runtime import seeded
from frazil_verification.simulator.actors import actor
from frazil_verification.simulator.lake import ACCOUNTS, BANK, CHECKING, LEDGER, SAVINGS
from frazil_verification.simulator.records import Seen
from frazil_verification.simulator.session import Session
from frazil_verification.simulator.steps import Condition, Row, Step

if TYPE_CHECKING:
    from frazil_verification.simulator.world import World

MONEY: Condition = (("p", "=", "a"),)
NOTES: Condition = (("p", "=", "b"),)
REST: Condition = (("p", "=", "c"),)
HELD = 100
"""The money in each account at the beginning."""
_HOLDERS = range(1000, 1004)
_NOTES = range(2000, 2003)
_ENTRIES = 3000
_MODES = (None, "merge-on-read", "copy-on-write")


def fill(world: World) -> None:
    """The rows that the bank begins with."""
    session = Session("begin", world, world.outside, world.lake, seeded(f"{world.case.seed}/begin"))
    for session.table in ACCOUNTS:
        money = [session.row(id=key, p="a", v=HELD) for key in _HOLDERS]
        notes = [session.row(id=key, p="b") for key in _NOTES[:2]]
        session.write(Step("append", rows=tuple(money[:2])))
        session.write(Step("append", rows=(*money[2:], *notes, *_rest(session))))
    session.table = LEDGER
    session.write(Step("append", rows=_rest(session)))


@actor(8, is_usual=False, tables=BANK, rubbish=REST)
def transfer(session: Session) -> None:
    """Update, update, append, in any order of the tables; nothing of it depends on what is read."""
    draw = session.draw
    source, target = draw.sample(ACCOUNTS, 2)
    amount, isolation = draw.randint(1, 9), draw.choice(("serializable", "serializable", "snapshot"))
    entered = amount if target == SAVINGS else -amount
    made = {
        source: _update(session, draw.choice(_HOLDERS), -amount),
        target: _update(session, draw.choice(_HOLDERS), amount),
        LEDGER: Step("append", rows=(session.row(id=_ENTRIES + session.number, p="a", v=entered),)),
    }
    order = draw.sample(list(made), 3)
    reads = {source: made[source].where} if isolation == "serializable" and draw.random() < 0.4 else None
    session.write_jointly("transfer", {ident: made[ident] for ident in order}, reads, isolation=isolation)


@actor(2, is_usual=False, tables=BANK, rubbish=REST)
def auditor(session: Session) -> None:
    """Reads all tables at one instant."""
    session.audit(session.draw.sample(BANK, 3), in_transaction=session.draw.random() < 0.5)


@actor(2, is_usual=False, tables=BANK, rubbish=REST)
def bookkeeper(session: Session) -> None:
    """Enters the sum of all accounts, which it only reads."""
    new = session.row(id=_ENTRIES + session.number, p="b")

    def sum_up(views: Mapping[Ident, Seen]) -> dict[Ident, Step]:
        money = sum(row["v"] for _, rows in views.values() for row in rows)
        return {LEDGER: Step("append", rows=({**new, "v": money},))}

    reads = dict.fromkeys(session.draw.sample(ACCOUNTS, 2), MONEY)
    session.write_jointly("bookkeeper", {LEDGER: Step("transaction")}, reads, sum_up)


@actor(3, is_usual=False, tables=BANK, rubbish=REST)
def skewer(session: Session) -> None:
    """Writes to one table depending on the other: two skewers in opposite directions are a write skew."""
    draw = session.draw
    read, written = draw.sample(ACCOUNTS, 2)
    # At the snapshot level, an update need not see rows that are added concurrently.
    isolation = draw.choice(("serializable", "serializable", "snapshot"))
    new, key = session.row(p="b"), draw.choice(_NOTES)
    appends = isolation == "snapshot" or draw.random() < 0.5

    def write(views: Mapping[Ident, Seen]) -> dict[Ident, Step]:
        value = sum(row["v"] for row in views[read][1]) % 100
        if appends:
            return {written: Step("append", rows=({**new, "id": key, "v": value},))}
        return {written: Step("update", where=_note(key), set={"v": value})}

    session.write_jointly("skewer", {written: Step("transaction")}, {read: NOTES}, write, isolation=isolation)


@actor(2, is_usual=False, tables=BANK, rubbish=REST)
def mover(session: Session) -> None:
    """Deletes notes here and adds one there: with nothing to delete, that there was nothing must hold as well."""
    draw = session.draw
    source, target = draw.sample(ACCOUNTS, 2)
    key = draw.choice(_NOTES)
    session.write_jointly(
        "mover",
        {
            source: Step("delete", where=_note(key), mode=draw.choice(_MODES)),
            target: Step("append", rows=(session.row(id=draw.choice(_NOTES), p="b"),)),
        },
    )


@actor(5, is_usual=False, tables=ACCOUNTS, rubbish=REST)
def annotator(session: Session) -> None:
    """Changes what transactions read, in one table alone: only a guard can tell them."""
    draw = session.draw
    key, tag = draw.choice(_NOTES), f"{session.name}.{draw.randrange(1000)}"
    choices = (
        Step("update", where=(("id", "=", draw.choice(_HOLDERS)),), set={"note": tag}, mode=draw.choice(_MODES)),
        Step("update", where=_note(key), set={"+v": draw.randint(1, 9)}, mode=draw.choice(_MODES)),
        Step("append", rows=(session.row(id=key, p="b"),)),
        Step("delete", where=_note(key), mode=draw.choice(_MODES)),
    )
    session.write(draw.choice(choices))


@actor(5, is_usual=False, tables=BANK, rubbish=REST)
def clerk(session: Session) -> None:
    """Writes to one table alone, beside the transactions."""
    draw = session.draw
    where, rows = _some_of_the_rest(session), _rest(session)
    keyed = tuple({row["id"]: row for row in rows}.values())
    choices = (
        Step("append", rows=rows),
        Step("append", rows=rows),
        Step("delete", where=where, mode=draw.choice(_MODES)),
        Step("update", where=where, set={"+v": draw.randint(1, 60)}, mode=draw.choice(_MODES)),
        Step("upsert", rows=keyed, mode=draw.choice((None, None, "position", "copy-on-write"))),
        Step("set_properties", name=draw.choice(("k1", "k2")), value=session.name),
    )
    session.write(replace(draw.choice(choices), on_conflict=draw.choice((None, None, None, "abort"))))


@actor(1, is_usual=False, tables=BANK, rubbish=REST)
def packer(session: Session) -> None:
    """Compacts one of the tables."""
    session.write(Step("compact"))


@actor(2, is_usual=False, is_foreign=True, tables=(CHECKING,), rubbish=REST)
def foreign_clerk(session: Session) -> None:
    """Another engine on one of the tables."""
    if session.draw.random() < 0.8:
        session.write(Step("append", rows=_rest(session)))
    else:
        session.write(Step("delete", where=_some_of_the_rest(session), mode="copy-on-write"))


def _update(session: Session, key: int, amount: int) -> Step:
    return Step("update", where=(("id", "=", key),), set={"+v": amount}, mode=session.draw.choice(_MODES))


def _note(key: int) -> Condition:
    return (*NOTES, ("id", "=", key))


def _rest(session: Session) -> tuple[Row, ...]:
    return session.rows(3, p="c")


def _some_of_the_rest(session: Session) -> Condition:
    key = session.draw.randrange(8)
    options: tuple[Condition, ...] = (
        (*REST, ("id", "=", key)),
        (*REST, ("v", "<", session.draw.randrange(60))),
        (*REST, ("id", ">=", key)),
    )
    return session.draw.choice(options)

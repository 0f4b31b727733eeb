"""Frazil with one guard taken out at a time: the simulator has to notice each.

    python -m simulation.mutants --seeds 1000 --jobs 2        (with tests/ on the path)

A mutant is an edit of one function's source. Where the source has changed so that the edit does not apply any more,
installing it fails, so that no mutant is silently lost.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from frazil.verify.simulator import Case, simulate


@dataclass(frozen=True)
class Mutant:
    """``old`` becomes ``new`` in the source of ``module.where``."""

    name: str
    rule: str
    """Of the protocol, where one says it."""
    where: str
    """``module:Class.method`` or ``module:function``."""
    old: str
    new: str


_QUEUE, _SQL, _LOOP = "frazil.catalog._queue", "frazil.catalog._sql", "frazil.commit.loop"
_CARRY, _CONFLICTS, _LINE = "frazil.commit.carry", "frazil.commit.conflicts", "frazil.commit.line"

MUTANTS = (
    # The swap and the queue
    Mutant(
        "the swap ignores what it expects",
        "P5",
        f"{_SQL}:SqlStore._swap",
        'WHERE {_ROW}{self._is_table} AND metadata_location = ?"',
        "WHERE {_ROW}{self._is_table} AND ? <> ''\"",
    ),
    Mutant(
        "the swap does not count the tickets that it settles",
        "P1",
        f"{_QUEUE}:SqlQueue.settle",
        "!= len(settlement.committed)",
        "< 0",
    ),
    Mutant("a ticket is settled whatever its state", "P1", f"{_QUEUE}:SqlQueue._committed", "AND state = 0 AND", "AND"),
    Mutant(
        "a ticket is settled after its deadline",
        "P3",
        f"{_QUEUE}:SqlQueue._committed",
        "AND state = 0 AND deadline > {self._engine.clock()}",
        "AND state = 0",
    ),
    Mutant(
        "a withdrawal is not guarded",
        "P1",
        f"{_QUEUE}:SqlQueue.withdraw",
        "WHERE ticket = ? AND state = ?",
        "WHERE ticket = ? AND ? = 0",
    ),
    Mutant(
        "who leaves the line does not withdraw",
        "P3",
        f"{_LINE}:Line.take_back",
        "self._queue.withdraw(self.ticket.key)",
        "pass",
    ),
    Mutant(
        "a withdrawal's answer is not read",
        "P1",
        f"{_LOOP}:_Loop._left_the_line",
        "verdict.fate is Fate.COMMITTED",
        "False",
    ),
    Mutant(
        "a ticket that may be there is not fenced off",
        "P3",
        f"{_QUEUE}:SqlQueue._fenced",
        "self._insert(ticket, Fate.WITHDRAWN, 0)",
        "pass",
    ),
    Mutant(
        "commit ids are not recorded with the swap",
        "P12",
        f"{_SQL}:SqlStore._swap",
        "if row is not None:\n            self._insert_record(db, row)\n        if swap.settlement",
        "if swap.settlement",
    ),
    Mutant(
        "the ids of a group are not recorded",
        "P1",
        f"{_SQL}:SqlStore._swap",
        "self._insert_record(db, _record_row(each))",
        "pass",
    ),
    Mutant(
        "a commit id may be recorded twice",
        "P1",
        f"{_SQL}:SqlStore._insert_record",
        "INSERT INTO {COMMITS}",
        "INSERT OR REPLACE INTO {COMMITS}",
    ),
    Mutant(
        "the combiner commits itself twice",
        "P1",
        "frazil.commit.group:settlement_of",
        "if own is not None:",
        "if False:",
    ),
    Mutant(
        "swaps are not durable",
        "P5",
        f"{_SQL}:SqlStore._send",
        "isinstance(outcome, Committed)\n",
        "isinstance(outcome, Committed), durable=False\n",
    ),
    # Outcomes
    Mutant(
        "an unknown outcome is taken for a lost race",
        "P9",
        f"{_LOOP}:_Loop._settled",
        "while isinstance(outcome, Unknown)",
        "if isinstance(outcome, Unknown):\n        return Stale(None)\n    while isinstance(outcome, Unknown)",
    ),
    Mutant(
        "absence is believed although the head has not moved",
        "P9",
        f"{_LOOP}:_Loop._search",
        "if head.location == prepared.head.location:",
        "if False:",
    ),
    Mutant(
        "an unknown swap is searched for, not sent again",
        "P9",
        f"{_LOOP}:_Loop._send_again",
        "outcome = self._catalog.swap(prepared)\n        "
        "return self._search(prepared, draft) if isinstance(outcome, Stale) else outcome",
        "found = self._search(prepared, draft)\n        return found if isinstance(found, Committed) else Stale(None)",
    ),
    Mutant("commit ids are not looked up", "P9", f"{_LOOP}:find_commit", "if record is None:", "if True:"),
    Mutant(
        "files are removed although the outcome is unknown",
        "P9",
        f"{_LOOP}:_Loop._clean_up_after",
        "if self._fate is _Fate.IN_DOUBT or (isinstance(error, FrazilError) and not error.safe_to_delete_staged):",
        "if False:",
    ),
    Mutant(
        "an attempt's files are removed although it may land",
        "P9",
        f"{_LOOP}:_Loop._conclude",
        "raise CommitUnknown(",
        "self._withdraw(prepared, draft)\n            raise CommitUnknown(",
    ),
    Mutant(
        "a namesake in the queue is not withdrawn",
        "P9",
        f"{_LOOP}:_Loop._withdraw_namesake",
        "self._catalog.queue is not None",
        "False",
    ),
    Mutant(
        "an earlier attempt that landed is not recognised",
        "P9",
        f"{_LOOP}:_Loop._landed",
        "any(head.has_snapshot(each) for each in self._chain.snapshot_ids)",
        "False",
    ),
    # Durability and time
    Mutant(
        "time may run back",
        "P7",
        "frazil.format.updates:next_time_ms",
        "max(now_ms, metadata.last_updated_ms, *logs)",
        "now_ms",
    ),
    # Conflicts
    Mutant(
        "no conflict between rows is seen",
        "P19 to P26",
        f"{_CONFLICTS}:row_conflicts",
        "wanted = required(write)",
        "return unmoved(write), ()",
    ),
    Mutant("rows added meanwhile are not looked at", "P24", f"{_CONFLICTS}:_added_rows", "if not tests:", "if True:"),
    Mutant("a row may have two writers", "P26", f"{_CARRY}:_Tracker._must_be_free", "if twice:", "if False:"),
    Mutant("copies bring deleted rows back", "P19", f"{_CARRY}:_Tracker._forget_copies", "if hit:", "if False:"),
    Mutant(
        "deletes by key of others are not looked at",
        "P19",
        f"{_CARRY}:_Tracker._equality_deletes",
        "in self._near(entry)",
        "in ()",
    ),
    Mutant(
        "a removed file's rows are not followed",
        "P26",
        f"{_CARRY}:_Tracker._removal",
        "if tracked is None:",
        "if True:",
    ),
    Mutant("rows that a rewrite lost are not missed", "P26", f"{_CARRY}:_Tracker._move", "if lost:", "if False:"),
    Mutant(
        "two rewrites of one file both land",
        "P20",
        f"{_CARRY}:_Tracker._removal",
        "if self._write.kind is Kind.REWRITE and",
        "if False and",
    ),
    Mutant("appends do not mind deletes", "P23", f"{_CARRY}:_Tracker._against_predicate", "if not rows:", "if True:"),
    Mutant(
        "copies are as young as their commit",
        "P20",
        "frazil.commit.chain:Chain._add_write",
        "copies_number=read,",
        "copies_number=metadata.last_sequence_number + 1,",
    ),
    Mutant(
        "copies are as old as the newest snapshot",
        "P20",
        "frazil.commit.chain:Chain._add_write",
        "if read is None:",
        "if True:",
    ),
    Mutant(
        "the branch's head is not the parent",
        "P25",
        "frazil.commit.chain:parent_of",
        "metadata.head_snapshot(branch)",
        "metadata.head_snapshot(MAIN)",
    ),
    Mutant(
        "a ref moves whatever it was",
        "P25",
        "frazil.commit.metadata_changes:_move_ref",
        "raise _ref_moved(intent.ref, intent.replaced, head)",
        "pass",
    ),
)

QUICK = {
    "the swap ignores what it expects": 0,
    "the swap does not count the tickets that it settles": 48,
    "a withdrawal is not guarded": 0,
    "who leaves the line does not withdraw": 2,
    "an unknown outcome is taken for a lost race": 0,
    "an unknown swap is searched for, not sent again": 5,
    "no conflict between rows is seen": 0,
    "copies bring deleted rows back": 0,
    "rows added meanwhile are not looked at": 0,
}
"""Mutants that are noticed soon, with a seed that did."""


@contextmanager
def installed(mutant: Mutant) -> Iterator[None]:
    """Frazil with the mutant in it, until the block ends."""
    undo = _install(mutant)
    try:
        yield
    finally:
        undo()


def _install(mutant: Mutant) -> Callable[[], None]:
    module_name, _, path = mutant.where.partition(":")
    module = importlib.import_module(module_name)
    owner: Any = module
    *owners, name = path.split(".")
    for each in owners:
        owner = getattr(owner, each)
    original = inspect.getattr_static(owner, name)
    function = inspect.unwrap(getattr(owner, name))
    source = textwrap.dedent(inspect.getsource(function))
    assert mutant.old in source, f"the source of {mutant.where} has changed: {mutant.name}"
    namespace: dict[str, Any] = {}
    exec(compile(source.replace(mutant.old, mutant.new), f"<{mutant.name}>", "exec"), module.__dict__, namespace)
    changed = namespace[name]
    places = [(owner, name)]
    if not owners:
        places += [
            (each, key)
            for each in list(sys.modules.values())
            if getattr(each, "__name__", "").startswith("frazil") and each is not module
            for key, value in list(vars(each).items())
            if value is original
        ]
    for place, key in places:
        setattr(place, key, changed)

    def undo() -> None:
        for place, key in places:
            setattr(place, key, original)

    return undo


def first_seed_that_notices(
    mutant: Mutant, seeds: int, first: int | None = None, steps: int = 100
) -> tuple[int, str] | None:
    """The seed, and what was noticed; None: not within so many."""
    with installed(mutant):
        for seed in range(first or 0, (first or 0) + seeds):
            found = simulate(Case(seed, steps)).violations
            if found:
                return seed, found[0].rule
    return None


def _line(index: int, seeds: int) -> str:
    mutant = MUTANTS[index]
    found = first_seed_that_notices(mutant, seeds)
    caught = f"noticed by seed {found[0]:4}: {found[1]}" if found is not None else f"MISSED in {seeds} seeds"
    return f"{mutant.rule:10} {mutant.name:60} {caught}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="a part of the name")
    given = parser.parse_args()
    chosen = [number for number, each in enumerate(MUTANTS) if given.only in each.name]
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        lines = list(pool.map(_line, chosen, [given.seeds] * len(chosen)))
    missed = sum("MISSED" in line for line in lines)
    sys.stdout.write("\n".join([*lines, f"{len(lines) - missed} of {len(lines)} mutants were noticed", ""]))


if __name__ == "__main__":
    main()

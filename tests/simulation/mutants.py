"""Which mutants the simulator notices (``python -m tests.mutants --by simulator``)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from frazil.verify.simulator import SCENES, Result, shrink, simulate
from mutants.listed import MUTANTS
from mutants.mutant import Mutant, installed

QUICK = {
    "the expected value is not compared": 0,
    "what was committed is called withdrawn": 0,
    "a lost answer is a lost race": 2,
    "an unknown swap is searched for, not sent again": 11,
    "a reservation is waited for without end": 1,
    "staged rows are not synced": 1,
    "no conflict between rows is seen": 0,
    "rows that others took out come back in a copy": 0,
    "rows that were read may be joined by others": 0,
}
"""Mutants that are noticed soon, with a seed that did."""


def called(name: str) -> Mutant:
    (found,) = (each for each in MUTANTS if each.name == name)
    return found


def first_that_notices(mutant: Mutant, seeds: int, first: int = 0) -> Result | None:
    """The first run that breaks a rule; None: not within so many."""
    with installed(mutant):
        runs = (simulate(replace(SCENES[mutant.scene], seed=seed)) for seed in range(first, first + seeds))
        return next((each for each in runs if each.violations), None)


def keep(mutant: Mutant, found: Result, folder: Path) -> None:
    """A small case that breaks the same rule with the mutant, and must break none without it."""
    with installed(mutant):
        smallest = shrink(found)
    folder.mkdir(parents=True, exist_ok=True)
    body = {"mutant": mutant.name, "rule": smallest.violations[0].rule, "case": smallest.case.to_json()}
    (folder / f"{mutant.name.replace(' ', '-')}.json").write_text(json.dumps(body, indent=2) + "\n")

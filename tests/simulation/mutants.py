"""Which mutants the simulator notices (``python -m tests.mutants --by simulator``)."""

from __future__ import annotations

from frazil.verify.simulator import Case, simulate
from mutants.listed import MUTANTS
from mutants.mutant import Mutant, installed

QUICK = {
    "the expected value is not compared": 0,
    "tickets that are gone do not stop the swap": 48,
    "what was committed is called withdrawn": 0,
    "who leaves the line does not withdraw": 2,
    "a lost answer is a lost race": 0,
    "an unknown swap is searched for, not sent again": 5,
    "no conflict between rows is seen": 0,
    "rows that others took out come back in a copy": 0,
    "rows that were read may be joined by others": 0,
}
"""Mutants that are noticed soon, with a seed that did."""


def called(name: str) -> Mutant:
    (found,) = (each for each in MUTANTS if each.name == name)
    return found


def first_seed_that_notices(mutant: Mutant, seeds: int, first: int = 0, steps: int = 100) -> tuple[int, str] | None:
    """The seed, and what was noticed; None: not within so many."""
    with installed(mutant):
        for seed in range(first, first + seeds):
            found = simulate(Case(seed, steps)).violations
            if found:
                return seed, found[0].rule
    return None

"""Which mutants the simulator notices (``python -m tests.mutants --by simulator``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from frazil_verification.simulator import SCENES, Result, shrink, simulate
from mutants.listed import MUTANTS
from mutants.mutant import Mutant, installed

QUICK = (
    "the expected value is not compared",
    "a committed ticket can be withdrawn",
    "a lost answer is a lost race",
    "an unknown swap is searched and not sent again",
    "writers wait forever for a reservation",
    "staged rows are not synced",
    "no conflict between rows is seen",
    "rows deleted concurrently come back in a copy",
    "rows may be added to those that were read",
)
"""Mutants that are noticed soon."""
NOTICED = Path(__file__).parent / "noticed.json"
"""Mutant → the scene and seed that noticed it and the broken rule, or the number of seeds that did not."""


def called(name: str) -> Mutant:
    (found,) = (each for each in MUTANTS if each.name == name)
    return found


def recorded() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(NOTICED.read_text()) if NOTICED.exists() else {}
    return found


def record(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Add new results to those of mutants that are still listed."""
    known = {**recorded(), **results}
    kept = {each.name: known[each.name] for each in MUTANTS if each.name in known and not each.unseen}
    NOTICED.write_text(json.dumps(kept, indent=1) + "\n")


def search(mutant: Mutant, seeds: int, known: Mapping[str, Any]) -> Result | None:
    """The seed that noticed it before, if it still does; else the first one that does."""
    again = None
    if known.get("scene") == mutant.scene and "seed" in known:
        again = first_that_notices(mutant, 1, known["seed"])
    return again or first_that_notices(mutant, seeds)


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
    name = mutant.name.replace(" ", "-").replace("'", "")
    (folder / f"{name}.json").write_text(json.dumps(body, indent=2) + "\n")

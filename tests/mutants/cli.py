"""``python -m tests.mutants``: remove each guard once, and check whether its tests, or the simulator, notice."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from mutants.listed import MUTANTS
from mutants.mutant import Mutant, source_with

ROOT = Path(__file__).parents[2]
TESTS = ("tests/unit", "tests/contract", "tests/surface")
PATIENCE_S = 600
_NO_TESTS = 5


@dataclass(frozen=True, slots=True)
class Result:
    mutant: Mutant
    is_caught: bool
    said: str
    seconds: float
    record: dict[str, Any] = field(default_factory=dict)
    """What to keep of it, of the simulator's."""

    def __str__(self) -> str:
        word = "caught" if self.is_caught else "MISSED"
        return f"{word}  {self.mutant.rule:4} {self.mutant.name}  ({self.seconds:.0f} s)  {self.said}"


def by_tests(mutant: Mutant) -> Result:
    """Whether one of the mutant's tests fails with it."""
    chosen = mutant.tests or f"test_p{mutant.number}_"
    began = time.monotonic()
    with source_with(mutant) as source:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--timeout", "60", "-p", "no:cacheprovider"]
        try:
            done = subprocess.run(
                [*command, *TESTS, "-k", chosen],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Result(mutant, True, f"hangs for {PATIENCE_S} s", time.monotonic() - began)
    if done.returncode == _NO_TESTS:
        raise SystemExit(f"{mutant.name}: no test is called {chosen!r}")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    said = failed[0].split(" - ")[0] if failed else done.stdout.strip().splitlines()[-1]
    return Result(mutant, done.returncode != 0, said, time.monotonic() - began)


def by_simulator(mutant: Mutant, seeds: int, folder: Path | None, known: Mapping[str, Any]) -> Result:
    """Whether one of so many seeds breaks a rule with it; a small case of that goes to the folder."""
    from simulation.mutants import keep, search

    began = time.monotonic()
    found = search(mutant, seeds, known.get(mutant.name, {}))
    if found is None:
        said, kept = f"not in {seeds} seeds ({mutant.scene})", {"scene": mutant.scene, "not in": seeds}
    else:
        seed, rule = found.case.seed, found.violations[0].rule
        said, kept = f"{mutant.scene} seed {seed}: {rule}", {"scene": mutant.scene, "seed": seed, "rule": rule}
        if folder is not None:
            keep(mutant, found, folder)
    return Result(mutant, found is not None, said, time.monotonic() - began, kept)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--by", choices=["tests", "simulator"], default="tests")
    parser.add_argument("--only", nargs="+", metavar="RULE", help="such as P1 P9")
    parser.add_argument("--called", help="those with this in their name")
    parser.add_argument("--seeds", type=int, default=1000, help="of the simulator")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="for small cases of what was noticed")
    parser.add_argument("--jobs", type=int, default=1)
    chosen = parser.parse_args(arguments)
    mutants = [each for each in MUTANTS if chosen.only is None or each.rule in chosen.only]
    mutants = [each for each in mutants if (chosen.called or "") in each.name]
    judge = by_tests
    if chosen.by == "simulator":
        mutants = [each for each in mutants if not each.unseen]
        judge = partial(by_simulator, seeds=chosen.seeds, folder=chosen.keep, known=_known())
    missed = 0
    with ProcessPoolExecutor(chosen.jobs, mp_context=get_context("spawn")) as pool:
        for result in pool.map(judge, mutants):
            missed += not result.is_caught
            print(result, flush=True)
            if result.record:
                _keep(result)
    print(f"{len(mutants) - missed} of {len(mutants)} mutants were caught")
    return 1 if missed else 0


def _known() -> Mapping[str, Any]:
    from simulation.mutants import recorded

    return recorded()


def _keep(result: Result) -> None:
    from simulation.mutants import record

    record({result.mutant.name: result.record})

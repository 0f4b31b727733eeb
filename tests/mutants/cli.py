"""``python -m tests.mutants``: take each rule out in turn, and see whether its tests notice."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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


def run_tests(mutant: Mutant) -> Result:
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
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    said = failed[0].split(" - ")[0] if failed else done.stdout.strip().splitlines()[-1]
    if done.returncode == _NO_TESTS:
        raise SystemExit(f"{mutant.name}: no test is called {chosen!r}")
    return Result(mutant, done.returncode != 0, said, time.monotonic() - began)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="RULE", help="such as P1 P9")
    chosen = parser.parse_args(arguments)
    mutants = [each for each in MUTANTS if chosen.only is None or each.rule in chosen.only]
    results = []
    for mutant in mutants:
        result = run_tests(mutant)
        results.append(result)
        word = "caught" if result.is_caught else "MISSED"
        print(f"{word}  {mutant.rule:4} {mutant.name}  ({result.seconds:.0f} s)  {result.said}", flush=True)
    missed = [each for each in results if not each.is_caught]
    print(f"{len(results) - len(missed)} of {len(results)} mutants were caught by their tests")
    return 1 if missed else 0

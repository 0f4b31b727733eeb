"""Explore the models from a terminal.

python -m frazil_verification.model                     every model within small bounds, and each rule off once
python -m frazil_verification.model --bounds large      minutes, and millions of states
python -m frazil_verification.model --off HEAD_FIRST    the shortest path to a broken invariant without a rule
"""

from __future__ import annotations

import argparse
import sys

from frazil.runtime import SYSTEM
from frazil_verification.model.explorer import explore
from frazil_verification.model.runs import FLAWS, LARGE, SMALL, Flaw, Run


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m frazil_verification.model", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--bounds", choices=["small", "large"], default="small")
    parser.add_argument("--off", metavar="RULE", choices=sorted({each.name for each in FLAWS}))
    options = parser.parse_args(arguments)
    if options.off:
        return max(_show(flaw) for flaw in FLAWS if flaw.name == options.off)
    sound = [_explored(run) for run in (SMALL if options.bounds == "small" else (*SMALL, *LARGE))]
    caught = [_is_caught(flaw) for flaw in FLAWS]
    _say(
        f"{sum(sound)} of {len(sound)} models hold; {sum(caught)} of {len(caught)} rules are needed: without one, "
        "an invariant breaks"
    )
    return 0 if all(sound) and all(caught) else 1


def _explored(run: Run) -> bool:
    began = SYSTEM.monotonic()
    found = explore(run.model)
    seconds = SYSTEM.monotonic() - began
    result = "holds" if found.trace is None else str(found.trace)
    size = f"{found.states:,} states, {found.transitions:,} steps, {found.depth} deep, {seconds:.1f} s"
    _say(f"{run.what}: {size}: {result}")
    return found.trace is None and found.is_complete


def _is_caught(flaw: Flaw) -> bool:
    trace = explore(flaw.model).trace
    caught = trace is not None and trace.invariant == flaw.invariant
    steps = "nothing breaks" if trace is None else f"{trace.invariant} breaks after {len(trace.steps)} steps"
    _say(f"without {flaw.name} ({flaw.of}): {steps}")
    return caught


def _show(flaw: Flaw) -> int:
    _say(f"Without the rule: {flaw.rule} ({flaw.of})")
    if flaw.beside is not None:
        _say(f"and without a second rule: {flaw.beside}")
    found = explore(flaw.model)
    _say(str(found.trace) if found.trace is not None else f"nothing breaks in {found.states:,} states")
    return 0 if found.trace is not None else 1


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

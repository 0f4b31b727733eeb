"""The commands of the package frazil-verification: the only place where Frazil imports it, and only when one is run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from frazil.errors import Unsupported

PLOT = Path("lab-backoff.png")
_PACKAGES = frozenset({"frazil_verification", "greenlet"})


@dataclass(frozen=True, slots=True)
class Simulate:
    """The options of ``frazil simulate``."""

    seed: int
    steps: int
    seeds: int
    jobs: int
    faults: str
    actors: str
    catalog: str
    severity: float
    keep: Path | None
    """The folder for a small case of each failing seed."""
    replay: Path | None
    """A kept case; it replaces every option that decides a run."""
    json: bool


@dataclass(frozen=True, slots=True)
class Backoff:
    """The options of ``frazil lab backoff``."""

    writers: int
    commits: int | None
    seed: int
    real: bool
    plot: Path | None
    """None: no picture."""
    json: bool


def simulate(options: Simulate) -> int:
    with _installed("frazil simulate"):
        from frazil_verification.commands.simulate import run
    return run(options)


def backoff(options: Backoff) -> None:
    with _installed("frazil lab backoff"):
        from frazil_verification.commands.lab import run
    run(options)


@contextlib.contextmanager
def _installed(command: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _PACKAGES:
            raise
        package = missing.replace("_", "-")
        raise Unsupported(
            f'"{command}" needs the package {package}, which is not installed', advice="pip install 'frazil[verify]'"
        ) from error

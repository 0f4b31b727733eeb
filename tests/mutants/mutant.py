"""One change of the source that takes a rule out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True, slots=True)
class Mutant:
    """``old`` stands once in ``file`` (below the package), and ``new`` in its place breaks ``rule``."""

    name: str
    rule: str
    file: str
    old: str
    new: str
    tests: str = ""
    """The tests that are to notice it, as pytest's -k takes it; without it, those that are named after the rule."""
    is_simulated: bool = True
    """A simulation can see it: not what only a real database, file system or Spark does."""

    @property
    def number(self) -> int:
        return int(self.rule.removeprefix("P"))

    def applied(self, text: str) -> str:
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: its text stands {text.count(self.old)} times in {self.file}")
        return text.replace(self.old, self.new)


@contextmanager
def source_with(mutant: Mutant | None) -> Iterator[Path]:
    """A copy of the package's source, with the mutant in it."""
    with TemporaryDirectory(prefix="frazil-mutant-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            path = copy / "frazil" / mutant.file
            path.write_text(mutant.applied(path.read_text()))
        yield copy

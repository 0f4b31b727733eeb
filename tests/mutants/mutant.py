"""One change of a function's source that takes a rule out."""

from __future__ import annotations

import importlib
import inspect
import shutil
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType, ModuleType
from typing import Any, cast

SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True, slots=True)
class Mutant:
    """``old`` occurs once in the source of a function, without its indentation; ``new`` in its place breaks a rule."""

    name: str
    rule: str
    where: str
    """``module:Class.method`` or ``module:function``."""
    old: str
    new: str
    tests: str = ""
    """The tests that are to notice it, as pytest's -k takes it; without it, those that are named after the rule."""
    unseen: str = ""
    """Why no simulation can see it; empty: one can."""
    scene: str = "usual"
    """Where the simulator looks for it."""

    @property
    def number(self) -> int:
        return int(self.rule.removeprefix("P"))

    @property
    def module(self) -> ModuleType:
        return importlib.import_module(self.where.partition(":")[0])

    def function(self) -> FunctionType:
        owner: Any = self.module
        for each in self.where.partition(":")[2].split("."):
            owner = inspect.getattr_static(owner, each)
        return _plain(owner)

    def applied(self) -> tuple[str, str]:
        """The function's source as it is in the file, and as it becomes."""
        before = inspect.getsource(self.function())
        plain = textwrap.dedent(before)
        if plain.count(self.old) != 1:
            raise ValueError(f"{self.name}: its text occurs {plain.count(self.old)} times in {self.where}")
        indentation = before[: len(before) - len(before.lstrip(" "))]
        return before, textwrap.indent(plain.replace(self.old, self.new), indentation)


@contextmanager
def source_with(mutant: Mutant) -> Iterator[Path]:
    """A copy of the package's source, with the mutant in it."""
    before, after = mutant.applied()
    with TemporaryDirectory(prefix="frazil-mutant-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        path = copy / Path(str(mutant.module.__file__)).resolve().relative_to(SOURCE)
        path.write_text(path.read_text().replace(before, after))
        yield copy


@contextmanager
def installed(mutant: Mutant) -> Iterator[None]:
    """This very process with the mutant in it, until the block ends."""
    function = mutant.function()
    namespace: dict[str, Any] = {}
    exec(compile(textwrap.dedent(mutant.applied()[1]), f"<{mutant.name}>", "exec"), mutant.module.__dict__, namespace)
    original = function.__code__
    # The function object stays: other modules have imported it, or keep it in a table.
    function.__code__ = _plain(namespace[function.__name__]).__code__
    try:
        yield
    finally:
        function.__code__ = original


def _plain(found: Any) -> FunctionType:
    """What is behind a property or a decorator."""
    function: Any = inspect.unwrap(cast("Any", found.fget) if isinstance(found, property) else found)
    assert isinstance(function, FunctionType)
    return function

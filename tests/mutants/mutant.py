"""One change of a function's source that takes a rule out."""

from __future__ import annotations

import importlib
import inspect
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True, slots=True)
class Mutant:
    """``old`` stands once in the source of a function, without its indentation; ``new`` in its place breaks a rule."""

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

    @property
    def number(self) -> int:
        return int(self.rule.removeprefix("P"))

    @property
    def module(self) -> ModuleType:
        return importlib.import_module(self.where.partition(":")[0])

    @property
    def place(self) -> tuple[Any, str]:
        """Where the function is found, and its name there."""
        *owners, name = self.where.partition(":")[2].split(".")
        owner: Any = self.module
        for each in owners:
            owner = getattr(owner, each)
        return owner, name

    def function_source(self) -> str:
        owner, name = self.place
        found = inspect.getattr_static(owner, name)
        function: Any = found.fget if isinstance(found, property) else getattr(owner, name)
        return inspect.getsource(inspect.unwrap(function))

    def applied(self) -> tuple[str, str]:
        """The function's source as it is in the file, and as it becomes."""
        before = self.function_source()
        plain = textwrap.dedent(before)
        if plain.count(self.old) != 1:
            raise ValueError(f"{self.name}: its text stands {plain.count(self.old)} times in {self.where}")
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
    owner, name = mutant.place
    original = inspect.getattr_static(owner, name)
    namespace: dict[str, Any] = {}
    code = compile(textwrap.dedent(mutant.applied()[1]), f"<{mutant.name}>", "exec")
    exec(code, mutant.module.__dict__, namespace)
    places = [(owner, name)]
    if owner is mutant.module:
        # Others have imported it by name.
        places += [
            (each, key)
            for each in list(sys.modules.values())
            if getattr(each, "__name__", "").startswith("frazil") and each is not owner
            for key, value in list(vars(each).items())
            if value is original
        ]
    for place, key in places:
        setattr(place, key, namespace[name])
    try:
        yield
    finally:
        for place, key in places:
            setattr(place, key, original)

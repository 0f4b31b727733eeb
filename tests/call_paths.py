"""The paths of ``docs/architecture.md``: read from the page, looked up in the source, and recorded from real calls."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

PAGE = Path(__file__).resolve().parents[1] / "docs" / "architecture.md"
_HOP = re.compile(r"^(?P<number>\d+)\. `(?P<name>[\w.]+:[\w.]+)`(?: \((?P<marks>[^)]*)\))? (?P<text>.+)$")
_Definition = ast.FunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Hop:
    name: str
    caller: int
    """The index of the hop that calls this one, or makes what is called."""
    is_running: bool
    """That hop is still running."""
    through: str | None
    """The protocol's method that the caller sees."""
    text: str

    @property
    def values(self) -> list[str]:
        return re.findall(r"`([A-Z]\w*)`", self.text)


def paths(page: str) -> dict[str, list[Hop]]:
    """Heading → the numbered hops below it. A line of a list that is not a hop is an error."""
    found: dict[str, list[Hop]] = {}
    for section in page.split("\n## ")[1:]:
        title, *lines = section.splitlines()
        numbered = [line for line in lines if re.match(r"\s*\d+[.)]", line)]
        for index, line in enumerate(numbered):
            hop = _HOP.match(line)
            assert hop, f"not a hop: {line}"
            assert int(hop["number"]) == index + 1, line
            marks = re.fullmatch(r"(?:(from|made in) (\d+))?(?:, )?(?:through `([^`]+)`)?", hop["marks"] or "")
            assert marks, f"unknown marks: {line}"
            caller = int(marks[2]) - 1 if marks[2] else index - 1
            assert caller < index, f"a hop is called by a later one: {line}"
            found.setdefault(title, []).append(Hop(hop["name"], caller, marks[1] != "made in", marks[3], hop["text"]))
    return found


class Module:
    """A module's source, as a syntax tree."""

    def __init__(self, name: str) -> None:
        spec = importlib.util.find_spec(name)
        assert spec is not None, f"there is no module {name}"
        assert spec.origin is not None
        self.name = name
        self.tree = ast.parse(Path(spec.origin).read_text())
        self.defined = {node.name: node for node in self.tree.body if isinstance(node, _Definition)}

    @property
    def imports(self) -> set[str]:
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found.update(each.name for each in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.module is not None
                assert node.level == 0
                found.add(node.module)
                found.update(f"{node.module}.{each.name}" for each in node.names)
        return found


@functools.cache
def module(name: str) -> Module:
    return Module(name)


@dataclass(frozen=True)
class Code:
    """A function, method or class, named ``module:function`` or ``module:Class.method`` below ``frazil``."""

    module: Module
    owner: ast.ClassDef | None
    node: _Definition

    @staticmethod
    def of(name: str) -> Code:
        place, _, dotted = name.partition(":")
        found = module(f"frazil.{place}")
        first, _, method = dotted.partition(".")
        assert first in found.defined, f"{found.name} does not define {first}"
        node = found.defined[first]
        if not method:
            return Code(found, None, node)
        assert isinstance(node, ast.ClassDef), f"{first} is not a class"
        methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
        assert method in methods, f"{name}: the class does not define the method"
        return Code(found, node, methods[method])

    @property
    def is_protocol(self) -> bool:
        return self.owner is not None and any(
            isinstance(base, ast.Name) and base.id == "Protocol" for base in self.owner.bases
        )

    def calls(self, other: Code) -> bool:
        """Whether the body names the other function, method or class."""
        named = self._names(in_annotations=False)
        return other.node.name in named or (other.owner is not None and other.owner.name in named)

    def mentions(self, value: str) -> bool:
        return value in self._names(in_annotations=True)

    def _names(self, *, in_annotations: bool) -> set[str]:
        """The names in the body and in the private helpers of its module that it uses."""
        found: set[str] = set()
        seen: list[_Definition] = []
        todo: list[_Definition] = [self.node]
        while todo:
            node = todo.pop()
            seen.append(node)
            names = set(_names(node, in_annotations=in_annotations))
            found |= names
            todo += [each for each in self._private(names) if each not in seen and each not in todo]
        return found

    def _private(self, names: set[str]) -> Iterator[_Definition]:
        methods = [each for each in self.owner.body if isinstance(each, _Definition)] if self.owner else []
        for each in (*methods, *self.module.defined.values()):
            if each.name in names and each.name.startswith("_") and not each.name.startswith("__"):
                yield each


def _names(node: ast.AST, *, in_annotations: bool) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield node.attr
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns") and not in_annotations:
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST):
                yield from _names(each, in_annotations=in_annotations)


def check_connection(caller: str, hop: Hop) -> None:
    """The caller names the hop, and imports its module; or, both for the protocol's method that it goes through."""
    calling, called = Code.of(caller), Code.of(hop.name)
    seen = called
    if hop.through is not None:
        seen = Code.of(hop.through)
        assert seen.is_protocol, f"{hop.through} is not a protocol's method"
        assert called.owner is not None
        assert called.node.name == seen.node.name, f"{hop.name} does not implement {hop.through}"
    assert calling.calls(seen), f"{caller} does not name {hop.through or hop.name}"
    known = {calling.module.name, *calling.module.imports}
    assert seen.module.name in known, f"the module of {caller} does not import {seen.module.name}"


@dataclass(frozen=True)
class Called:
    name: str
    callers: frozenset[str]
    """All functions that were running."""


class Recording:
    """Calls of Frazil's functions in this thread, in their order."""

    def __init__(self, hops: list[Hop]) -> None:
        self._wanted = {hop.name for hop in hops}
        self.calls: list[Called] = []
        self.is_paused = False

    @contextmanager
    def running(self) -> Iterator[None]:
        before = sys.getprofile()
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(before)

    def paused(self, work: Callable[[], object]) -> None:
        self.is_paused = True
        try:
            work()
        finally:
            self.is_paused = False

    def _profile(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or self.is_paused or (name := _name(frame)) not in self._wanted:
            return
        callers: set[str] = set()
        above = frame.f_back
        while above is not None:
            callers.add(_name(above))
            above = above.f_back
        self.calls.append(Called(name, frozenset(callers)))

    def check(self, hops: list[Hop]) -> None:
        """The hops were called in this order, each while its caller was running."""
        at = 0
        for number, hop in enumerate(hops, 1):
            caller = hops[hop.caller].name if number > 1 and hop.is_running else None
            while at < len(self.calls) and not (
                self.calls[at].name == hop.name and (caller is None or caller in self.calls[at].callers)
            ):
                at += 1
            assert at < len(self.calls), (
                f"hop {number}, {hop.name}, was not called by {caller or 'any'} after the hops before"
            )
            at += 1


def _name(frame: FrameType) -> str:
    place = str(frame.f_globals.get("__name__", ""))
    # co_qualname is new in Python 3.11.
    return f"{place.removeprefix('frazil.')}:{frame.f_code.co_qualname}" if place.startswith("frazil.") else ""

"""A write followed through changes and rebased, with the conflicts that its checks find on the way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from frazil.commit.checking import examined
from frazil.commit.checks import Check, FileInspector
from frazil.commit.history import History
from frazil.commit.operations import Write
from frazil.commit.rebase import Rebased, rebase, unchanged
from frazil.commit.trace import trace_rows
from frazil.model import Change, Conflict
from unit.samples import metadata

HEAD = metadata()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Followed(Rebased):
    conflicts: tuple[Conflict, ...] = ()
    replaced_twice: tuple[Change, ...] = ()


def followed(write: Write, changes: Sequence[Change], inspector: FileInspector, checks: Iterable[Check]) -> Followed:
    """The write at the head, with the collisions that are conflicts for these checks."""
    wanted = frozenset(checks)
    trace = trace_rows(write, changes, inspector, against_predicates=Check.NOT_DELETED in wanted)
    return _with(
        rebase(write, trace, inspector),
        tuple(each for each in trace.collisions if each.check in wanted),
        trace.replaced_twice,
    )


def checked(write: Write, history: History, inspector: FileInspector) -> tuple[Rebased, tuple[Conflict, ...]]:
    """The write at the head, with all conflicts."""
    trace, conflicts = examined(write, history, inspector, HEAD)
    return (unchanged(write) if trace is None else rebase(write, trace, inspector)), conflicts


def _with(found: Rebased, conflicts: tuple[Conflict, ...], replaced_twice: tuple[Change, ...]) -> Followed:
    kept = {each.name: getattr(found, each.name) for each in fields(Rebased)}
    return Followed(**kept, conflicts=conflicts, replaced_twice=replaced_twice)

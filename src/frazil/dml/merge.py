"""A merge as a value: how source rows match rows of the table, and the clauses that apply to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pyroaring import BitMap64

from frazil.errors import InvalidInput
from frazil.model import DataFile

When = Literal["matched", "not matched", "not matched by source"]
Action = Literal["update", "delete", "insert"]


@dataclass(slots=True, eq=False)
class Source:
    """The source rows of one merge: read once, however often the merge is evaluated (rule P34)."""

    rows: object
    held: Any = None
    """The rows as the engine keeps them."""
    join: Any = None
    """What the engine prepared for matching them with a table of certain schemas."""
    matched: dict[str, BitMap64] = field(default_factory=dict)
    """Data file → the source rows that matched a row of it, when the merge was evaluated last."""
    inserted: tuple[DataFile, ...] = ()
    """The files with the rows inserted then, for source rows without a match."""


@dataclass(frozen=True, slots=True, eq=False)
class Clause:
    """What to do with rows of one kind that fulfil a condition. The first clause whose condition holds applies."""

    when: When
    action: Action
    values: Mapping[str, object] | None = None
    """Column → new value; None with an update or insert: every column that the source has by that name."""
    condition: object = None
    """SQL text or a Spark Column; None: always."""
    leave_out: frozenset[str] = frozenset()
    """Columns that "every column" does not mean."""

    def __str__(self) -> str:
        condition = "" if self.condition is None else f" and {self.condition}"
        if self.action == "delete":
            done = "delete"
        elif self.values is None:
            done = f"{self.action} *" + (f" except ({', '.join(sorted(self.leave_out))})" if self.leave_out else "")
        else:
            done = f"{self.action} {', '.join(map(str, self.values))}"
        return f"when {self.when}{condition} then {done}"


@dataclass(frozen=True, slots=True, eq=False)
class Merge:
    """A merge without its source rows."""

    on: object
    """SQL text, a Spark Column, or a list of columns that both sides have."""
    clauses: tuple[Clause, ...]
    source_alias: str = "source"
    target_alias: str = "target"
    case_sensitive: bool = False

    def of(self, when: When) -> list[Clause]:
        return [each for each in self.clauses if each.when == when]

    @property
    def given(self) -> list[object]:
        """Every condition and value."""
        values = [value for each in self.clauses for value in (each.values or {}).values()]
        return [self.on, *(each.condition for each in self.clauses), *values]

    def check(self) -> None:
        """Raises InvalidInput for errors that do not depend on the rows."""
        if not self.clauses:
            raise InvalidInput(
                "The merge has no clauses",
                advice="Add one, for instance .when_matched_update_all() or .when_not_matched_insert_all()",
            )
        if self.source_alias.lower() == self.target_alias.lower():
            raise InvalidInput(f"Source and target are both called {self.source_alias!r}")
        kinds: tuple[When, ...] = ("matched", "not matched", "not matched by source")
        for when in kinds:
            clauses = self.of(when)
            for each in clauses[:-1]:
                if each.condition is None:
                    raise InvalidInput(
                        f"The clause '{each}' has no condition, so the clauses after it are never reached",
                        advice="Give it a condition, or put it last",
                    )


def checked_on(on: object, keys: Sequence[str]) -> object:
    """What rows are matched by: as given, or the table's keys."""
    if on is not None:
        if isinstance(on, Sequence) and not isinstance(on, str) and not all(isinstance(each, str) for each in on):
            raise InvalidInput(f"on is a condition or a list of column names, not {on!r}")
        if isinstance(on, Sequence) and not on:
            raise InvalidInput("on is empty", advice='Write on=["id"], or on="target.id = source.id"')
        return on
    if not keys:
        raise InvalidInput(
            "The table has no key columns, so the merge needs on",
            advice='Write on=["id"], or on="target.id = source.id"',
        )
    return list(keys)

"""A merge bound to the columns of its table and its source. Both engines evaluate what this finds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import NestedField, StructType

from frazil.dml.assignments import check_apart, find_column, is_column
from frazil.dml.merge import Clause, Merge
from frazil.errors import InvalidInput
from frazil.expr import BOOL, Call, Column, Filter, Node, did_you_mean, parse_filter
from frazil.format.schemas import match_name

_TARGET_ID, _SOURCE_ID, _FIRST_SOURCE_ID = 1_999_998, 1_999_999, 2_000_000
_UNSTABLE = (
    "rand",
    "randn",
    "random",
    "randstr",
    "uniform",
    "uuid",
    "shuffle",
    "monotonically_increasing_id",
    "spark_partition_id",
)
Path = tuple[NestedField, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """``target.a = source.b``: a column of the table by its id, and the source's by name."""

    field_id: int
    source: Column
    test: Call


@dataclass(frozen=True)
class BoundMerge:
    """A plan with its condition parsed, over one schema that has a struct for each side, named by its alias."""

    plan: Merge
    target: Schema
    source: Schema
    both: Schema
    on: Filter | None
    """None: a Spark Column, which cannot be analysed."""

    @staticmethod
    def of(plan: Merge, target: Schema, source: Schema) -> BoundMerge:
        """``source``: the source's columns, with any ids. Raises InvalidInput for a condition that does not fit."""
        ids = itertools.count(_FIRST_SOURCE_ID)
        source = assign_fresh_schema_ids(source, lambda: next(ids))
        both = Schema(
            NestedField(_TARGET_ID, plan.target_alias, StructType(*target.fields), required=False),
            NestedField(_SOURCE_ID, plan.source_alias, StructType(*source.fields), required=False),
        )
        return BoundMerge(plan, target, source, both, _matching_condition(plan, both))

    @cached_property
    def pairs(self) -> list[Pair]:
        """The equalities between a column of the table and one of the source that every match fulfils."""
        found = []
        for test in () if self.on is None else conjuncts(self.on.condition):
            pair = self._pair(test)
            if pair is not None:
                found.append(pair)
        return found

    def _pair(self, test: Node) -> Pair | None:
        if not (isinstance(test, Call) and test.op == "eq" and test.type == BOOL):
            return None
        left, right = test.args
        if not (isinstance(left, Column) and isinstance(right, Column)):
            return None
        if self.is_source(left):
            left, right = right, left
        return Pair(left.field_id, right, test) if self.is_source(right) and not self.is_source(left) else None

    def is_source(self, column: Column) -> bool:
        return column.path[0] == _SOURCE_ID

    def scopes(self, clause: Clause) -> tuple[str, ...]:
        """The sides that a clause has a row of."""
        target, source = self.plan.target_alias, self.plan.source_alias
        return {"matched": (target, source), "not matched": (source,)}.get(clause.when, (target,))

    def check_clauses(self) -> None:
        """Raises InvalidInput for clauses whose texts do not fit; the values are checked by the engine."""
        for clause in self.plan.clauses:
            if clause.condition is not None:
                refuse_unstable(str(clause.condition))
                if not is_column(clause.condition):
                    self.condition(clause)

    def condition(self, clause: Clause) -> Filter:
        """The condition of a clause that has one, as text."""
        text: str = clause.condition  # type: ignore[assignment]
        found = parse_filter(text, self.both, case_sensitive=self.plan.case_sensitive, scopes=self.scopes(clause))
        self.check_sides(clause, found.columns, f"The condition of '{clause}'")
        return found

    def check_sides(self, clause: Clause, columns: Sequence[Column], what: str) -> None:
        """Raises InvalidInput for a column of a side that the clause has no row of."""
        scopes = self.scopes(clause)
        for column in columns:
            alias = self.both.find_field(column.path[0]).name
            if alias not in scopes:
                raise InvalidInput(
                    f"{what} names {column.name}, but the clause has no {alias} row",
                    advice=f"Use only columns of {scopes[0]}",
                )

    def assignments(self, clause: Clause) -> list[tuple[Path, object]]:
        """For each column that the clause sets, where it is and what it was given."""
        plan = self.plan
        given: Mapping[str, object]
        if clause.values is None:
            given = self._all_columns(clause)
        elif not isinstance(clause.values, Mapping) or not clause.values:
            raise InvalidInput(f"The clause '{clause}' names no column", advice="Write {'n': 'source.n'}")
        else:
            given = {_unqualified(name, plan.target_alias): each for name, each in clause.values.items()}
        found = [(find_column(name, self.target, plan.case_sensitive), each) for name, each in given.items()]
        check_apart([path for path, _ in found])
        return found

    def _all_columns(self, clause: Clause) -> dict[str, object]:
        names = [each.name for each in self.source.fields]
        left_out = {each.lower() for each in clause.leave_out}
        found: dict[str, object] = {}
        for field in self.target.fields:
            if field.name.lower() in left_out:
                continue
            there = match_name(field.name, names)
            if there is None:
                raise InvalidInput(
                    f"The source lacks the column {field.name!r}, which '{clause}' sets",
                    advice=did_you_mean(field.name, names) or f"Add it, or name it in except_cols=[{field.name!r}]",
                )
            found[f"`{field.name}`"] = f"`{self.plan.source_alias}`.`{there}`"
        return found

    @property
    def needs_matches(self) -> bool:
        """Whether the clauses depend on which rows match."""
        return bool(self.plan.of("matched") or self.plan.of("not matched"))

    @property
    def allows_repeats(self) -> bool:
        """Whether several source rows may match one row of the table: nothing is changed, or the row is deleted."""
        clauses = self.plan.of("matched")
        return not clauses or (len(clauses) == 1 and clauses[0].action == "delete" and clauses[0].condition is None)

    def explain(self, table: str) -> str:
        plan = self.plan
        by_key = ", ".join(str(self.target.find_column_name(pair.field_id)) for pair in self.pairs)
        lines = [
            f"Merge into {table}",
            f"  on         {plan.on if self.on is None else self.on.text}",
            f"  by key     {by_key or 'none: every row of the table is compared'}",
            *(f"  clause {index}   {each}" for index, each in enumerate(plan.clauses)),
        ]
        return "\n".join(lines)


def repeated(table: str, count: int) -> InvalidInput:
    """Two source rows would change one row of the table, and their order is undefined."""
    return InvalidInput(
        f"A row of {table} matches {count} rows of the source, and a clause would change it for each of them",
        advice="Keep one source row for each row it matches, or tighten the condition",
    )


def conjuncts(node: Node) -> Iterator[Node]:
    """The conditions that all hold where this one does."""
    if isinstance(node, Call) and node.op == "and":
        for each in node.args:
            yield from conjuncts(each)
    else:
        yield node


def _matching_condition(plan: Merge, both: Schema) -> Filter | None:
    on = plan.on
    if isinstance(on, str):
        refuse_unstable(on)
        scopes = (plan.target_alias, plan.source_alias)
        return parse_filter(on, both, case_sensitive=plan.case_sensitive, scopes=scopes)
    if is_column(on):
        refuse_unstable(str(on))
        return None
    if not isinstance(on, Sequence):
        raise InvalidInput(f"on is a condition or a list of column names, not {on!r}")
    text = " and ".join(f"`{plan.target_alias}`.{_quoted(each)} = `{plan.source_alias}`.{_quoted(each)}" for each in on)
    return parse_filter(text, both, case_sensitive=plan.case_sensitive)


def refuse_unstable(text: str) -> None:
    """Raises InvalidInput for a condition whose value differs from run to run."""
    lowered = text.lower()
    for name in _UNSTABLE:
        at = lowered.find(f"{name}(")
        if at == 0 or (at > 0 and not (lowered[at - 1].isalnum() or lowered[at - 1] == "_")):
            raise InvalidInput(
                f"The condition uses {name}(), which returns a different value each time",
                advice="Compute it in a column of the source, which runs once, and use that column",
            )


def _quoted(name: str) -> str:
    return name if "`" in name else ".".join(f"`{part}`" for part in name.split("."))


def _unqualified(name: str, alias: str) -> str:
    head, dot, rest = str(name).partition(".")
    return rest if dot and head.strip("`").lower() == alias.lower() else str(name)

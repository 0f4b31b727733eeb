"""Filters and expressions: SQL text bound to a table's schema, and what can be asked of it.

A filter is a Spark SQL condition on one row of one table. Its column names are bound to field ids when it is parsed
(rule P16), so a column that is renamed or widened later is still the same column. Timestamps without a zone are UTC,
whatever the session's time zone is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType

from frazil.errors import InvalidInput
from frazil.expr.evaluate import Inputs, evaluate, selected, spread
from frazil.expr.facts import Tree
from frazil.expr.nodes import BOOL, NULL, TRUE, Call, Column, DataType, Literal, Node, type_name
from frazil.expr.params import as_sql, params_of, without_values
from frazil.expr.prune import reach
from frazil.expr.rebind import RoundingChanged, widened
from frazil.format.evolution import can_widen


@dataclass(frozen=True)
class Filter:
    """A condition that selects the rows for which it is TRUE, and not those for which it is NULL."""

    text: str
    schema: Schema
    """The schema in which column names are looked up when rows are filtered."""
    condition: Node
    case_sensitive: bool = False
    parsed_with: Schema | None = None
    """The schema with which the text was parsed, where it differs from ``schema``."""
    built: bool = False
    """The condition was built from values instead of SQL; ``text`` only describes it."""

    @property
    def is_true(self) -> bool:
        """Whether it selects every possible row."""
        return self.must is True

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns it reads, each once."""
        return tuple({column.field_id: column for column in _columns_of(self.condition)}.values())

    @cached_property
    def field_ids(self) -> frozenset[int]:
        return frozenset(column.field_id for column in self.columns)

    @cached_property
    def may(self) -> Tree:
        """Inclusive projection: holds on every selected row, and possibly on others."""
        return reach(self.condition, "true", True)

    @cached_property
    def must(self) -> Tree:
        """Strict projection: holds on selected rows only, possibly not on all of them."""
        return reach(self.condition, "true", False)

    def mask(self, rows: pa.RecordBatch | pa.Table) -> pa.BooleanArray:
        """True for each selected row. The rows have the schema's columns by name, at least those the filter reads."""
        return self.mask_columns(rows.num_rows, lambda column: find_array(rows, self.schema, column))

    def mask_columns(self, length: int, fetch: Callable[[Column], pa.Array[Any]]) -> pa.BooleanArray:
        """The same for rows whose columns ``fetch`` returns."""
        fetched: dict[int, pa.Array[Any]] = {}

        def once(column: Column) -> pa.Array[Any]:
            if column.field_id not in fetched:
                fetched[column.field_id] = fetch(column)
            return fetched[column.field_id]

        with without_values(self.text, "filter"):
            return selected(self.condition, Inputs(length, once))

    @property
    def literal_text(self) -> str | None:
        """The text with its parameters written out; None: no text has the same meaning."""
        params = params_of(self.text)
        if self.built or not params:
            return None if self.built else self.text
        from frazil.expr.parse import without_placeholders  # loads sqlglot

        text = without_placeholders(self.text, {name: as_sql(value) for name, value in params.items()})
        parsed_with = self.parsed_with or self.schema
        try:
            again = parse_filter(text, parsed_with, case_sensitive=self.case_sensitive).rebound(self.schema)
        except InvalidInput:
            return None
        return text if again.condition == self.condition else None

    def rebound(self, schema: Schema) -> Filter:
        """The same filter for a later schema (P16): it selects the same rows as before.

        Renamed and widened columns are followed. Raises InvalidInput for a column that was dropped, or whose type
        changed in another way.
        """
        if self.schema is schema or self.schema == schema:
            return self
        wider: dict[int, IcebergType] = {}
        for column in self.columns:
            found = self._type_in(schema, column)
            if found == column.source:
                continue
            if not can_widen(column.source, found):
                raise self._retyped(f"The column {column.name}", f"changed its type from {column.source} to {found}")
            wider[column.field_id] = found
        try:
            condition = widened(self.condition, wider) if wider else self.condition
        except RoundingChanged as error:
            names = ", ".join(column.name for column in self.columns if column.field_id in wider)
            raise self._retyped(names, "got more digits, with which results are rounded otherwise") from error
        return Filter(self.text, schema, condition, self.case_sensitive, self.parsed_with or self.schema, self.built)

    def _type_in(self, schema: Schema, column: Column) -> IcebergType:
        try:
            return schema.find_field(column.field_id).field_type
        except ValueError as error:
            raise InvalidInput(
                f"The column {column.name} of the filter {self.text!r} was dropped from the table"
            ) from error

    def _retyped(self, what: str, happened: str) -> InvalidInput:
        return InvalidInput(f"{what} of the filter {self.text!r} {happened}", advice="Create the filter again")

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.built:
            return Filter, (self.text, self.schema, self.condition, self.case_sensitive, self.parsed_with, True)
        return _restore_filter, (self.text, self.parsed_with or self.schema, self.schema, self.case_sensitive)


def _restore_filter(text: str, parsed_with: Schema, schema: Schema, case_sensitive: bool) -> Filter:
    found = parse_filter(text, parsed_with, case_sensitive=case_sensitive)
    return found if schema == parsed_with else found.rebound(schema)


def parse_filter(
    text: str | None, schema: Schema, *, case_sensitive: bool = False, scopes: Sequence[str] = ()
) -> Filter:
    """A condition in Spark SQL; None selects every row. Raises InvalidInput with the place and a correction.

    ``scopes``: as for ``parse_expression``.
    """
    if text is None:
        return Filter("true", schema, TRUE, case_sensitive)
    if not isinstance(text, str):
        raise InvalidInput(f"A filter is SQL text, not {type(text).__name__}", advice='Write where="id = 3"')
    if not text.strip():
        raise InvalidInput("The filter is empty", advice='To select every row, omit where or write where="true"')
    from frazil.expr.bind import bind  # loads sqlglot

    condition = bind(text, schema, case_sensitive, tuple(scopes), what="filter")
    if condition.type == NULL:
        condition = Literal(None, BOOL)
    if condition.type != BOOL:
        raise InvalidInput(
            f"The filter {text!r} is a value of type {type_name(condition.type)}, not a condition",
            advice='Compare it with something, as in "id = 3"',
        )
    return Filter(text, schema, condition, case_sensitive)


# Values


@dataclass(frozen=True, slots=True)
class Lit:
    """A Python value where a string would be parsed as SQL."""

    value: object


def lit(value: object) -> Lit:
    """``lit("n + 1")`` is the string "n + 1", not a sum."""
    return value if isinstance(value, Lit) else Lit(value)


@dataclass(frozen=True)
class Expression:
    """A SQL expression over one row of one table, bound to field ids as filters are."""

    text: str
    schema: Schema
    node: Node
    case_sensitive: bool = False

    @property
    def type(self) -> DataType:
        """The Arrow type of its values, one for each family of SQL types."""
        return self.node.type

    @cached_property
    def field_ids(self) -> frozenset[int]:
        return frozenset(column.field_id for column in _columns_of(self.node))

    def evaluate(self, rows: pa.RecordBatch | pa.Table) -> pa.Array[Any]:
        """Its value on each row. The rows have the schema's columns by name, at least those the expression reads."""
        inputs = Inputs(rows.num_rows, lambda column: find_array(rows, self.schema, column))
        with without_values(self.text, "expression"):
            found: pa.Array[Any] = spread(evaluate(self.node, inputs), rows.num_rows)
        return found

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_expression, (self.text, self.schema, self.case_sensitive)


def _restore_expression(text: str, schema: Schema, case_sensitive: bool) -> Expression:
    return parse_expression(text, schema, case_sensitive=case_sensitive)


def parse_expression(
    text: str, schema: Schema, *, case_sensitive: bool = False, scopes: Sequence[str] = ()
) -> Expression:
    """A value in Spark SQL. Raises InvalidInput with the place and a correction.

    ``scopes``: structs of the schema whose fields may be named without a qualifier, as those of a merge's two tables.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"An expression is SQL text, not {type(text).__name__}", advice='For instance "n + 1"')
    if not text.strip():
        raise InvalidInput("The expression is empty", advice="Write '' in single quotes for an empty string")
    from frazil.expr.bind import bind  # loads sqlglot

    return Expression(
        text, schema, bind(text, schema, case_sensitive, tuple(scopes), what="expression"), case_sensitive
    )


# Columns


def _columns_of(node: Node) -> list[Column]:
    found: list[Column] = []
    stack = [node]
    while stack:
        each = stack.pop()
        if isinstance(each, Column):
            found.append(each)
        elif isinstance(each, Call):
            stack.extend(each.args)
    return found


def find_array(rows: pa.RecordBatch | pa.Table, schema: Schema, column: Column) -> pa.Array[Any]:
    names = [schema.find_field(field_id).name for field_id in column.path]
    position = rows.schema.get_field_index(names[0])
    if position < 0:
        raise InvalidInput(f"The rows lack the column {names[0]!r}, which the SQL text reads")
    array: Any = rows.column(position)
    for name in names[1:]:
        array = pc.struct_field(array, [name])
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array

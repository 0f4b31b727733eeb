"""SQL text to a filter. Conditions and expressions are parsed here and nowhere else; statements are read in sql/.

A filter is a Spark SQL condition on one row of one table. Names are bound to field ids when it is parsed (rule P16), so
a column renamed or widened later is still the same column. Text without a zone is UTC, whatever any session says.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, NestedField, StructType, TimestampType
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from frazil.errors import InvalidInput
from frazil.expr import facts as pruning
from frazil.expr.cast import CastError, Target, find_cast, parse_date, parse_time, parse_timestamp
from frazil.expr.evaluate import DATE_PARTS, EMPTY, Frame, arithmetic_type, evaluate, internal, selected, spread
from frazil.expr.nodes import (
    BINARY,
    BOOL,
    DATE,
    DOUBLE,
    INT,
    INT_MAX,
    INT_MIN,
    MAX_PRECISION,
    NESTED,
    NULL,
    TEXT,
    TIME,
    TIMESTAMP,
    TRUE,
    UUID,
    Call,
    Column,
    DataType,
    Literal,
    Node,
    common_type,
    is_numeric,
    number_literal,
    sql_type,
    type_name,
)
from frazil.expr.prune import reach
from frazil.expr.rebind import OtherRounding, widened
from frazil.format.evolution import can_widen

SUPPORTED = (
    "comparisons, <=>, IN, BETWEEN, LIKE, ILIKE, RLIKE, IS [NOT] NULL/TRUE/FALSE, AND, OR, NOT, + - * / % div, CAST, "
    "TRY_CAST, CASE, if, coalesce, nvl, nullif, abs, date, to_date, year, quarter, month, day, hour, minute, second, "
    "dayofweek, weekday, dayofyear, weekofyear, upper, lower, length, substring, left, trim, ltrim, rtrim, concat, ||, "
    "startswith, endswith, contains, isnull, isnotnull, isnan"
)


@dataclass(frozen=True)
class Filter:
    """A condition that selects rows: those it is TRUE for, not those it is NULL for."""

    text: str
    schema: Schema
    """The schema the names of columns are looked up in when rows are looked at."""
    condition: Node
    case_sensitive: bool = False
    parsed_with: Schema | None = None
    """The schema the text was parsed with, where that is another one."""
    built: bool = False
    """The condition was made without SQL; ``text`` only describes it."""

    @property
    def is_true(self) -> bool:
        """It selects every row whatever the row holds."""
        return self.must is True

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns it reads, each once."""
        return tuple({column.field_id: column for column in _columns_of(self.condition)}.values())

    @cached_property
    def field_ids(self) -> frozenset[int]:
        return frozenset(column.field_id for column in self.columns)

    @cached_property
    def may(self) -> pruning.Tree:
        """Holds on every row the filter selects (and on others)."""
        return reach(self.condition, "true", True)

    @cached_property
    def must(self) -> pruning.Tree:
        """Holds only on rows the filter selects (and not on all of them)."""
        return reach(self.condition, "true", False)

    @cached_property
    def inclusive(self) -> BooleanExpression:
        """``may`` for PyIceberg's evaluators: a file it rules out holds no selected row."""
        return pruning.to_pyiceberg(self.may, self.schema, unknown=True)

    @cached_property
    def strict(self) -> BooleanExpression:
        """``must`` for PyIceberg's evaluators: a file all of whose rows match it holds selected rows only."""
        return pruning.to_pyiceberg(self.must, self.schema, unknown=False)

    def mask(self, rows: pa.RecordBatch | pa.Table) -> pa.BooleanArray:
        """True for each row it selects. The rows have the schema's columns by name, at least those it reads."""
        return self.mask_columns(rows.num_rows, lambda column: _find_array(rows, self.schema, column))

    def mask_columns(self, length: int, fetch: Callable[[Column], pa.Array[Any]]) -> pa.BooleanArray:
        """The same, for rows whose columns are found some other way than by name."""
        kept: dict[int, pa.Array[Any]] = {}

        def once(column: Column) -> pa.Array[Any]:
            if column.field_id not in kept:
                kept[column.field_id] = fetch(column)
            return kept[column.field_id]

        return selected(self.condition, Frame(length, once))

    def rebound(self, schema: Schema) -> Filter:
        """The same filter for a later schema (P16): it selects the rows that it selected before.

        Columns that were renamed or widened follow. Raises InvalidInput for one that was dropped or retyped otherwise.
        """
        if self.schema is schema or self.schema == schema:
            return self
        wider: dict[int, IcebergType] = {}
        for column in self.columns:
            found = self._found(column, schema)
            if found == column.source:
                continue
            if not can_widen(column.source, found):
                raise self._retyped(f"The column {column.name}", f"changed its type from {column.source} to {found}")
            wider[column.field_id] = found
        try:
            condition = widened(self.condition, wider) if wider else self.condition
        except OtherRounding as error:
            names = ", ".join(column.name for column in self.columns if column.field_id in wider)
            raise self._retyped(names, "got more digits, with which results are rounded otherwise") from error
        return Filter(self.text, schema, condition, self.case_sensitive, self.parsed_with or self.schema, self.built)

    def _found(self, column: Column, schema: Schema) -> IcebergType:
        try:
            return schema.find_field(column.field_id).field_type
        except ValueError as error:
            raise InvalidInput(
                f"The column {column.name} of the filter {self.text!r} was dropped from the table"
            ) from error

    def _retyped(self, what: str, happened: str) -> InvalidInput:
        return InvalidInput(f"{what} of the filter {self.text!r} {happened}", advice="Make the filter again")

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.built:
            return Filter, (self.text, self.schema, self.condition, self.case_sensitive, self.parsed_with, True)
        return _restore, (self.text, self.parsed_with or self.schema, self.schema, self.case_sensitive)


def _restore(text: str, parsed_with: Schema, schema: Schema, case_sensitive: bool) -> Filter:
    found = parse_filter(text, parsed_with, case_sensitive=case_sensitive)
    return found if schema == parsed_with else found.rebound(schema)


def parse_filter(
    text: str | None, schema: Schema, *, case_sensitive: bool = False, scopes: Sequence[str] = ()
) -> Filter:
    """A condition in Spark SQL, or None for every row. Raises InvalidInput: the place, and what to write instead.

    ``scopes``: as for ``parse_expression``.
    """
    if text is None:
        return Filter("true", schema, TRUE, case_sensitive)
    if not isinstance(text, str):
        raise InvalidInput(f"A filter is SQL text, not {type(text).__name__}", advice='Write where="id = 3"')
    if not text.strip():
        raise InvalidInput("The filter is empty", advice='Leave where out, or write where="true", for every row')
    tree = _parse(text)
    condition = _Binder(text, schema, case_sensitive, tuple(scopes)).bind(tree)
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
    """A Python value that stands for itself where a text would be read as SQL."""

    value: object


def lit(value: object) -> Lit:
    """``lit("n + 1")`` is the text "n + 1", not a sum."""
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
        """Its value on each row. The rows have the schema's columns by name, at least those it reads."""
        frame = Frame(rows.num_rows, lambda column: _find_array(rows, self.schema, column))
        with _of_an_expression():
            found: pa.Array[Any] = spread(evaluate(self.node, frame), rows.num_rows)
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
    """A value in Spark SQL. Raises InvalidInput: the place, and what to write instead.

    ``scopes``: structs of the schema whose fields may be named without them, as the two tables of a merge are.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"An expression is SQL text, not {type(text).__name__}", advice='For instance "n + 1"')
    if not text.strip():
        raise InvalidInput("The expression is empty", advice="Write '' in single quotes for an empty text")
    with _of_an_expression():
        node = _Binder(text, schema, case_sensitive, tuple(scopes)).bind(_parse(text))
    return Expression(text, schema, node, case_sensitive)


@contextlib.contextmanager
def _of_an_expression() -> Iterator[None]:
    """Parser and evaluation speak of filters, which is what they mostly see."""
    try:
        yield
    except InvalidInput as error:
        said = error.problem.replace("he filter", "he expression").replace("a filter", "an expression")
        raise InvalidInput(said, evidence=error.evidence, advice=error.advice) from error


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


def _find_array(rows: pa.RecordBatch | pa.Table, schema: Schema, column: Column) -> pa.Array[Any]:
    names = [schema.find_field(field_id).name for field_id in column.path]
    position = rows.schema.get_field_index(names[0])
    if position < 0:
        raise InvalidInput(f"The rows lack the column {names[0]!r}, which the filter reads")
    array: Any = rows.column(position)
    for name in names[1:]:
        array = pc.struct_field(array, [name])
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


# Text to sqlglot's tree


def _parse(text: str) -> exp.Expr:
    dialect = Spark()
    try:
        tokens = dialect.tokenize(_join_doubled_quotes(text, dialect.tokenize(text)))
        _refuse_double_quotes(text, tokens)
        _refuse_commands(text, tokens)
        trees = dialect.parser().parse(tokens, text)
    except SqlglotError as error:
        raise InvalidInput(f"The filter {text!r} is not valid SQL", evidence=_where_it_broke(error, text)) from error
    except (IndexError, KeyError, AttributeError, TypeError) as error:
        # sqlglot builds some functions without counting their arguments.
        raise InvalidInput(f"A function in the filter {text!r} lacks an argument") from error
    except RecursionError as error:
        raise InvalidInput(
            "The filter is nested too deeply", advice="Write long lists with IN instead of chained conditions"
        ) from error
    if len(trees) != 1 or trees[0] is None:
        raise InvalidInput(f"The filter {text!r} holds more than one statement", advice="Write one condition")
    return trees[0]


def _join_doubled_quotes(text: str, tokens: list[Token]) -> str:
    # Spark 4 reads 'it''s' as it's; sqlglot reads two texts side by side, which Spark would join to "its".
    for token, following in itertools.pairwise(tokens):
        touching = following.start == token.end + 1
        if touching and token.token_type == following.token_type == TokenType.STRING and text[token.end] == "'":
            text = text[: token.end] + "\\'" + text[following.start + 1 :]
    return text


def _refuse_double_quotes(text: str, tokens: list[Token]) -> None:
    for token in tokens:
        if token.token_type == TokenType.STRING and text[token.start] == '"':
            quoted = text[token.start : token.end + 1]
            raise InvalidInput(
                f"The filter has {quoted} in double quotes (position {token.start + 1}), read in two ways by engines",
                advice=f"Write '{token.text}' if it is text, `{token.text}` if it is a column",
            )


def _refuse_commands(text: str, tokens: list[Token]) -> None:
    # sqlglot would log the text of a statement it only half understands, and filters are personal data.
    if tokens and tokens[0].token_type in Spark.tokenizer_class.COMMANDS:
        raise InvalidInput(f"The filter {text!r} is a statement", advice='Write one condition, as in "id = 3"')


def _where_it_broke(error: SqlglotError, text: str) -> str:
    details = getattr(error, "errors", None)
    if not details:
        quotes = text.count("'") % 2 or text.count("`") % 2
        return "A quote is opened and not closed" if quotes else "It cannot be split into words"
    first = details[0]
    return f"It breaks at line {first.get('line')}, column {first.get('col')}, near {first.get('highlight')!r}"


# sqlglot's tree to ours

_COMPARE: dict[type[exp.Expr], str] = {
    exp.EQ: "eq",
    exp.NEQ: "ne",
    exp.LT: "lt",
    exp.LTE: "le",
    exp.GT: "gt",
    exp.GTE: "ge",
    exp.NullSafeEQ: "nseq",
}
_ARITHMETIC: dict[type[exp.Expr], str] = {
    exp.Add: "add",
    exp.Sub: "sub",
    exp.Mul: "mul",
    exp.Div: "div",
    exp.Mod: "mod",
    exp.IntDiv: "intdiv",
}
_PARTS: dict[type[exp.Expr], str] = {
    exp.Year: "year",
    exp.Quarter: "quarter",
    exp.Month: "month",
    exp.Day: "day",
    exp.DayOfMonth: "day",
    exp.Hour: "hour",
    exp.Minute: "minute",
    exp.Second: "second",
    exp.DayOfWeek: "dayofweek",
    exp.DayOfYear: "dayofyear",
    exp.WeekOfYear: "weekofyear",
}
_AFFIXES: dict[type[exp.Expr], str] = {
    exp.StartsWith: "starts",
    exp.EndsWith: "ends",
    exp.Contains: "contains",
}
_D = exp.DataType.Type
_TARGETS: dict[Any, Target] = {
    _D.BOOLEAN: Target(BOOL, "BOOLEAN"),
    _D.TINYINT: Target(INT, "TINYINT", -(2**7), 2**7 - 1),
    _D.SMALLINT: Target(INT, "SMALLINT", -(2**15), 2**15 - 1),
    _D.INT: Target(INT, "INT", -(2**31), 2**31 - 1),
    _D.BIGINT: Target(INT, "BIGINT", INT_MIN, INT_MAX),
    _D.FLOAT: Target(DOUBLE, "FLOAT", single=True),
    _D.DOUBLE: Target(DOUBLE, "DOUBLE"),
    _D.TEXT: Target(TEXT, "STRING"),
    _D.VARCHAR: Target(TEXT, "STRING"),
    _D.DATE: Target(DATE, "DATE"),
    _D.TIMESTAMP: Target(TIMESTAMP, "TIMESTAMP"),
    _D.TIMESTAMPTZ: Target(TIMESTAMP, "TIMESTAMP"),
    _D.TIMESTAMPLTZ: Target(TIMESTAMP, "TIMESTAMP"),
    _D.TIMESTAMPNTZ: Target(TIMESTAMP, "TIMESTAMP_NTZ"),
    _D.BINARY: Target(BINARY, "BINARY"),
}


class _Binder:
    """Turns one parsed filter into nodes with types and field ids."""

    def __init__(self, text: str, schema: Schema, case_sensitive: bool, scopes: tuple[str, ...] = ()) -> None:
        self._text = text
        self._schema = schema
        self._case_sensitive = case_sensitive
        self._scopes = scopes

    def bind(self, tree: exp.Expr) -> Node:
        if not isinstance(tree, exp.Expr):
            raise InvalidInput(f"A function in the filter {self._text!r} lacks an argument")
        for kind in type(tree).__mro__:
            handler = _BINDERS.get(kind)
            if handler is not None:
                return handler(self, tree)
        raise self._unsupported(tree)

    # Errors

    def _unsupported(self, tree: exp.Expr) -> InvalidInput:
        if isinstance(tree, exp.Query | exp.Subquery | exp.Exists) or tree.find(exp.Query) is not None:
            what = "a subquery, which a filter on one table cannot have"
        elif isinstance(tree, exp.AggFunc):
            what = f"the aggregate {tree.sql_name().lower()}, which needs many rows"
        elif isinstance(tree, exp.Anonymous):
            what = f"the function {tree.name}, which is not supported"
        elif isinstance(tree, exp.Func):
            what = f"the function {tree.sql_name().lower()}, which is not supported"
        else:
            what = f"{tree.sql(dialect='spark')!r}, which is not supported"
        return InvalidInput(f"The filter uses {what}{self._place(tree)}", advice=f"Supported are {SUPPORTED}")

    def _place(self, tree: exp.Expr) -> str:
        for each in tree.walk():
            if "start" in each.meta:
                return f", near position {each.meta['start'] + 1}"
        return ""

    def _sql(self, tree: exp.Expr) -> str:
        return repr(tree.sql(dialect="spark"))

    def _part(self, tree: exp.Expr, name: str) -> Any:
        if tree.args.get(name) is None:
            raise InvalidInput(f"{self._sql(tree)} in the filter lacks an argument{self._place(tree)}")
        return tree.args[name]

    # Columns and constants

    def column(self, tree: exp.Column | exp.Dot) -> Node:
        parts = _name_parts(tree)
        if parts is None:
            raise self._unsupported(tree)
        fields: tuple[NestedField, ...] = self._schema.fields
        path: list[NestedField] = []
        for name in self._qualified(parts):
            found = self._match(name, fields)
            if found is None:
                raise self._unknown(parts, path, fields)
            path.append(found)
            fields = found.field_type.fields if isinstance(found.field_type, StructType) else ()
        leaf = path[-1]
        names = ".".join(field.name for field in path)
        ids = tuple(field.field_id for field in path)
        return Column(leaf.field_id, ids, names, leaf.field_type, sql_type(leaf.field_type))

    def _qualified(self, parts: list[str]) -> list[str]:
        """The name with its scope in front, where it was left out and only one has such a field."""
        if not self._scopes or self._match(parts[0], self._schema.fields) is not None:
            return parts
        holding = [
            scope
            for scope in self._scopes
            if isinstance(struct := self._schema.find_type(scope), StructType) and self._match(parts[0], struct.fields)
        ]
        if len(holding) > 1:
            both = " and ".join(f"{scope}.{parts[0]}" for scope in holding)
            raise InvalidInput(f"The column {parts[0]!r} in the filter {self._text!r} may be {both}")
        return [*holding, *parts]

    def _match(self, name: str, fields: tuple[NestedField, ...]) -> NestedField | None:
        exact = [field for field in fields if field.name == name]
        loose = [field for field in fields if field.name.lower() == name.lower()]
        if self._case_sensitive or not loose:
            return exact[0] if exact else None
        if len(loose) > 1:
            raise InvalidInput(
                f"The name {name!r} in the filter fits several columns: {', '.join(field.name for field in loose)}",
                advice="Pass case_sensitive=True and write the name as the table spells it",
            )
        return loose[0]

    def _unknown(self, parts: list[str], path: list[NestedField], fields: tuple[NestedField, ...]) -> InvalidInput:
        prefix = ".".join(field.name for field in path)
        known = [field.name for field in fields]
        wrong = parts[len(path)]
        advice = did_you_mean(wrong, known)
        if self._match(".".join(parts), self._schema.fields) is not None:
            advice = f"Write `{'.'.join(parts)}` in back-ticks, for its name has a dot"
        elif len(parts) == 1 and "." not in wrong:
            advice += f"; if {wrong} is meant as text, write '{wrong}'" if not advice.startswith("Did") else ""
        where = f" in {prefix}" if prefix else ""
        return InvalidInput(
            f"The filter names the column {'.'.join(parts)!r}, and there is no {wrong!r}{where}", advice=advice
        )

    def literal(self, tree: exp.Literal) -> Node:
        return Literal(tree.this, TEXT) if tree.is_string else number_literal(tree.this)

    def hex_string(self, tree: exp.HexString) -> Node:
        digits = str(tree.this)
        try:
            return Literal(bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2)), BINARY)
        except ValueError as error:
            raise InvalidInput(f"X'{digits}' in the filter is not hexadecimal") from error

    # Logic

    def connective(self, tree: exp.Connector) -> Node:
        op = "and" if isinstance(tree, exp.And) else "or"
        # A loop, not recursion: people write thousands of ORs.
        parts: list[exp.Expr] = []
        stack: list[exp.Expr] = [tree]
        while stack:
            each = stack.pop()
            if type(each) is type(tree):
                stack.extend((each.args["expression"], each.this))
            else:
                parts.append(each)
        return Call(op, tuple(self._condition(part) for part in parts), BOOL)

    def _condition(self, tree: exp.Expr) -> Node:
        node = self.bind(tree)
        if node.type not in (BOOL, NULL):
            raise InvalidInput(
                f"{self._sql(tree)} in the filter is {type_name(node.type)}, and a condition is wanted there",
                advice="Compare it with something",
            )
        return node

    def negation(self, tree: exp.Not) -> Node:
        return Call("not", (self._condition(tree.this),), BOOL)

    def is_something(self, tree: exp.Is) -> Node:
        what = self._part(tree, "expression")
        if isinstance(what, exp.Null):
            return Call("isnull", (self.bind(tree.this),), BOOL)
        if isinstance(what, exp.Boolean):
            return Call("is", (self._condition(tree.this),), BOOL, bool(what.this))
        raise self._unsupported(tree)

    # Comparison

    def comparison(self, tree: exp.Binary) -> Node:
        return self._compare(
            _COMPARE[type(tree)], self.bind(tree.this), self.bind(self._part(tree, "expression")), tree
        )

    def distinct(self, tree: exp.Binary) -> Node:
        return Call(
            "not", (self._compare("nseq", self.bind(tree.this), self.bind(self._part(tree, "expression")), tree),), BOOL
        )

    def _compare(self, op: str, left: Node, right: Node, tree: exp.Expr) -> Node:
        left, right = self._agree((left, right), tree)
        return _folded(Call(op, (left, right), BOOL, common_type((left, right), self._sql(tree))))

    def _agree(self, nodes: tuple[Node, ...], tree: exp.Expr) -> tuple[Node, ...]:
        """Text constants become what they are compared with: dates, timestamps, times, uuids."""
        nested = next((node for node in nodes if node.type == NESTED), None)
        if nested is not None:
            raise InvalidInput(
                f"{self._sql(tree)} in the filter looks into a nested column",
                advice="Name one of its fields, as in a.b = 1; lists and maps can only be asked IS NULL",
            )
        other = next((node for node in nodes if node.type in (DATE, TIMESTAMP, TIME, UUID)), None)
        if other is None:
            return nodes
        zoned = not any(isinstance(node, Column) and isinstance(node.source, TimestampType) for node in nodes)
        return tuple(self._reread(node, other.type, zoned, tree) for node in nodes)

    def _reread(self, node: Node, kind: DataType, zoned: bool, tree: exp.Expr) -> Node:
        if not isinstance(node, Literal) or node.type != TEXT:
            return node
        readers: dict[DataType, Callable[[str], Any]] = {
            DATE: parse_date,
            TIMESTAMP: lambda text: parse_timestamp(text, zoned=zoned),
            TIME: parse_time,
            UUID: lambda text: uuid.UUID(text).bytes,
        }
        try:
            return Literal(readers[kind](node.value), kind)
        except (CastError, ValueError) as error:
            raise InvalidInput(
                f"{node.value!r} in the filter is compared with a {type_name(kind)}",
                evidence=f"{error}, in {self._sql(tree)}",
                advice=_EXAMPLES[kind],
            ) from error

    def between(self, tree: exp.Between) -> Node:
        subject = self.bind(tree.this)
        low = self._compare("ge", subject, self.bind(self._part(tree, "low")), tree)
        high = self._compare("le", subject, self.bind(self._part(tree, "high")), tree)
        return Call("and", (low, high), BOOL)

    def membership(self, tree: exp.In) -> Node:
        members = tree.args.get("expressions") or []
        if not members or any(isinstance(each, exp.Query | exp.Subquery) for each in members):
            raise self._unsupported(tree)
        nodes = self._agree((self.bind(tree.this), *(self.bind(each) for each in members)), tree)
        return _folded(Call("in", nodes, BOOL, common_type(nodes, self._sql(tree))))

    def is_nan(self, tree: exp.IsNan) -> Node:
        return Call("isnan", (self._number(tree.this),), BOOL)

    # Patterns

    def like(self, tree: exp.Expr) -> Node:
        escape = "\\"
        if isinstance(tree, exp.Escape):
            escape, tree = self._constant_text(self._part(tree, "expression"), "ESCAPE"), tree.this
            if len(escape) != 1:
                raise InvalidInput("ESCAPE in the filter wants one character")
        subject = self._text_node(tree.this)
        pattern = self._constant_text(self._part(tree, "expression"), "LIKE")
        if isinstance(tree, exp.ILike):
            subject, pattern = _folded(Call("lower", (subject,), TEXT)), pattern.lower()
        fixed, regex, shape = _like_pattern(pattern, escape)
        if shape == "equal":
            return self._compare("eq", subject, Literal(fixed, TEXT), tree)
        args = (subject, Literal(fixed, TEXT), Literal(shape == "prefix", BOOL))
        return _folded(Call("matches", args, BOOL, regex))

    def rlike(self, tree: exp.RegexpLike) -> Node:
        pattern = self._constant_text(self._part(tree, "expression"), "RLIKE")
        try:
            pc.match_substring_regex(pa.scalar("", TEXT), pattern=pattern)
        except pa.ArrowInvalid as error:
            raise InvalidInput(
                f"The pattern {pattern!r} in the filter is not a regular expression that can be used here",
                evidence=str(error),
                advice="Look-around and back-references are not supported",
            ) from error
        return _folded(Call("matches", (self._text_node(tree.this),), BOOL, pattern))

    def affix(self, tree: exp.Expr) -> Node:
        args = (self._text_node(tree.this), self._text_node(self._part(tree, "expression")))
        return _folded(Call(_AFFIXES[type(tree)], args, BOOL))

    # Numbers

    def arithmetic(self, tree: exp.Binary) -> Node:
        op = _ARITHMETIC[type(tree)]
        left, right = self._number(tree.this), self._number(self._part(tree, "expression"))
        if op == "intdiv" and not (left.type in (INT, NULL) and right.type in (INT, NULL)):
            raise InvalidInput(f"div in the filter wants integers, in {self._sql(tree)}")
        return _folded(Call(op, (left, right), arithmetic_type(op, left, right)))

    def _number(self, tree: exp.Expr) -> Node:
        node = self.bind(tree)
        if not is_numeric(node.type) and node.type != NULL:
            raise InvalidInput(
                f"{self._sql(tree)} in the filter is {type_name(node.type)}, and a number is wanted there",
                advice="CAST it to a number, or compare it without arithmetic",
            )
        return node if node.type != NULL else Literal(None, INT)

    def negative(self, tree: exp.Neg) -> Node:
        if isinstance(tree.this, exp.Literal) and not tree.this.is_string:
            return number_literal("-" + tree.this.this)  # -9223372036854775808 fits, its positive does not
        node = self._number(tree.this)
        return _folded(Call("neg", (node,), node.type))

    def absolute(self, tree: exp.Abs) -> Node:
        node = self._number(tree.this)
        return _folded(Call("abs", (node,), node.type))

    # Casts and dates

    def cast(self, tree: exp.Cast) -> Node:
        # sqlglot has TryCast for Spark's CAST too, which only "safe" tells apart.
        return self._cast(
            self.bind(tree.this), _target(self._part(tree, "to"), self), bool(tree.args.get("safe")), tree
        )

    def _cast(self, node: Node, target: Target, forgiving: bool, tree: exp.Expr) -> Node:
        if node.type != NULL and find_cast(node.type, target) is None:
            raise InvalidInput(
                f"The filter casts {type_name(node.type)} to {target.name} in {self._sql(tree)}, which is not supported"
            )
        return _folded(Call("cast", (node,), target.type, (target, forgiving)))

    def to_date(self, tree: exp.TsOrDsToDate) -> Node:
        if tree.args.get("format") is not None:
            raise self._unsupported(tree)
        return self._cast(self.bind(tree.this), _TARGETS[_D.DATE], False, tree)

    def date_part(self, tree: exp.Expr) -> Node:
        return self._date_part(_PARTS[type(tree)], tree.this, tree)

    def _date_part(self, part: str, argument: exp.Expr, tree: exp.Expr) -> Node:
        # sqlglot wraps the argument of year() and its like into a conversion to a date that nobody wrote.
        if isinstance(argument, exp.TsOrDsToDate):
            argument = argument.this
        node = self.bind(argument)
        if node.type == TEXT or (node.type == DATE and part in ("hour", "minute", "second")):
            node = self._cast(node, _TARGETS[_D.TIMESTAMP], False, tree)
        if node.type not in (DATE, TIMESTAMP):
            raise InvalidInput(f"{part}() in the filter wants a date or a timestamp, not {type_name(node.type)}")
        return _folded(Call(part, (node,), INT))

    # Text

    def _text_node(self, tree: exp.Expr) -> Node:
        node = self.bind(tree)
        if node.type == NULL:
            return Literal(None, TEXT)
        if node.type != TEXT:
            raise InvalidInput(
                f"{self._sql(tree)} in the filter is {type_name(node.type)}, and text is wanted there",
                advice="CAST it to STRING",
            )
        return node

    def _constant_text(self, tree: exp.Expr, where: str) -> str:
        if isinstance(tree, exp.Any | exp.All):
            raise self._unsupported(tree)
        node = self._text_node(tree)
        if not isinstance(node, Literal) or node.value is None:
            raise InvalidInput(f"{where} in the filter wants a constant pattern", advice="Write it in single quotes")
        return str(node.value)

    def case_mapping(self, tree: exp.Expr) -> Node:
        return _folded(Call("upper" if isinstance(tree, exp.Upper) else "lower", (self._text_node(tree.this),), TEXT))

    def length(self, tree: exp.Length) -> Node:
        node = self.bind(tree.this)
        return _folded(Call("length", (node if node.type == BINARY else self._text_node(tree.this),), INT))

    def substring(self, tree: exp.Expr) -> Node:
        if isinstance(tree, exp.Left):
            start, length = 1, self._constant_int(self._part(tree, "expression"))
        else:
            start = self._constant_int(self._part(tree, "start"))
            length = self._constant_int(self._part(tree, "length")) if tree.args.get("length") is not None else None
        return _folded(Call("substring", (self._text_node(tree.this),), TEXT, (start, length)))

    def _constant_int(self, tree: exp.Expr) -> Any:
        node = self.bind(tree)
        if not isinstance(node, Literal) or node.type != INT or node.value is None:
            raise InvalidInput(f"{self._sql(tree)} in the filter must be a constant integer")
        return node.value

    def trim(self, tree: exp.Trim) -> Node:
        side = (tree.args.get("position") or "both").lower()
        characters = self._constant_text(self._part(tree, "expression"), "trim") if tree.args.get("expression") else " "
        return _folded(Call("trim", (self._text_node(tree.this),), TEXT, (side, characters)))

    def concat(self, tree: exp.Expr) -> Node:
        parts = tree.expressions if isinstance(tree, exp.Concat) else [tree.this, self._part(tree, "expression")]
        text = _TARGETS[_D.TEXT]
        nodes = [self.bind(part) for part in parts]
        args = tuple(node if node.type in (TEXT, NULL) else self._cast(node, text, False, tree) for node in nodes)
        return _folded(Call("concat", args, TEXT))

    # Choice

    def case(self, tree: exp.Case) -> Node:
        subject = tree.args.get("this")
        conditions: list[Node] = []
        outcomes: list[Node] = []
        for branch in self._part(tree, "ifs"):
            if subject is None:
                conditions.append(self._condition(branch.this))
            else:
                conditions.append(self._compare("eq", self.bind(subject), self.bind(branch.this), tree))
            outcomes.append(self.bind(self._part(branch, "true")))
        default = tree.args.get("default")
        outcomes.append(Literal(None, NULL) if default is None else self.bind(default))
        return self._choice(conditions, outcomes, tree)

    def condition_if(self, tree: exp.If) -> Node:
        otherwise = tree.args.get("false")
        outcomes = [
            self.bind(self._part(tree, "true")),
            Literal(None, NULL) if otherwise is None else self.bind(otherwise),
        ]
        return self._choice([self._condition(tree.this)], outcomes, tree)

    def nullif(self, tree: exp.Nullif) -> Node:
        node = self.bind(tree.this)
        same = self._compare("eq", node, self.bind(self._part(tree, "expression")), tree)
        return self._choice([same], [Literal(None, NULL), node], tree)

    def _choice(self, conditions: list[Node], outcomes: list[Node], tree: exp.Expr) -> Node:
        agreed = self._agree(tuple(outcomes), tree)
        args: list[Node] = []
        for condition, outcome in zip(conditions, agreed, strict=False):
            args += [condition, outcome]
        kind = common_type(agreed, self._sql(tree))
        return _folded(Call("case", (*args, agreed[-1]), kind))

    def coalesce(self, tree: exp.Coalesce) -> Node:
        nodes = self._agree(tuple(self.bind(each) for each in (tree.this, *tree.expressions)), tree)
        return _folded(Call("coalesce", nodes, common_type(nodes, self._sql(tree))))

    # Functions sqlglot has no class for

    def anonymous(self, tree: exp.Anonymous) -> Node:
        name, args = tree.name.lower(), tree.expressions
        if len(args) == 1 and name in ("isnull", "isnotnull"):
            test = Call("isnull", (self.bind(args[0]),), BOOL)
            return test if name == "isnull" else Call("not", (test,), BOOL)
        if len(args) == 1 and name in DATE_PARTS:
            return self._date_part(name, args[0], tree)
        if len(args) == 1 and name in _CAST_FUNCTIONS:
            return self._cast(self.bind(args[0]), _TARGETS[_CAST_FUNCTIONS[name]], False, tree)
        if name in _CLOCKS:
            raise InvalidInput(
                f"The filter uses {name}(), whose value changes while the filter is used{self._place(tree)}",
                advice="Write the moment itself, as in ts >= '2026-11-01 00:00:00'",
            )
        raise self._unsupported(tree)

    def clock(self, tree: exp.Expr) -> Node:
        return self.anonymous(exp.Anonymous(this=tree.sql_name().lower() if isinstance(tree, exp.Func) else "now"))


_CAST_FUNCTIONS = {"bigint": _D.BIGINT, "smallint": _D.SMALLINT, "tinyint": _D.TINYINT, "float": _D.FLOAT}
_CLOCKS = frozenset({"now", "current_date", "current_timestamp", "curdate", "localtimestamp"})
_EXAMPLES = {
    DATE: "Write a date as '2026-11-01'",
    TIMESTAMP: "Write a timestamp as '2026-11-01 12:30:00'; without a zone it is UTC",
    TIME: "Write a time as '12:30:00'",
    UUID: "Write a uuid as 'f79c3e09-677c-4bbd-a479-3f349cb785e7'",
}

_BINDERS: dict[type, Callable[[_Binder, Any], Node]] = {
    exp.Paren: lambda binder, tree: binder.bind(tree.this),
    exp.Column: _Binder.column,
    exp.Dot: _Binder.column,
    exp.Literal: _Binder.literal,
    exp.RawString: lambda _, tree: Literal(tree.this, TEXT),
    exp.HexString: _Binder.hex_string,
    exp.Null: lambda *_: Literal(None, NULL),
    exp.Boolean: lambda _, tree: Literal(bool(tree.this), BOOL),
    exp.And: _Binder.connective,
    exp.Or: _Binder.connective,
    exp.Not: _Binder.negation,
    exp.Is: _Binder.is_something,
    **dict.fromkeys(_COMPARE, _Binder.comparison),
    exp.NullSafeNEQ: _Binder.distinct,
    exp.Between: _Binder.between,
    exp.In: _Binder.membership,
    exp.IsNan: _Binder.is_nan,
    exp.Like: _Binder.like,
    exp.ILike: _Binder.like,
    exp.Escape: _Binder.like,
    exp.RegexpLike: _Binder.rlike,
    **dict.fromkeys(_AFFIXES, _Binder.affix),
    **dict.fromkeys(_ARITHMETIC, _Binder.arithmetic),
    exp.Neg: _Binder.negative,
    exp.Abs: _Binder.absolute,
    exp.Cast: _Binder.cast,
    exp.TryCast: _Binder.cast,
    exp.TsOrDsToDate: _Binder.to_date,
    **dict.fromkeys(_PARTS, _Binder.date_part),
    exp.Upper: _Binder.case_mapping,
    exp.Lower: _Binder.case_mapping,
    exp.Length: _Binder.length,
    exp.Substring: _Binder.substring,
    exp.Left: _Binder.substring,
    exp.Trim: _Binder.trim,
    exp.Concat: _Binder.concat,
    exp.DPipe: _Binder.concat,
    exp.Case: _Binder.case,
    exp.If: _Binder.condition_if,
    exp.Nullif: _Binder.nullif,
    exp.Coalesce: _Binder.coalesce,
    exp.Anonymous: _Binder.anonymous,
    exp.CurrentDate: _Binder.clock,
    exp.CurrentTimestamp: _Binder.clock,
}


def _folded(node: Call) -> Node:
    """A call of constants is a constant; one that fails, fails now."""
    if not all(isinstance(arg, Literal) for arg in node.args):
        return node
    value = evaluate(node, EMPTY)
    return Literal(internal(value)[0], node.type)


def _target(kind: exp.DataType, binder: _Binder) -> Target:
    if kind.this == _D.DECIMAL:
        sizes = [int(param.name) for param in kind.expressions] or [10, 0]
        precision, scale = sizes[0], sizes[1] if len(sizes) > 1 else 0
        if not 1 <= precision <= MAX_PRECISION or not 0 <= scale <= precision:
            raise InvalidInput(f"The filter casts to DECIMAL({precision},{scale}), which does not exist")
        return Target(pa.decimal128(precision, scale), f"DECIMAL({precision},{scale})")
    found = _TARGETS.get(kind.this)
    if found is None or kind.expressions:
        raise binder._unsupported(kind)
    return found


def _name_parts(tree: exp.Expr) -> list[str] | None:
    if isinstance(tree, exp.Dot):
        before = _name_parts(tree.this)
        return (
            None
            if before is None or not isinstance(tree.expression, exp.Identifier)
            else [*before, tree.expression.name]
        )
    if isinstance(tree, exp.Column) and not isinstance(tree.this, exp.Star):
        return [part.name for part in tree.parts]
    return None


_SPECIAL = frozenset("\\.+*?()|[]{}^$")


def _like_pattern(pattern: str, escape: str) -> tuple[str, str, str]:
    """(what the text must begin with, the whole as a regular expression, "equal" | "prefix" | "other")."""
    fixed, regex = "", ""
    wildcards = ""
    position = 0
    while position < len(pattern):
        char = pattern[position]
        if char == escape:
            position += 1
            char = pattern[position] if position < len(pattern) else ""
            if char not in ("%", "_", escape) or not char:
                raise InvalidInput(
                    f"The pattern {pattern!r} in the filter has the escape character {escape!r} before something "
                    "that needs none",
                    advice=f"Double it to mean {escape!r} itself",
                )
        elif char in "%_":
            wildcards += char
            regex += ".*" if char == "%" else "."
            position += 1
            continue
        fixed += char if not wildcards else ""
        regex += "\\" + char if char in _SPECIAL else char
        wildcards += "x" if wildcards else ""
        position += 1
    shape = "equal" if not wildcards else "prefix" if set(wildcards) == {"%"} else "other"
    return fixed, rf"(?s)\A(?:{regex})\z", shape


def did_you_mean(wrong: str, known: list[str]) -> str:
    """Advice that names the nearest of the known names, or a few of them."""
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(wrong.lower(), list(lowered), n=1)
    if near:
        return f"Did you mean {lowered[near[0]]}?"
    shown = ", ".join(known[:20])
    return f"The columns are {shown}{', …' if len(known) > 20 else ''}" if known else "It has no fields"


__all__ = ["SUPPORTED", "Expression", "Filter", "Lit", "did_you_mean", "lit", "parse_expression", "parse_filter"]

"""sqlglot's tree to typed nodes: names become field ids, every node gets its type, and constants are computed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import TimestampType

from frazil._sqlglot import exp
from frazil.errors import InvalidInput
from frazil.expr.cast import CastError, Target, find_cast, parse_date, parse_time, parse_timestamp
from frazil.expr.evaluate import DATE_PARTS, EMPTY, arithmetic_type, evaluate, internal
from frazil.expr.names import Names
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
    UUID,
    Call,
    Column,
    DataType,
    Literal,
    Node,
    common_type,
    is_numeric,
    number_literal,
    type_name,
)
from frazil.expr.params import Params, bound, has_zone, params_of, without_values
from frazil.expr.parse import parsed
from frazil.expr.patterns import like_regex

SUPPORTED = (
    "comparisons, <=>, IN, BETWEEN, LIKE, ILIKE, RLIKE, IS [NOT] NULL/TRUE/FALSE, AND, OR, NOT, + - * / % div, CAST, "
    "TRY_CAST, CASE, if, coalesce, nvl, nullif, abs, date, to_date, year, quarter, month, day, hour, minute, second, "
    "dayofweek, weekday, dayofyear, weekofyear, upper, lower, length, substring, left, trim, ltrim, rtrim, concat, ||, "
    "startswith, endswith, contains, isnull, isnotnull, isnan"
)


def bind(text: str, schema: Schema, case_sensitive: bool, scopes: tuple[str, ...] = (), *, what: str) -> Node:
    """The node of a SQL text. ``what`` it is called in messages: a filter or an expression. Raises InvalidInput."""
    tree = parsed(text, what)
    binder = _Binder(text, Names(text, schema, case_sensitive, scopes, what), what, params_of(text))
    with without_values(text, what):
        return binder.bind(tree)


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
    """Binds one tree. A method for each kind of node in the tree."""

    def __init__(self, text: str, names: Names, what: str, params: Params) -> None:
        self._text = text
        self._names = names
        self._what = what
        self._params = params
        self._zoned: list[Node] = []
        """Constants from a datetime with a zone."""

    def bind(self, tree: exp.Expr) -> Node:
        if not isinstance(tree, exp.Expr):
            raise InvalidInput(f"A function in the {self._what} {self._text!r} has too few arguments")
        for kind in type(tree).__mro__:
            handler = _BINDERS.get(kind)
            if handler is not None:
                return handler(self, tree)
        raise self._unsupported(tree)

    # Errors

    def _unsupported(self, tree: exp.Expr) -> InvalidInput:
        if isinstance(tree, exp.Query | exp.Subquery | exp.Exists) or tree.find(exp.Query) is not None:
            used = "a subquery, which is not supported"
        elif isinstance(tree, exp.AggFunc):
            used = f"the aggregate {tree.sql_name().lower()}, which needs many rows"
        elif isinstance(tree, exp.Anonymous):
            used = f"the function {tree.name}, which is not supported"
        elif isinstance(tree, exp.Func):
            used = f"the function {tree.sql_name().lower()}, which is not supported"
        else:
            used = f"{tree.sql(dialect='spark')!r}, which is not supported"
        return InvalidInput(f"The {self._what} uses {used}{self._place(tree)}", advice=f"Supported are {SUPPORTED}")

    def _place(self, tree: exp.Expr) -> str:
        for each in tree.walk():
            if "start" in each.meta:
                return f", near position {each.meta['start'] + 1}"
        return ""

    def _sql(self, tree: exp.Expr) -> str:
        return repr(tree.sql(dialect="spark"))

    def _part(self, tree: exp.Expr, name: str) -> Any:
        if tree.args.get(name) is None:
            raise InvalidInput(f"{self._sql(tree)} in the {self._what} has too few arguments{self._place(tree)}")
        return tree.args[name]

    # Columns and constants

    def column(self, tree: exp.Column | exp.Dot) -> Node:
        parts = _name_parts(tree)
        if parts is None:
            raise self._unsupported(tree)
        return self._names.column(parts)

    def literal(self, tree: exp.Literal) -> Node:
        return Literal(tree.this, TEXT) if tree.is_string else number_literal(tree.this)

    def hex_string(self, tree: exp.HexString) -> Node:
        digits = str(tree.this)
        try:
            return Literal(bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2)), BINARY)
        except ValueError as error:
            raise InvalidInput(f"X'{digits}' in the {self._what} is not hexadecimal") from error

    def placeholder(self, tree: exp.Placeholder) -> Node:
        (value,) = self._values(tree, is_list=False)
        return value

    def _values(self, tree: exp.Placeholder, *, is_list: bool) -> tuple[Node, ...]:
        name = str(tree.this or "")
        if not name:
            raise InvalidInput(f"The {self._what} has a parameter without a name", advice="Write :name instead of ?")
        if name not in self._params:
            raise InvalidInput(
                f"The {self._what} uses the parameter :{name}, which has no value",
                advice=f'Add params={{"{name}": …}}',
            )
        given = self._params[name]
        if isinstance(given, tuple) and not is_list:
            raise InvalidInput(f"The parameter :{name} is a list", advice=f"Lists are for IN (:{name})")
        values = given if isinstance(given, tuple) else (given,)
        nodes = tuple(bound(name, each) for each in values)
        self._zoned += [node for node, each in zip(nodes, values, strict=True) if has_zone(each)]
        return nodes

    # Logic

    def connective(self, tree: exp.Connector) -> Node:
        op = "and" if isinstance(tree, exp.And) else "or"
        # A loop instead of recursion, for thousands of ORs.
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
                f"{self._sql(tree)} in the {self._what} is {type_name(node.type)}, where a condition is wanted",
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
        """String constants become what they are compared with: dates, timestamps, times, uuids."""
        nested = next((node for node in nodes if node.type == NESTED), None)
        if nested is not None:
            raise InvalidInput(
                f"{self._sql(tree)} in the {self._what} uses a nested column as a whole",
                advice="Name one of its fields, as in a.b = 1; lists and maps support IS NULL only",
            )
        other = next((node for node in nodes if node.type in (DATE, TIMESTAMP, TIME, UUID)), None)
        if other is None:
            return nodes
        zoned = not any(isinstance(node, Column) and isinstance(node.source, TimestampType) for node in nodes)
        if not zoned and any(node is each for node in nodes for each in self._zoned):
            raise InvalidInput(
                f"A parameter in {self._sql(tree)} has a time zone, and the column has none",
                advice="Pass a datetime without a zone",
            )
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
                f"{node.value!r} in the {self._what} is compared with a {type_name(kind)}",
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
        if isinstance(field := tree.args.get("field"), exp.Placeholder):
            members = [field]
        if not members or any(isinstance(each, exp.Query | exp.Subquery) for each in members):
            raise self._unsupported(tree)
        given = [
            node
            for each in members
            for node in (self._values(each, is_list=True) if isinstance(each, exp.Placeholder) else (self.bind(each),))
        ]
        nodes = self._agree((self.bind(tree.this), *given), tree)
        return _folded(Call("in", nodes, BOOL, common_type(nodes, self._sql(tree))))

    def is_nan(self, tree: exp.IsNan) -> Node:
        return Call("isnan", (self._number(tree.this),), BOOL)

    # Patterns

    def like(self, tree: exp.Expr) -> Node:
        escape = "\\"
        if isinstance(tree, exp.Escape):
            escape, tree = self._constant_text(self._part(tree, "expression"), "ESCAPE"), tree.this
            if len(escape) != 1:
                raise InvalidInput(f"ESCAPE in the {self._what} takes one character")
        subject = self._text_node(tree.this)
        pattern = self._constant_text(self._part(tree, "expression"), "LIKE")
        if isinstance(tree, exp.ILike):
            subject, pattern = _folded(Call("lower", (subject,), TEXT)), pattern.lower()
        fixed, regex, shape = like_regex(pattern, escape)
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
                f"The pattern {pattern!r} in the {self._what} is not a supported regular expression",
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
            raise InvalidInput(f"div in the {self._what} takes integers, in {self._sql(tree)}")
        return _folded(Call(op, (left, right), arithmetic_type(op, left, right)))

    def _number(self, tree: exp.Expr) -> Node:
        node = self.bind(tree)
        if not is_numeric(node.type) and node.type != NULL:
            raise InvalidInput(
                f"{self._sql(tree)} in the {self._what} is {type_name(node.type)}, where a number is wanted",
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
        # sqlglot has TryCast for Spark's CAST as well; only "safe" distinguishes them.
        return self._cast(
            self.bind(tree.this), _target(self._part(tree, "to"), self), bool(tree.args.get("safe")), tree
        )

    def _cast(self, node: Node, target: Target, forgiving: bool, tree: exp.Expr) -> Node:
        if node.type != NULL and find_cast(node.type, target) is None:
            raise InvalidInput(
                f"The {self._what} casts {type_name(node.type)} to {target.name} in {self._sql(tree)}, which is not "
                "supported"
            )
        return _folded(Call("cast", (node,), target.type, (target, forgiving)))

    def to_date(self, tree: exp.TsOrDsToDate) -> Node:
        if tree.args.get("format") is not None:
            raise self._unsupported(tree)
        return self._cast(self.bind(tree.this), _TARGETS[_D.DATE], False, tree)

    def date_part(self, tree: exp.Expr) -> Node:
        return self._date_part(_PARTS[type(tree)], tree.this, tree)

    def _date_part(self, part: str, argument: exp.Expr, tree: exp.Expr) -> Node:
        # sqlglot wraps the argument of year() and similar functions into a conversion to a date.
        if isinstance(argument, exp.TsOrDsToDate):
            argument = argument.this
        node = self.bind(argument)
        if node.type == TEXT or (node.type == DATE and part in ("hour", "minute", "second")):
            node = self._cast(node, _TARGETS[_D.TIMESTAMP], False, tree)
        if node.type not in (DATE, TIMESTAMP):
            raise InvalidInput(f"{part}() in the {self._what} takes a date or a timestamp, not {type_name(node.type)}")
        return _folded(Call(part, (node,), INT))

    # Text

    def _text_node(self, tree: exp.Expr) -> Node:
        node = self.bind(tree)
        if node.type == NULL:
            return Literal(None, TEXT)
        if node.type != TEXT:
            raise InvalidInput(
                f"{self._sql(tree)} in the {self._what} is {type_name(node.type)}, where a string is wanted",
                advice="CAST it to STRING",
            )
        return node

    def _constant_text(self, tree: exp.Expr, where: str) -> str:
        if isinstance(tree, exp.Any | exp.All):
            raise self._unsupported(tree)
        node = self._text_node(tree)
        if not isinstance(node, Literal) or node.value is None:
            raise InvalidInput(
                f"{where} in the {self._what} takes a constant pattern", advice="Write it in single quotes"
            )
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
            raise InvalidInput(f"{self._sql(tree)} in the {self._what} must be a constant integer")
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

    # Functions without a class in sqlglot

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
                f"The {self._what} uses {name}(), whose value changes while the {self._what} is used"
                f"{self._place(tree)}",
                advice="Write a constant, as in ts >= '2026-11-01 00:00:00'",
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
    exp.Placeholder: _Binder.placeholder,
    exp.CurrentDate: _Binder.clock,
    exp.CurrentTimestamp: _Binder.clock,
}


def _folded(node: Call) -> Node:
    """A call with constant arguments is computed now, and fails now if it fails."""
    if not all(isinstance(arg, Literal) for arg in node.args):
        return node
    value = evaluate(node, EMPTY)
    return Literal(internal(value)[0], node.type)


def _target(kind: exp.DataType, binder: _Binder) -> Target:
    if kind.this == _D.DECIMAL:
        sizes = [int(param.name) for param in kind.expressions] or [10, 0]
        precision, scale = sizes[0], sizes[1] if len(sizes) > 1 else 0
        if not 1 <= precision <= MAX_PRECISION or not 0 <= scale <= precision:
            raise InvalidInput(f"The {binder._what} casts to DECIMAL({precision},{scale}), which does not exist")
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

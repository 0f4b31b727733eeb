"""Bound parameters: ``:name`` in SQL text, with values that are bound as literals after parsing.

Values are personal data. No message has them: it names the parameter.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from types import MappingProxyType, NoneType
from typing import Any

from frazil.errors import InvalidInput
from frazil.expr.nodes import (
    BINARY,
    BOOL,
    DATE,
    DOUBLE,
    INT,
    INT_MAX,
    INT_MIN,
    NULL,
    TEXT,
    TIME,
    TIMESTAMP,
    UUID,
    Literal,
    decimal_literal,
    is_decimal,
)

Params = Mapping[str, object]
_NONE: Params = MappingProxyType({})
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICRO = dt.timedelta(microseconds=1)
_SHORT = 3
_SUPPORTED = (
    "None, bool, int, float, str, bytes, Decimal, date, datetime, time and UUID are supported, and lists of these for "
    "IN (:name)"
)


class ParametrizedText(str):  # noqa: SLOT000 - it has an attribute
    """SQL text with the values of its parameters. As a string it is the text alone."""

    params: Params

    def __new__(cls, text: str, params: Params = _NONE) -> ParametrizedText:
        made = super().__new__(cls, text)
        made.params = params
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return ParametrizedText, (str(self), dict(self.params))


def params_of(text: str) -> Params:
    return text.params if isinstance(text, ParametrizedText) else _NONE


def like(text: str, given: str) -> str:
    """The text, with the parameters of another text."""
    return ParametrizedText(text, given.params) if isinstance(given, ParametrizedText) else text


def with_params(params: object, *texts: Any) -> tuple[Any, ...]:
    """The texts with their parameters. Raises InvalidInput for a name without a value, and for a value without a use.

    What is not a string is left as it is.
    """
    if params is None:
        return texts
    if not isinstance(params, Mapping) or not all(isinstance(name, str) for name in params):
        raise InvalidInput(
            f"params must be a dict from names to values, not {type(params).__name__}",
            advice="""Write where="user_id = :u", params={"u": 7}""",
        )
    found: dict[str, object] = {name: _checked(name, value) for name, value in params.items()}
    used: set[str] = set()
    for text in texts:
        if isinstance(text, str) and text.strip():
            from frazil.expr.parse import placeholders  # loads sqlglot

            used |= placeholders(text)
    unused = [name for name in found if name not in used]
    if unused:
        raise InvalidInput(
            f"No SQL text uses the parameter :{unused[0]}", advice="Leave it out, or write :name without quotes"
        )
    return tuple(ParametrizedText(each, found) if isinstance(each, str) else each for each in texts)


def _checked(name: str, value: object) -> object:
    if isinstance(value, list | tuple | set | frozenset):
        if not value:
            raise InvalidInput(
                f"The parameter :{name} is an empty list, and IN needs a value",
                advice="An empty IN selects no row, and an empty NOT IN every row: decide before the call",
            )
        # A set of texts has another order in every process, and the values become part of the SQL of a condition.
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else list(value)
        for each in items:
            if isinstance(each, list | tuple | set | frozenset):
                raise _unsupported(name, each)
            bound(name, each)
        return tuple(items)
    bound(name, value)
    return value


def _unsupported(name: str, value: object) -> InvalidInput:
    return InvalidInput(f"The parameter :{name} is a {type(value).__name__}, which is not supported", advice=_SUPPORTED)


def bound(name: str, value: object) -> Literal:
    """One value as a constant. Raises InvalidInput for an unsupported type."""
    for kind, make in _BOUND:
        if isinstance(value, kind):
            return make(name, value)
    raise _unsupported(name, value)


def _integer(name: str, value: int) -> Literal:
    return Literal(int(value), INT) if INT_MIN <= value <= INT_MAX else _decimal(name, Decimal(value))


def _moment(_name: str, value: dt.datetime) -> Literal:
    # Without a zone it is UTC, as in SQL text.
    moment = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
    return Literal((moment - _EPOCH) // _MICRO, TIMESTAMP)


def _time(name: str, value: dt.time) -> Literal:
    if value.tzinfo is not None:
        raise InvalidInput(f"The parameter :{name} has a time zone, and a time of day has none")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return Literal(seconds * 1_000_000 + value.microsecond, TIME)


def _encodable(name: str, value: str) -> str:
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise InvalidInput(f"The parameter :{name} has an unpaired surrogate, which UTF-8 cannot encode")
    return str(value)


def _decimal(name: str, value: Decimal) -> Literal:
    if not value.is_finite():
        raise InvalidInput(f"The parameter :{name} is a Decimal that is not a number", advice="Pass a float")
    try:
        return decimal_literal(value)
    except InvalidInput:
        raise InvalidInput(f"The parameter :{name} has more than 38 digits") from None


# A bool is an int, and a datetime a date: the first that fits.
_BOUND: tuple[tuple[type, Callable[[str, Any], Literal]], ...] = (
    (NoneType, lambda _name, _value: Literal(None, NULL)),
    (bool, lambda _name, value: Literal(value, BOOL)),
    (int, _integer),
    (float, lambda _name, value: Literal(float(value), DOUBLE)),
    (Decimal, _decimal),
    (str, lambda name, value: Literal(_encodable(name, value), TEXT)),
    (bytes, lambda _name, value: Literal(value, BINARY)),
    (uuid.UUID, lambda _name, value: Literal(value.bytes, UUID)),
    (dt.datetime, _moment),
    (dt.date, lambda _name, value: Literal(value.toordinal() - _EPOCH_DAY, DATE)),
    (dt.time, _time),
)


def has_zone(value: object) -> bool:
    return isinstance(value, dt.datetime) and value.tzinfo is not None


# Messages


@contextlib.contextmanager
def without_values(text: str, what: str) -> Iterator[None]:
    """An InvalidInput that would show a parameter's value names the parameter instead."""
    params = params_of(text)
    if not params:
        yield
        return
    hidden: InvalidInput | None = None
    try:
        yield
    except InvalidInput as error:
        shown = [name for name, value in params.items() if _shows(str(error), value)]
        if not shown:
            raise
        names = " or ".join(f":{name}" for name in shown)
        hidden = type(error)(
            f"The value of {names} does not fit its place in the {what} {str(text)!r}",
            advice="Check its type and its form; values are not shown",
        )
    if hidden is not None:
        raise hidden from None


def _shows(message: str, value: object) -> bool:
    values = value if isinstance(value, tuple) else (value,)
    forms = {form for each in values if each is not None for form in (str(each), repr(each))}
    # A short one would be found inside of other words.
    return any(
        form in message if len(form) > _SHORT else re.search(rf"(?<!\w){re.escape(form)}(?!\w)", message)
        for form in forms
        if form
    )


# Text that other writers can evaluate


def as_sql(value: object) -> str:
    """A value, or the values of a list, as SQL."""
    if isinstance(value, tuple):
        return ", ".join(as_sql(each) for each in value)
    literal = bound("", value)
    if is_decimal(literal.type):
        return f"CAST('{literal.value:f}' AS DECIMAL({literal.type.precision}, {literal.type.scale}))"
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case float():
            return _double(value)
        case bytes():
            return f"X'{value.hex()}'"
        case dt.datetime():
            zone = "" if value.tzinfo is None else "Z"
            utc = value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
            return f"CAST('{utc.isoformat(' ')}{zone}' AS {'TIMESTAMP' if zone else 'TIMESTAMP_NTZ'})"
        case dt.date():
            return f"CAST('{value.isoformat()}' AS DATE)"
        case int():
            return str(int(value))
        case _:
            escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"


def _double(value: float) -> str:
    if not math.isfinite(value):
        return f"CAST('{value}' AS DOUBLE)"
    mantissa, _, exponent = repr(float(value)).partition("e")
    return f"{mantissa}e{exponent or 0}"

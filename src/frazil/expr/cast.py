"""Spark's CAST, one value at a time, and Spark's parsing of dates and timestamps.

Values are in internal form (days, microseconds). A value that cannot be cast raises CastError: CAST fails on it, and
TRY_CAST returns NULL.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

from frazil.expr.nodes import (
    BINARY,
    BOOL,
    DATE,
    DOUBLE,
    INT,
    INT_MAX,
    INT_MIN,
    MICROS_PER_DAY,
    TEXT,
    TIMESTAMP,
    DataType,
    is_decimal,
    is_numeric,
)

_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICRO = dt.timedelta(microseconds=1)
_EXACT = Context(prec=100)
_DATE = re.compile(r"([+-]?\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIMESTAMP = re.compile(
    r"([+-]?\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[ T](?:(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{0,9}))?)?)?\s*(.*))?)?)?",
    re.DOTALL,
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2})(?::?(\d{2}))?)?")
_INTEGER = re.compile(r"[+-]?\d+")
_TRUE = frozenset({"t", "true", "y", "yes", "1"})
_FALSE = frozenset({"f", "false", "n", "no", "0"})


class CastError(ValueError):
    """This value has no counterpart in the target type."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a CAST: the type in expressions, and the narrower range of the SQL type."""

    type: DataType
    name: str
    low: int | None = None
    high: int | None = None
    single: bool = False
    """True: the value is rounded to a 32-bit float."""


def parse_date(text: str) -> int:
    """Days since 1970 of ``2026-11-01``, ``2026-11``, ``2026``; what follows a full date is ignored, as in Spark."""
    found = _DATE.fullmatch(text.strip())
    if found is None:
        raise CastError(f"{text!r} is not a date")
    try:
        return dt.date(int(found[1]), int(found[2] or 1), int(found[3] or 1)).toordinal() - _EPOCH_DAY
    except ValueError as error:
        raise CastError(f"{text!r} is not a date") from error


def parse_timestamp(text: str, *, zoned: bool = True) -> int:
    """Microseconds since 1970, in UTC where the text has no zone. ``zoned=False`` refuses text with a zone."""
    found = _TIMESTAMP.fullmatch(text.strip())
    if found is None:
        raise CastError(f"{text!r} is not a timestamp")
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    if zone and not zoned:
        raise CastError(f"{text!r} has a time zone, and the column has none")
    micros = int((fraction or "0")[:6].ljust(6, "0"))
    try:
        moment = dt.datetime(
            int(year), int(month or 1), int(day or 1), int(hour or 0), int(minute or 0), int(second or 0), micros,
            tzinfo=_zone(zone),
        )  # fmt: skip
        return (moment - _EPOCH) // _MICRO
    except (ValueError, OverflowError) as error:
        raise CastError(f"{text!r} is not a timestamp") from error


def _zone(text: str | None) -> dt.tzinfo:
    if not text or text in ("Z", "UTC", "GMT", "UT"):
        return dt.UTC
    if (found := _OFFSET.fullmatch(text)) is not None:
        delta = dt.timedelta(hours=int(found[2]), minutes=int(found[3] or 0), seconds=int(found[4] or 0))
        return dt.timezone(delta if found[1] == "+" else -delta)
    try:
        return zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"unknown zone {text!r}") from error


def parse_time(text: str) -> int:
    """Microseconds since midnight."""
    try:
        value = dt.time.fromisoformat(text.strip())
    except ValueError as error:
        raise CastError(f"{text!r} is not a time of day") from error
    if value.tzinfo is not None:
        raise CastError(f"{text!r} has a time zone, and a time of day has none")
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


_DAYS_PER_400_YEARS = 146_097


def format_date(days: int) -> str:
    # The calendar repeats every 400 years, and Python's own ends with the year 9999.
    cycles, day = divmod(days + _EPOCH_DAY - 1, _DAYS_PER_400_YEARS)
    inside = dt.date.fromordinal(day + 1)
    year = inside.year + 400 * cycles
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{inside.month:02d}-{inside.day:02d}"


def format_timestamp(micros: int) -> str:
    days, rest = divmod(micros, MICROS_PER_DAY)
    moment = _EPOCH + dt.timedelta(microseconds=rest)
    fraction = f".{moment.microsecond:06d}".rstrip("0") if moment.microsecond else ""
    return f"{format_date(days)} {moment:%H:%M:%S}{fraction}"


def find_cast(source: DataType, target: Target) -> Callable[[Any], Any] | None:
    """The cast from one type to another; None where Spark has none, or where it depends on Java's formatting."""
    for accepts, family, make in _CASTS:
        if accepts(target.type) and family(source):
            return make(source, target)
    return None


def _round_single(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _in_range(value: int, target: Target) -> int:
    if (target.low is not None and value < target.low) or (target.high is not None and value > target.high):
        raise CastError(f"{value} does not fit {target.name}")
    return value


def _number_to_int(_: DataType, target: Target) -> Callable[[Any], int]:
    def cast(value: Any) -> int:
        if isinstance(value, float) and not math.isfinite(value):
            raise CastError(f"{value} does not fit {target.name}")
        return _in_range(int(value), target)

    return cast


def _text_to_int(_: DataType, target: Target) -> Callable[[Any], int]:
    def cast(value: str) -> int:
        text = value.strip()
        if _INTEGER.fullmatch(text) is None:
            raise CastError(f"{value!r} is not an integer")
        return _in_range(int(text), target)

    return cast


def _timestamp_to_int(_: DataType, target: Target) -> Callable[[Any], int]:
    return lambda micros: _in_range(micros // 1_000_000, target)


def _seconds_to_timestamp(seconds: int) -> int:
    micros = seconds * 1_000_000
    if not INT_MIN <= micros <= INT_MAX:
        raise CastError(f"{seconds} seconds do not fit TIMESTAMP")
    return micros


def _to_double(_: DataType, target: Target) -> Callable[[Any], float]:
    def cast(value: Any) -> float:
        try:
            found = float(value.strip().replace("_", "?")) if isinstance(value, str) else float(value)
        except ValueError as error:
            raise CastError(f"{value!r} is not a number") from error
        return _round_single(found) if target.single else found

    return cast


def _to_decimal(_: DataType, target: Target) -> Callable[[Any], Decimal]:
    unit = Decimal(1).scaleb(-target.type.scale)
    limit = Decimal(10) ** (target.type.precision - target.type.scale)

    def cast(value: Any) -> Decimal:
        try:
            # A double is converted by its shortest decimal form, as in Spark: CAST(0.1D AS DECIMAL(20,20)) is 0.1.
            exact = Decimal(
                repr(value) if isinstance(value, float) else value.strip() if isinstance(value, str) else value
            )
            rounded = exact.quantize(unit, rounding=ROUND_HALF_UP, context=_EXACT)
        except (InvalidOperation, ValueError) as error:
            raise CastError(f"{value!r} is not a number that fits {target.name}") from error
        if rounded.is_nan() or rounded.copy_abs() >= limit:
            raise CastError(f"{value!r} does not fit {target.name}")
        return rounded

    return cast


def _text_to_bool(_: DataType, target: Target) -> Callable[[Any], bool]:  # noqa: ARG001
    def cast(value: str) -> bool:
        text = value.strip().lower()
        if text not in _TRUE and text not in _FALSE:
            raise CastError(f"{value!r} is neither true nor false")
        return text in _TRUE

    return cast


def _to_text(source: DataType, target: Target) -> Callable[[Any], str]:  # noqa: ARG001
    if source == BOOL:
        return lambda value: "true" if value else "false"
    if source == DATE:
        return format_date
    if source == TIMESTAMP:
        return format_timestamp
    if is_decimal(source):
        return lambda value: format(value, "f")
    return str


def _binary_to_text(_: DataType, target: Target) -> Callable[[Any], str]:  # noqa: ARG001
    return lambda value: bytes(value).decode("utf-8", errors="replace")


def _same(_: DataType, target: Target) -> Callable[[Any], Any]:  # noqa: ARG001
    return lambda value: value


def _fixed(function: Callable[[Any], Any]) -> Callable[[DataType, Target], Callable[[Any], Any]]:
    return lambda _source, _target: function


def _is(*kinds: DataType) -> Callable[[DataType], bool]:
    return lambda kind: kind in kinds


def _number_or_bool(kind: DataType) -> bool:
    return is_numeric(kind) or kind == BOOL


_CASTS: tuple[
    tuple[
        Callable[[DataType], bool],
        Callable[[DataType], bool],
        Callable[[DataType, Target], Callable[[Any], Any]],
    ],
    ...,
] = (
    (_is(INT), _number_or_bool, _number_to_int),
    (_is(INT), _is(TEXT), _text_to_int),
    (_is(INT), _is(TIMESTAMP), _timestamp_to_int),
    (_is(DOUBLE), lambda kind: _number_or_bool(kind) or kind == TEXT, _to_double),
    (is_decimal, lambda kind: _number_or_bool(kind) or kind == TEXT, _to_decimal),
    (_is(BOOL), _is(TEXT), _text_to_bool),
    (_is(BOOL), _number_or_bool, _fixed(bool)),
    (_is(TEXT), lambda kind: kind in (TEXT, BOOL, INT, DATE, TIMESTAMP) or is_decimal(kind), _to_text),
    (_is(TEXT), _is(BINARY), _binary_to_text),
    (_is(BINARY), _is(TEXT), _fixed(lambda value: value.encode())),
    (_is(BINARY), _is(BINARY), _same),
    (_is(DATE), _is(DATE), _same),
    (_is(DATE), _is(TEXT), _fixed(parse_date)),
    (_is(DATE), _is(TIMESTAMP), _fixed(lambda micros: micros // MICROS_PER_DAY)),
    (_is(TIMESTAMP), _is(TIMESTAMP), _same),
    (_is(TIMESTAMP), _is(TEXT), _fixed(parse_timestamp)),
    (_is(TIMESTAMP), _is(DATE), _fixed(lambda days: days * MICROS_PER_DAY)),
    (_is(TIMESTAMP), _is(INT), _fixed(_seconds_to_timestamp)),
)

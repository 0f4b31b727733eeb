"""Moments as callers give them, and as the table's metadata holds them: milliseconds since 1970."""

from __future__ import annotations

import datetime as dt

from frazil.errors import InvalidInput

Moment = dt.datetime | str | int

_FORMS = "Pass a datetime with tzinfo, text such as '2026-11-01T12:00:00+00:00', or milliseconds since 1970"


def milliseconds(moment: Moment, argument: str) -> int:
    """A moment as a number. One without a time zone is refused: each reader would take it for another moment."""
    if isinstance(moment, bool) or not isinstance(moment, dt.datetime | str | int):
        raise InvalidInput(f"{argument}={moment!r} is not a time", advice=_FORMS)
    if isinstance(moment, int):
        return moment
    if isinstance(moment, str):
        try:
            moment = dt.datetime.fromisoformat(moment.strip())
        except ValueError as error:
            raise InvalidInput(f"{argument}={moment!r} is not a time", advice=_FORMS) from error
    if moment.tzinfo is None:
        raise InvalidInput(f"{argument}={moment.isoformat(sep=' ')!r} names no time zone", advice=_FORMS)
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)


def iso(moment_ms: int) -> str:
    try:
        return dt.datetime.fromtimestamp(moment_ms / 1000, tz=dt.UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{moment_ms} ms"

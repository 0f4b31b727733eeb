"""Evaluates an expression on executors, by the driver's own functions, which are sent as bytes.

Dates, times and timestamps are passed as integers, so that no session setting affects them. Spark runs functions on
every row, including rows that a surrounding CASE excludes: so an error is returned as a value, and raised by Spark only
where the row's value is used.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

Array = Any
arrow: Any = pa


class ShippedExpression:
    """An expression with the functions that evaluate it."""

    def __init__(self, sent: bytes, takes: Sequence[Any], gives: Any, fallible: bool) -> None:
        """``takes``, ``gives``: Arrow types of the inputs and the output. ``fallible``: errors are returned as well."""
        self._sent = sent
        self._takes = takes
        self._gives = gives
        self._fallible = fallible
        self._run: Callable[[Sequence[Array]], Array] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the functions, which are unpickled where they are used.
        return ShippedExpression, (self._sent, self._takes, self._gives, self._fallible)

    def batch(self, *columns: Array) -> Array:
        """For many rows: from arrays to an array."""
        if not self._fallible:
            return self._values(columns)
        values, errors = self._tried(columns)
        return arrow.StructArray.from_arrays([values, errors], ["value", "error"])

    def row(self, *values: Any) -> Any:
        """For one row: from values to a value."""
        # An expression of constants is passed one column that it does not read.
        kinds = self._takes or (pa.bool_(),)
        found = self.batch(*(arrow.array([each], kind) for each, kind in zip(values, kinds, strict=True)))[0].as_py()
        return (found["value"], found["error"]) if self._fallible else found

    def _values(self, columns: Sequence[Array]) -> Array:
        if self._run is None:
            self._run = pickle.loads(self._sent)  # noqa: S301 - pickled by the driver of this job
        found = self._run(columns)
        if pa.types.is_temporal(found.type):
            found = found.view(self._gives)
        return found.cast(self._gives)

    def _tried(self, columns: Sequence[Array]) -> tuple[Array, Array]:
        """Values and errors. Rows that fail are found by bisection, so that the others are evaluated in batches."""
        length = len(columns[0])
        try:
            return self._values(columns), arrow.nulls(length, pa.string())
        except ImportError:
            raise
        except Exception as error:  # noqa: BLE001 - any error belongs to a row
            if length == 1:
                return arrow.nulls(1, self._gives), arrow.array([str(error) or repr(error)], pa.string())
        middle = length // 2
        halves = [
            self._tried([each.slice(0, middle) for each in columns]),
            self._tried([each.slice(middle) for each in columns]),
        ]
        values, errors = zip(*halves, strict=True)
        return arrow.concat_arrays(values), arrow.concat_arrays(errors)

"""The parts of expressions on which Spark's functions differ from Frazil's: evaluated in Spark's Python workers.

The functions and the tree are pickled by value and without PyIceberg: executors have only pyarrow.
"""

from __future__ import annotations

import functools
import io
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from frazil import errors
from frazil.expr import cast, executor, nodes
from frazil.expr import evaluate as evaluation
from frazil.expr.evaluate import ARITHMETIC, COMPARED, Inputs, evaluate, spread
from frazil.expr.nodes import (
    BINARY,
    BOOL,
    DATE,
    DOUBLE,
    INT,
    MAX_PRECISION,
    NESTED,
    TEXT,
    TIME,
    TIMESTAMP,
    UUID,
    Call,
    Column,
    DataType,
    Literal,
    Node,
    decimal_shape,
    is_decimal,
)

_SENT = (errors, cast, evaluation, nodes)
_lock = threading.Lock()
_WIRE: dict[DataType, tuple[str, Any]] = {
    BOOL: ("boolean", pa.bool_()),
    INT: ("bigint", pa.int64()),
    DOUBLE: ("double", pa.float64()),
    TEXT: ("string", pa.string()),
    DATE: ("int", pa.int32()),
    TIMESTAMP: ("bigint", pa.int64()),
    TIME: ("bigint", pa.int64()),
    UUID: ("binary", pa.binary()),
    BINARY: ("binary", pa.binary()),
}
"""The type on the wire between Spark and its workers: Spark's name of it, and Arrow's type."""
_SCALA_DIGITS = 34
"""Spark negates decimals as Scala does, which rounds them to this many digits."""


@lru_cache(maxsize=4096)
def has_foreign(node: Node) -> bool:
    """Whether some part of it must run in Python."""
    return isinstance(node, Call) and (is_foreign(node) or any(has_foreign(arg) for arg in node.args))


def is_foreign(node: Call) -> bool:
    """Whether Spark has no function that agrees with Frazil's on every value, under every setting."""
    if any(_too_wide(each.type) for each in (node, *node.args)):
        return True
    if node.op in ("upper", "lower"):
        # Case mapping depends on the version of Unicode; in Spark also on a setting.
        return True
    if node.op == "matches":
        return len(node.args) == 1
    if node.op == "cast":
        return _is_foreign_cast(node.args[0].type, node.type)
    if node.op in ("neg", "abs"):
        return is_decimal(node.type) and node.type.precision > _SCALA_DIGITS
    if node.op in ARITHMETIC:
        return is_decimal(node.type) and not _is_exact(node)
    if node.op == "in" and isinstance(node.args[0], Literal):
        return True
    if node.op in COMPARED and _too_wide(node.option):
        return not any(isinstance(each, Literal) for each in node.args) or node.op == "in"
    return False


def _too_wide(kind: DataType) -> bool:
    return is_decimal(kind) and kind.precision > MAX_PRECISION


def _is_foreign_cast(source: DataType, target: DataType) -> bool:
    if source == TEXT:
        return target not in (TEXT, BINARY)
    # Java formats doubles differently from version to version; Spark keeps bytes that are not valid UTF-8.
    return (source == DOUBLE and is_decimal(target)) or (source == BINARY and target == TEXT)


def _is_exact(node: Call) -> bool:
    """Whether the result has room for all digits, so that Spark rounds only where Frazil does."""
    (whole1, scale1), (whole2, scale2) = (decimal_shape(arg) for arg in node.args)
    scale: int = node.type.scale
    whole: int = node.type.precision - scale
    if node.op in ("add", "sub"):
        return scale == max(scale1, scale2) and whole == max(whole1, whole2) + 1
    if node.op == "mul":
        return scale == scale1 + scale2 and whole == whole1 + whole2 + 1
    if node.op == "mod":
        # Java refuses a quotient of more than 38 digits.
        return scale == max(scale1, scale2) and whole1 + scale2 < MAX_PRECISION
    # Spark rounds twice, first to 38 places, which is too far from a tie to matter.
    wanted = max(6, scale1 + whole2 + scale2 + 1)
    return scale == wanted and whole == whole1 + scale2 and scale + whole2 + scale2 < MAX_PRECISION


@dataclass(frozen=True, slots=True)
class Sent:
    """A part of a tree for the workers: its function, and its inputs, columns and parts that Spark evaluates."""

    function: Callable[..., Any]
    inputs: tuple[Node, ...]


def sent(node: Node, *, fallible: bool) -> Sent:
    """``fallible``: the function returns a struct of value and error."""
    inputs: dict[Node, int] = {}
    _shipped(node, inputs)
    spark_name, storage = wire(node.type)
    returns = f"struct<value: {spark_name}, error: string>" if fallible else spark_name
    takes = tuple(wire(each.type)[1] for each in inputs)
    shipped = executor.ShippedExpression(pickled(node), takes, storage, fallible)
    return Sent(_function(shipped, returns), tuple(inputs))


def wire(kind: DataType) -> tuple[str, Any]:
    if is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})", kind
    return _WIRE[kind]


def _run(tree: Node, columns: Sequence[Any]) -> Any:
    length = len(columns[0])
    return spread(evaluate(tree, Inputs(length, lambda column: columns[column.field_id])), length)


def _shipped(node: Node, inputs: dict[Node, int]) -> Node:
    """The tree with its columns numbered, and without PyIceberg's types."""
    if isinstance(node, Literal):
        return node
    if isinstance(node, Column) or _stays(node):
        kind = node.type
        return Column(inputs.setdefault(node, len(inputs)), (), "", None, kind)  # type: ignore[arg-type]
    return replace(node, args=tuple(_shipped(arg, inputs) for arg in node.args))


def _stays(node: Call) -> bool:
    """Parts that only Spark can evaluate, and that never fail."""
    return node.op == "bucketed" or (node.op == "isnull" and node.args[0].type == NESTED)


def _function(shipped: executor.ShippedExpression, returns: str) -> Callable[..., Any]:
    from pyspark import cloudpickle
    from pyspark.sql import functions

    cloudpickle.register_pickle_by_value(executor)
    made: Callable[..., Any]
    arrow_udf: Any = getattr(functions, "arrow_udf", None)
    if arrow_udf is not None:
        made = arrow_udf(_plain(shipped.batch), returns)
        return made
    # Spark 4.0 has functions for whole batches through pandas only, which turns integers with nulls into floats.
    made = functions.udf(_plain(shipped.row), returns, useArrow=False)
    return made


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function: Spark reads type hints, and the method's do not name Arrow types."""

    def run(*args: Any) -> Any:
        return method(*args)

    # No hints: they are strings, which Spark would resolve in the wrong module.
    run.__annotations__ = {}
    return run


def pickled(node: Node) -> bytes:
    """A function from arrays to the node's values, pickled by value with every function of Frazil's that it calls."""
    from pyspark import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, functools._lru_cache_wrapper):
                # Pickled by name otherwise, which fails where Frazil is not installed.
                return functools.lru_cache, (value.__wrapped__,)
            return super().reducer_override(value)

    function = functools.partial(_run, _shipped(node, {}))
    # Registered only for this call: elsewhere, errors and nodes are pickled by name.
    with _lock:
        known = cloudpickle.list_registry_pickle_by_value()
        mine = [each for each in (*_SENT, sys.modules[__name__]) if each.__name__ not in known]
        for module in mine:
            cloudpickle.register_pickle_by_value(module)
        try:
            file = io.BytesIO()
            Pickler(file, protocol=cloudpickle.DEFAULT_PROTOCOL).dump(function)
            return file.getvalue()
        finally:
            for module in mine:
                cloudpickle.unregister_pickle_by_value(module)

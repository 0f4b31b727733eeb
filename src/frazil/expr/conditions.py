"""Filters built from values instead of text: the rows of some partitions, the rows near some keys.

A condition that can be written as SQL becomes an ordinary filter; a test of a bucket cannot be written.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform, VoidTransform
from pyiceberg.types import DoubleType, FloatType, StringType

from frazil.errors import InvalidInput, Unsupported
from frazil.expr.cast import format_date, format_timestamp
from frazil.expr.evaluate import internal, normalize
from frazil.expr.file_facts import partition_range
from frazil.expr.filters import Filter, parse_filter
from frazil.expr.names import column_of
from frazil.expr.nodes import (
    BINARY,
    BOOL,
    DATE,
    DOUBLE,
    FALSE,
    INT,
    INT_MAX,
    INT_MIN,
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
    is_decimal,
)

pc: Any = pyarrow.compute
MOST_LISTED = 1000
"""Up to this many keys are listed one by one, which prunes by bucket and by gaps; more become a range."""


# Partitions


def in_partitions(spec: PartitionSpec, partitions: Iterable[tuple[Any, ...]], schema: Schema) -> Filter:
    """The rows that belong to one of these partitions of the spec."""
    wanted = list(partitions)
    columns = [
        None if isinstance(each.transform, VoidTransform) else column_of(each.source_id, schema) for each in spec.fields
    ]
    node = _any_of([_partition(spec, columns, each) for each in wanted])
    if len(spec.fields) == 1 and columns[0] is not None and len(wanted) > 1:
        node = _one_field(spec.fields[0], columns[0], [each[0] for each in wanted], node)
    return _filter(node, schema, f"a row of {len(wanted)} partitions by {', '.join(_shown(spec))}")


def _shown(spec: PartitionSpec) -> list[str]:
    return [each.name for each in spec.fields]


def _partition(spec: PartitionSpec, columns: Sequence[Column | None], partition: tuple[Any, ...]) -> Node:
    tests = [
        _value(field, column, value)
        for field, column, value in zip(spec.fields, columns, partition, strict=True)
        if column is not None
    ]
    return _all_of(tests)


def _one_field(field: PartitionField, column: Column, values: list[Any], otherwise: Node) -> Node:
    """The values of a spec with one field as one list, where the transform allows it."""
    present = [value for value in values if value is not None]
    null = [Call("isnull", (column,), BOOL)] if len(present) < len(values) else []
    if isinstance(field.transform, BucketTransform):
        return _any_of([*null, _bucket(field.transform, column, present)])
    if isinstance(field.transform, IdentityTransform) and column.type not in (BOOL, DOUBLE) and present:
        return _any_of([*null, _listed(column, [_plain(value) for value in present])])
    return otherwise


def _listed(column: Column, values: Sequence[Any]) -> Node:
    if len(values) == 1:
        return _compared("eq", column, values[0])
    return Call("in", (column, *(Literal(value, column.type) for value in values)), BOOL, column.type)


def _bucket(transform: BucketTransform[Any], column: Column, values: Sequence[int]) -> Node:
    return Call("bucketed", (column,), BOOL, (transform.num_buckets, frozenset(values)))


def _value(field: PartitionField, column: Column, value: Any) -> Node:
    """Whether a row has this value of one partition field."""
    transform = field.transform
    if value is None:
        return Call("isnull", (column,), BOOL)
    if isinstance(transform, BucketTransform):
        return _bucket(transform, column, [value])
    if isinstance(column.source, FloatType | DoubleType) and math.isnan(value):
        return Call("isnan", (column,), BOOL)
    value = _plain(value)
    if isinstance(transform, IdentityTransform):
        return _compared("eq", column, value)
    if isinstance(transform, TruncateTransform) and isinstance(column.source, StringType):
        # Shorter than the width: the whole string.
        short = len(value) < transform.width
        return _compared("eq", column, value) if short else Call("starts", (column, Literal(value, TEXT)), BOOL)
    limits = partition_range(field, column.source, value)
    if limits is None:
        raise Unsupported(f"The table is partitioned by {transform}, whose partitions this version cannot replace")
    return _between(column, *limits, strictly=column.type == BINARY and len(value) >= getattr(transform, "width", 0))


def _plain(value: Any) -> Any:
    return value.bytes if isinstance(value, uuid.UUID) else value


def _between(column: Column, low: Any, high: Any, *, strictly: bool) -> Node:
    tests: list[Node] = [_compared("ge", column, _clipped(low, column.type))]
    if high is not None:
        tests.append(_compared("lt" if strictly else "le", column, _clipped(high, column.type)))
    return _all_of(tests)


def _clipped(value: Any, kind: DataType) -> Any:
    """Clipped to the range of the type: the last period may end beyond it."""
    if kind == DATE:
        return min(max(value, -(2**31)), 2**31 - 1)
    return min(max(value, INT_MIN), INT_MAX) if kind in (INT, TIMESTAMP) else value


# Keys


def near_keys(schema: Schema, keys: Mapping[int, Any]) -> Filter:
    """Every row that may have one of these keys: field id → the keys' values of that column, none of them null."""
    tests = [_near(column_of(field_id, schema), values) for field_id, values in keys.items()]
    count = max((len(values) for values in keys.values()), default=0)
    return _filter(_all_of(tests) if count else FALSE, schema, f"a row with one of {count} keys")


def between_keys(schema: Schema, ranges: Mapping[int, Any]) -> Filter:
    """Every row whose key is within these ranges: field id → an array of the least and the greatest value."""
    tests = []
    for field_id, values in ranges.items():
        column = column_of(field_id, schema)
        low, high = internal(normalize(values, column.type))
        tests.append(_between(column, low, high, strictly=False))
    return _filter(_all_of(tests), schema, "a row within the range of the keys")


def _near(column: Column, values: Any) -> Node:
    distinct = pc.unique(normalize(values, column.type))
    if len(distinct) <= MOST_LISTED and column.type != BOOL:
        return _listed(column, internal(distinct)) if len(distinct) else FALSE
    order = pc.sort_indices(distinct)
    low, high = internal(distinct.take(order.slice(0, 1)))[0], internal(distinct.take(order.slice(len(order) - 1)))[0]
    return _between(column, low, high, strictly=False)


# Nodes


def _compared(op: str, column: Column, value: Any) -> Node:
    return Call(op, (column, Literal(value, column.type)), BOOL, column.type)


def _all_of(tests: Sequence[Node]) -> Node:
    return tests[0] if len(tests) == 1 else Call("and", tuple(tests), BOOL) if tests else TRUE


def _any_of(tests: Sequence[Node]) -> Node:
    return tests[0] if len(tests) == 1 else Call("or", tuple(tests), BOOL) if tests else FALSE


def _filter(node: Node, schema: Schema, described: str) -> Filter:
    try:
        made = parse_filter(_sql(node, schema), schema, case_sensitive=True)
    except (_NotExpressible, InvalidInput):
        made = None
    if made is None or _constants(made.condition) != _constants(node):
        return Filter(described, schema, node, case_sensitive=True, built=True)
    return made


def _constants(node: Node) -> list[Any]:
    """The values in a condition, in order: parsing the text must give the same ones."""
    if isinstance(node, Literal):
        return [node.value]
    return [value for each in node.args for value in _constants(each)] if isinstance(node, Call) else []


# Text


class _NotExpressible(Exception):
    """The condition, or a value in it, cannot be written in SQL."""


def _sql(node: Node, schema: Schema) -> str:
    match node:
        case Column():
            return ".".join(_quoted(schema.find_field(field_id).name) for field_id in node.path)
        case Literal():
            return _literal(node)
    args = [_sql(each, schema) for each in node.args]
    if node.op in ("and", "or"):
        return f" {node.op.upper()} ".join(f"({each})" for each in args)
    if node.op in _TEMPLATES:
        return _TEMPLATES[node.op].format(args[0], ", ".join(args[1:]))
    raise _NotExpressible(node.op)


_TEMPLATES = {
    "eq": "{} = {}",
    "lt": "{} < {}",
    "le": "{} <= {}",
    "ge": "{} >= {}",
    "in": "{} IN ({})",
    "isnull": "{} IS NULL",
    "isnan": "isnan({})",
    "starts": "startswith({}, {})",
}


def _quoted(name: str) -> str:
    if "`" in name:
        raise _NotExpressible(name)
    return f"`{name}`"


def _literal(node: Literal) -> str:
    value, kind = node.value, node.type
    if value is None:
        return "NULL"
    if kind == BOOL:
        return "true" if value else "false"
    if kind == INT:
        return str(value)
    if is_decimal(kind):
        return format(value, "f")
    if kind == DOUBLE:
        if not math.isfinite(value):
            raise _NotExpressible(value)
        text = repr(float(value))
        return text if "e" in text else text + "e0"
    if kind == BINARY:
        return f"X'{bytes(value).hex()}'"
    return _quoted_text(_as_text(value, kind))


def _as_text(value: Any, kind: DataType) -> str:
    if kind == TEXT:
        return str(value)
    if kind == DATE:
        return format_date(value)
    if kind == TIMESTAMP:
        return format_timestamp(value)
    if kind == TIME:
        return str(pa.scalar(value, pa.time64("us")).as_py())
    if kind == UUID:
        return str(uuid.UUID(bytes=bytes(value)))
    raise _NotExpressible(kind)


def _quoted_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"

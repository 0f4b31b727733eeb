"""A condition on columns whose types were widened after it was parsed.

The wider type holds every value of the old one, in the same order, and evaluation compares in types that hold both. So
a condition selects the same existing rows, and applies to values that only the wider type holds.
Only exact arithmetic depends on the width: how many digits a result keeps depends on those of its operands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyiceberg.types import IcebergType

from frazil.expr.evaluate import ARITHMETIC, COMPARED, arithmetic_type
from frazil.expr.nodes import Call, Column, DataType, Literal, Node, common_type, is_decimal, sql_type


class RoundingChanged(Exception):
    """A result would keep other digits than before, so the condition might select other rows."""


def widened(node: Node, kinds: Mapping[int, IcebergType]) -> Node:
    """The node with these types for columns, by field id, and every type that follows from them."""
    if isinstance(node, Literal):
        return node
    if isinstance(node, Column):
        kind = kinds.get(node.field_id)
        return node if kind is None else replace(node, source=kind, type=sql_type(kind))
    args = tuple(widened(arg, kinds) for arg in node.args)
    if all(new is old for new, old in zip(args, node.args, strict=True)):
        return node
    made = replace(node, args=args, type=_type(node, args))
    if is_decimal(node.type) and made.type.scale != node.type.scale:
        raise RoundingChanged
    return replace(made, option=common_type(args, node.op)) if node.op in COMPARED else made


def _type(node: Call, args: tuple[Node, ...]) -> DataType:
    if node.op in ARITHMETIC:
        return arithmetic_type(node.op, *args)
    if node.op in ("neg", "abs"):
        return args[0].type
    if node.op == "case":
        # Condition, outcome, condition, outcome, …, and the outcome where none of them holds.
        return common_type((*args[1::2], args[-1]), node.op)
    if node.op == "coalesce":
        return common_type(args, node.op)
    return node.type

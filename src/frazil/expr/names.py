"""Names in SQL text to a schema's columns."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StructType

from frazil.errors import InvalidInput, Unsupported
from frazil.expr.nodes import Column, sql_type


@dataclass(frozen=True, slots=True)
class Names:
    """The columns that a SQL text may name. ``what`` the text is called in messages: a filter or an expression."""

    text: str
    schema: Schema
    case_sensitive: bool
    scopes: tuple[str, ...]
    what: str

    def column(self, parts: list[str]) -> Column:
        """Raises InvalidInput with the nearest name for one that does not exist."""
        fields: tuple[NestedField, ...] = self.schema.fields
        path: list[NestedField] = []
        for name in self._qualified(parts):
            found = self._match(name, fields)
            if found is None:
                raise self._unknown(parts, path, fields)
            path.append(found)
            fields = found.field_type.fields if isinstance(found.field_type, StructType) else ()
        return _column(path)

    def _qualified(self, parts: list[str]) -> list[str]:
        """The name with its scope in front, where the scope was omitted and only one has such a field."""
        if not self.scopes or self._match(parts[0], self.schema.fields) is not None:
            return parts
        holding = [
            scope
            for scope in self.scopes
            if isinstance(struct := self.schema.find_type(scope), StructType) and self._match(parts[0], struct.fields)
        ]
        if len(holding) > 1:
            both = " or ".join(f"{scope}.{parts[0]}" for scope in holding)
            raise InvalidInput(f"The column {parts[0]!r} in the {self.what} {self.text!r} may be {both}")
        return [*holding, *parts]

    def _match(self, name: str, fields: tuple[NestedField, ...]) -> NestedField | None:
        exact = [field for field in fields if field.name == name]
        loose = [field for field in fields if field.name.lower() == name.lower()]
        if self.case_sensitive or not loose:
            return exact[0] if exact else None
        if len(loose) > 1:
            raise InvalidInput(
                f"The name {name!r} in the {self.what} matches several columns: "
                f"{', '.join(field.name for field in loose)}",
                advice="Pass case_sensitive=True and write the name as the table spells it",
            )
        return loose[0]

    def _unknown(self, parts: list[str], path: list[NestedField], fields: tuple[NestedField, ...]) -> InvalidInput:
        prefix = ".".join(field.name for field in path)
        wrong = parts[len(path)]
        advice = did_you_mean(wrong, [field.name for field in fields])
        if self._match(".".join(parts), self.schema.fields) is not None:
            advice = f"Write `{'.'.join(parts)}` in back-ticks, because its name has a dot"
        elif len(parts) == 1 and "." not in wrong:
            advice += f"; if {wrong} is a string, write '{wrong}'" if not advice.startswith("Did") else ""
        where = f" in {prefix}" if prefix else ""
        return InvalidInput(
            f"The {self.what} names the column {'.'.join(parts)!r}, and there is no {wrong!r}{where}", advice=advice
        )


def did_you_mean(wrong: str, known: list[str]) -> str:
    """Advice that names the nearest of the known names, or a few of them."""
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(wrong.lower(), list(lowered), n=1)
    if near:
        return f"Did you mean {lowered[near[0]]}?"
    shown = ", ".join(known[:20])
    return f"The columns are {shown}{', …' if len(known) > 20 else ''}" if known else "It has no fields"


def column_of(field_id: int, schema: Schema) -> Column:
    """The column with this field id. Raises Unsupported if there is none, or if it is inside a list or map."""
    path = _path(schema.fields, field_id)
    if path is None:
        raise Unsupported(f"The column with the id {field_id} is not in the table, or is inside a list or map")
    return _column(path)


def _path(fields: Iterable[NestedField], field_id: int) -> list[NestedField] | None:
    for field in fields:
        if field.field_id == field_id:
            return [field]
        below = _path(field.field_type.fields, field_id) if isinstance(field.field_type, StructType) else None
        if below is not None:
            return [field, *below]
    return None


def _column(path: list[NestedField]) -> Column:
    leaf = path[-1]
    ids = tuple(field.field_id for field in path)
    return Column(
        leaf.field_id, ids, ".".join(field.name for field in path), leaf.field_type, sql_type(leaf.field_type)
    )

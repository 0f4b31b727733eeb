"""The combined effect of a transaction's writes on the keys of one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from frazil.verify.checker.model import Key, Read, Value, Write


@dataclass(slots=True)
class Effect:
    """The effect on one key."""

    replaces: bool = False
    """The earlier values are replaced."""
    values: list[Value] = field(default_factory=list)
    """The values it adds and keeps."""
    passing: list[Value] = field(default_factory=list)
    """The values it added and then replaced itself."""
    takes: list[Value] = field(default_factory=list)
    """Single values of other transactions that it deletes if they exist; other values stay."""

    def after(self, values: Sequence[Value]) -> list[Value]:
        """The key's values after it."""
        if self.replaces:
            return list(self.values)
        return [*(without(values, self.takes) if self.takes else values), *self.values]


@dataclass(slots=True)
class Effects:
    """The effects on a table's keys."""

    keys: dict[Key, Effect] = field(default_factory=dict)
    clears: bool = False
    """Every key that is not in ``keys`` is deleted."""

    def of(self, key: Key) -> Effect | None:
        found = self.keys.get(key)
        return Effect(replaces=True) if found is None and self.clears else found

    @property
    def is_nothing(self) -> bool:
        return not self.keys and not self.clears


def effects_of(ops: Iterable[Read | Write], table: str) -> Effects:
    """The effects of the writes of ``ops`` to one table, in their order."""
    found = Effects()
    for op in ops:
        if not isinstance(op, Write) or op.table != table or op.kind == "other":
            continue
        if op.kind == "remove" and op.every_key:
            for effect in found.keys.values():
                _replace(effect, [])
            found.clears = True
            continue
        effect = found.keys.setdefault(op.key, Effect(replaces=found.clears))
        if op.kind == "add":
            effect.values.append(op.value)
        elif op.kind == "remove" and op.one_value:
            _take(effect, op.value)
        else:
            _replace(effect, [op.value] if op.kind == "put" else [])
    return found


def _take(effect: Effect, value: Value) -> None:
    if value in effect.values:
        effect.values.remove(value)
        effect.passing.append(value)
    elif not effect.replaces:
        effect.takes.append(value)


def _replace(effect: Effect, values: list[Value]) -> None:
    effect.passing.extend(effect.values)
    effect.values = values
    effect.takes = []
    effect.replaces = True


def same(one: Sequence[Value], other: Sequence[Value]) -> bool:
    """The same values, each as often, in any order."""
    if len(one) != len(other):
        return False
    if len(one) <= 1:
        return list(one) == list(other)
    return Counter(one) == Counter(other)


def without(values: Sequence[Value], taken: Sequence[Value]) -> tuple[Value, ...]:
    """The values without one occurrence of each of ``taken``."""
    left = Counter(values)
    left.subtract(taken)
    return tuple((+left).elements())

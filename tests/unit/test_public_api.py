"""The public surface, written down: every name, signature and docstring that users reach.

A change of ``public_api.txt`` is a change of the product. ``make docs`` writes the file anew.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import frazil

PAGE = Path(__file__).with_name("public_api.txt")
_CALLED_BY_PYTHON = ("__call__", "__enter__", "__exit__", "__iter__", "__len__", "__arrow_c_stream__")


def reached() -> dict[str, Any]:
    """Classes that are not exported, by the call that returns or takes them."""

    def returned(call: Any) -> Any:
        return get_type_hints(call)["return"]

    table = frazil.Table
    return {
        "Transaction.table() -> TransactionTable": returned(frazil.Transaction.table),
        "Table.stream_sink() -> StreamSink": get_args(returned(table.stream_sink))[0],
        "Table.stream_sink(transaction=True) -> TransactionSink": get_args(returned(table.stream_sink))[1],
        "Table.append(**options: WriteOptions)": get_args(get_type_hints(table.append)["options"])[0],
        "Table.history() -> [HistoryEntry]": get_args(returned(table.history))[0],
        "Table.partitions() -> [PartitionEntry]": get_args(returned(table.partitions))[0],
        "Table.files() -> [ScannedFile]": get_args(returned(table.files))[0],
        "Table.snapshot() -> Snapshot": get_args(returned(table.snapshot))[0],
        "Lake.snapshot() -> LakeSnapshot": returned(frazil.Lake.snapshot),
        "Lake.history() -> [LakeCommit]": (commit := get_args(returned(frazil.Lake.history))[0]),
        "LakeCommit.tables -> (TableMove)": get_args(get_type_hints(commit)["tables"])[0],
    }


def surface() -> str:
    parts = [part for name in sorted(frazil.__all__) for part in shown(f"frazil.{name}", getattr(frazil, name))]
    parts += [part for name, kind in reached().items() for part in shown(name, kind)]
    return "\n".join(parts) + "\n"


def shown(name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"{name}{signature(value)}"
        yield from doc(value)
        return
    bases = [each.__name__ for each in value.__mro__[1:] if each.__module__.startswith("frazil.errors")]
    yield f"class {name}{made_by(value)}" + (f" < {' < '.join(bases)}" if bases else "")
    yield from doc(value)
    for key, kind in fields_of(value).items():
        yield f"    {key}: {kind}"
    as_on_table: list[str] = []
    for key in sorted(members(value)):
        lines = list(member(key, inspect.getattr_static(value, key)))
        on_table = inspect.getattr_static(frazil.Table, key, None)
        if value is not frazil.Table and on_table is not None and lines == list(member(key, on_table)):
            as_on_table.append(key)
        else:
            yield from indented(lines)
    if as_on_table:
        yield f"    as on frazil.Table: {', '.join(as_on_table)}"
    yield ""


def made_by(kind: type) -> str:
    """How users make one; most classes are returned by a call."""
    if not (dataclasses.is_dataclass(kind) or issubclass(kind, Exception)):
        return ""
    found = inspect.signature(kind)
    return "" if any(each.startswith("_") for each in found.parameters) else signature(kind)


def fields_of(kind: type) -> dict[str, str]:
    """The fields of a value and the keys of a TypedDict."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if each.__module__.startswith("frazil"):
            found |= {key: plain(text) for key, text in inspect.get_annotations(each).items()}
    # Constants of a class are shown with their values.
    return {key: text for key, text in found.items() if not key.startswith("_") and "ClassVar" not in text}


def members(kind: type) -> set[str]:
    own = {key for each in kind.__mro__ if each.__module__.startswith("frazil") for key in vars(each)}
    fields = set(fields_of(kind))
    return {key for key in own - fields if not key.startswith("_") or key in _CALLED_BY_PYTHON}


def member(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, property):
        yield f"{name} -> {plain(inspect.get_annotations(value.fget).get('return', 'Any'))}"  # type: ignore[arg-type]
        yield from doc(value.fget)
    elif isinstance(value, staticmethod | classmethod):
        yield f"{type(value).__name__} {name}{signature(value.__func__)}"
        yield from doc(value.__func__)
    elif callable(value):
        yield f"{name}{signature(value)}"
        yield from doc(value)
    else:
        yield f"{name} = {value!r}"


def signature(call: Any) -> str:
    found = inspect.signature(call)
    parameters = [each.replace(annotation=_Plain(plain(each.annotation))) for each in found.parameters.values()]
    arrow = "" if inspect.isclass(call) else f" -> {plain(found.return_annotation)}"
    return f"{found.replace(parameters=parameters, return_annotation=found.empty)}{arrow}".replace(": <untyped>", "")


class _Plain:
    """An annotation that is shown as it is written."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def plain(annotation: Any) -> str:
    if annotation is inspect.Signature.empty:
        return "<untyped>"
    annotation = getattr(annotation, "__forward_arg__", annotation)
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation).removeprefix("typing.")


def doc(value: Any) -> Iterator[str]:
    # Python gives a dataclass without a docstring its signature.
    text = inspect.cleandoc(value.__doc__ or "")
    if text and not text.startswith(f"{getattr(value, '__name__', '')}("):
        yield from indented(text.splitlines())


def indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"    {line}".rstrip() for line in lines)


def test_the_generated_public_api_is_current() -> None:
    if os.environ.get("FRAZIL_WRITE_DOCS"):
        PAGE.write_text(surface())
    assert PAGE.read_text() == surface(), "the public API changed; if it is meant, run `make docs`"

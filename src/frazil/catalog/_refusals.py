"""The errors of every catalog, so that the same mistake has the same message on each of them."""

from __future__ import annotations

from frazil.errors import (
    NamespaceExists,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    PermissionDenied,
    TableExists,
)
from frazil.model import Ident


def no_such_table(ident: Ident) -> NoSuchTable:
    return NoSuchTable(f"There is no table {ident}", advice="lake.tables() lists those that exist")


def table_exists(ident: Ident) -> TableExists:
    return TableExists(f"{ident} already exists", advice="Choose another name, or open it with lake.table()")


def no_such_namespace(namespace: tuple[str, ...]) -> NoSuchNamespace:
    name = ".".join(namespace)
    return NoSuchNamespace(f"There is no namespace {name}", advice=f"Create it first: lake.create_namespace({name!r})")


def namespace_exists(namespace: tuple[str, ...]) -> NamespaceExists:
    return NamespaceExists(f"The namespace {'.'.join(namespace)} already exists")


def namespace_not_empty(namespace: tuple[str, ...]) -> NamespaceNotEmpty:
    name = ".".join(namespace)
    return NamespaceNotEmpty(
        f"The namespace {name} still contains tables, views or namespaces",
        advice=f"Empty it first; lake.tables({name!r}) lists its tables",
    )


def opened_read_only(shown: str) -> PermissionDenied:
    return PermissionDenied(f"The catalog {shown} was opened with read_only=True", advice="Connect without it to write")

"""The lines that open the same table with PyIceberg and Iceberg Java. Pure text; URIs come in without secrets."""

from __future__ import annotations

import json
import os
from urllib.parse import urlsplit

from frazil.format.storage import local_path
from frazil.model import Ident


def snippets(uri: str, catalog: str, warehouse: str | None, ident: Ident, location: str = "") -> dict[str, str]:
    """By engine; empty for catalogs that only this process can reach. ``location``: the table's folder.

    Iceberg Java does not open a JDBC catalog without a warehouse, which it needs for new tables alone. Where the lake
    has none, the snippet names the folder that this table is in.
    """
    beside = warehouse or location.rstrip("/").rpartition("/")[0]
    scheme, rest = _split(uri)
    match scheme:
        case "" | "file":
            return _sqlite(os.path.join(os.path.expanduser(local_path(uri)), "catalog.db"), catalog, beside, ident)
        case "sqlite":
            return _sqlite(rest.removeprefix("///"), catalog, beside, ident)
        case "postgresql" | "postgres":
            return _postgres(rest, catalog, beside, ident)
        case "http" | "https":
            return _rest(uri, catalog, warehouse, ident)
        case "glue":
            return {"pyiceberg": _load_catalog(f'{_q(catalog)}, type="glue"', ident)}
        case "thrift":
            return {"pyiceberg": _load_catalog(f'{_q(catalog)}, type="hive", uri={_q(uri)}', ident)}
        case "pyiceberg":
            return {"pyiceberg": _load_catalog(_q(rest.lstrip("/")), ident)}
        case _:
            return {}


def _split(uri: str) -> tuple[str, str]:
    """The scheme without JDBC's prefix and SQLAlchemy's driver, and what follows it; a plain path has no scheme."""
    head, _, rest = uri.removeprefix("jdbc:").partition(":")
    known = "://" in uri or uri.startswith(("jdbc:", "pyiceberg:"))
    return (head.partition("+")[0], rest) if known else ("", uri)


def _sqlite(path: str, catalog: str, warehouse: str, ident: Ident) -> dict[str, str]:
    path = os.path.abspath(path)
    return {
        "pyiceberg": _sql_catalog(catalog, f"sqlite:///{path}", warehouse, ident),
        "java": _jdbc(catalog, f"jdbc:sqlite:{path}", warehouse, ident),
    }


def _postgres(rest: str, catalog: str, warehouse: str, ident: Ident) -> dict[str, str]:
    parts = urlsplit(rest)
    name = parts.username
    user = f"{name}@" if name else ""
    place = parts.netloc.rpartition("@")[2] + parts.path
    return {
        "pyiceberg": _sql_catalog(catalog, f"postgresql+psycopg://{user}{place}", warehouse, ident),
        "java": _jdbc(catalog, f"jdbc:postgresql://{place}", warehouse, ident, user=name),
    }


def _rest(uri: str, catalog: str, warehouse: str | None, ident: Ident) -> dict[str, str]:
    place = f", warehouse={_q(warehouse)}" if warehouse else ""
    options = [f'"uri", {_q(uri)}', *([f'"warehouse", {_q(warehouse)}'] if warehouse else [])]
    return {
        "pyiceberg": _load_catalog(f'{_q(catalog)}, type="rest", uri={_q(uri)}{place}', ident),
        "java": _java("RESTCatalog", catalog, options, ident),
    }


def _sql_catalog(catalog: str, uri: str, warehouse: str | None, ident: Ident) -> str:
    place = f", warehouse={_q(_as_uri(warehouse))}" if warehouse else ""
    return (
        "from pyiceberg.catalog.sql import SqlCatalog\n"
        f"table = SqlCatalog({_q(catalog)}, uri={_q(uri)}{place}).load_table({_name(ident)})"
    )


def _load_catalog(arguments: str, ident: Ident) -> str:
    return f"from pyiceberg.catalog import load_catalog\ntable = load_catalog({arguments}).load_table({_name(ident)})"


def _jdbc(catalog: str, uri: str, warehouse: str, ident: Ident, *, user: str | None = None) -> str:
    # V1 has the column iceberg_type, which Frazil's tables have as well.
    options = [f'"uri", {_q(uri)}', f'"warehouse", {_q(warehouse)}', '"jdbc.schema-version", "V1"']
    options += [f'"jdbc.user", {_q(user)}'] if user else []
    return _java("JdbcCatalog", catalog, options, ident)


def _java(kind: str, catalog: str, options: list[str], ident: Ident) -> str:
    names = ", ".join(_q(part) for part in (*ident.namespace, ident.name))
    return (
        f"{kind} catalog = new {kind}();\n"
        f"catalog.initialize({_q(catalog)}, Map.of({', '.join(options)}));\n"
        f"Table table = catalog.loadTable(TableIdentifier.of({names}));"
    )


def _name(ident: Ident) -> str:
    parts = (*ident.namespace, ident.name)
    return _q(".".join(parts)) if not any("." in part for part in parts) else repr(parts)


def _q(text: str) -> str:
    """A string literal that Python and Java read alike."""
    return json.dumps(text, ensure_ascii=False)


def _as_uri(place: str) -> str:
    return place if "://" in place else f"file://{place}"

"""The same catalog as other libraries open it: PyIceberg's SqlCatalog, and Iceberg Java's JdbcCatalog inside Spark."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from frazil.catalog.base import OpenedCatalog
from frazil.catalog.open import CATALOG_FILE, sqlite_path
from frazil.errors import Unsupported
from frazil.format.storage import local_path


def pyiceberg_catalog(opened: OpenedCatalog, uri: str, properties: dict[str, str]) -> Any:
    """A PyIceberg catalog on the same database. ``uri`` is the one the lake was opened with, secrets included."""
    if opened.kind == "memory":
        raise Unsupported(
            "A memory:// lake exists in this process only", advice="Use a folder to share it with PyIceberg"
        )
    theirs = getattr(opened.catalog, "pyiceberg", None)
    if theirs is not None:
        return theirs()
    try:
        from pyiceberg.catalog.sql import SqlCatalog
    except ImportError as error:
        raise Unsupported(
            "PyIceberg's SQL catalog needs SQLAlchemy", advice="pip install 'pyiceberg[sql-sqlite,sql-postgres]'"
        ) from error
    place = {"warehouse": opened.warehouse} if opened.warehouse else {}
    return SqlCatalog(opened.catalog.name, **{**properties, **place, "uri": _sqlalchemy_uri(opened.kind, uri)})


def spark_conf(opened: OpenedCatalog, uri: str) -> dict[str, str]:
    """Settings with which Iceberg's own jar opens the same catalog in a Spark session, under the same name."""
    if opened.kind not in ("embedded", "sqlite", "postgres"):
        raise Unsupported(
            f"A {opened.kind} catalog has no JDBC address", advice="Configure Iceberg's jar for it directly"
        )
    prefix = f"spark.sql.catalog.{opened.catalog.name}"
    conf = {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "jdbc",
        f"{prefix}.jdbc.schema-version": "V1",
        **({f"{prefix}.warehouse": opened.warehouse} if opened.warehouse else {}),
    }
    if opened.kind != "postgres":
        return {**conf, f"{prefix}.uri": f"jdbc:sqlite:file:{_database_file(opened.kind, uri)}"}
    parts = urlsplit(_plain_postgres(uri))
    conf[f"{prefix}.uri"] = f"jdbc:postgresql://{parts.hostname or 'localhost'}:{parts.port or 5432}{parts.path}"
    for key, value in (("user", parts.username), ("password", parts.password), *parse_qsl(parts.query)):
        if value:
            conf[f"{prefix}.jdbc.{key}"] = unquote(value)
    return conf


def _sqlalchemy_uri(kind: str, uri: str) -> str:
    if kind == "postgres":
        # psycopg 3 is what this library brings; SQLAlchemy takes it as well as the older one.
        return _plain_postgres(uri).replace("postgresql://", "postgresql+psycopg://", 1)
    return f"sqlite:///{_database_file(kind, uri)}"


def _plain_postgres(uri: str) -> str:
    return "postgresql://" + uri.partition("://")[2]


def _database_file(kind: str, uri: str) -> str:
    if kind == "embedded":
        return os.path.join(os.path.abspath(os.path.expanduser(local_path(uri))), CATALOG_FILE)
    return os.path.abspath(sqlite_path(uri))

"""Frazil: many writers, one Apache Iceberg table.

A lake is a catalog and its tables: ``frazil.connect("./lake")`` opens one. README.md has a first example.
"""

import os as _os

from frazil.commit.retry import Retry
from frazil.errors import (
    CatalogUnavailable,
    CommitFailed,
    CommitUnknown,
    ConflictError,
    CorruptMetadata,
    DiskFull,
    FrazilError,
    InvalidInput,
    NamespaceExists,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    PermissionDenied,
    RetriesExhausted,
    SchemaMismatch,
    SparkFailed,
    StorageError,
    TableExists,
    Unsupported,
)
from frazil.expr import lit
from frazil.lake import Lake, connect, register
from frazil.model import Commit, Conflict
from frazil.on_spark.session import local as spark
from frazil.read.changes import Changes
from frazil.read.scan import Scan
from frazil.table.merge import MergeBuilder
from frazil.table.table import Table
from frazil.transaction import LakeSnapshot, Transaction

__version__ = "0.1.0"

__all__ = [
    "CatalogUnavailable",
    "Changes",
    "Commit",
    "CommitFailed",
    "CommitUnknown",
    "Conflict",
    "ConflictError",
    "CorruptMetadata",
    "DiskFull",
    "FrazilError",
    "InvalidInput",
    "Lake",
    "LakeSnapshot",
    "MergeBuilder",
    "NamespaceExists",
    "NamespaceNotEmpty",
    "NoSuchNamespace",
    "NoSuchTable",
    "PermissionDenied",
    "RetriesExhausted",
    "Retry",
    "Scan",
    "SchemaMismatch",
    "SparkFailed",
    "StorageError",
    "Table",
    "TableExists",
    "Transaction",
    "Unsupported",
    "connect",
    "lit",
    "register",
    "spark",
]

if _os.environ.get("FRAZIL_RECORD"):
    # Records any job without a change to it (docs/checker.md).
    from frazil.verify.recording import record_from_environment as _record

    _record()

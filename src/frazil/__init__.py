"""Frazil: many writers, one Apache Iceberg table.

A lake is a catalog and its tables: ``frazil.connect("./lake")`` opens one, and README.md has the first ten lines.
"""

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
    StorageError,
    TableExists,
    Unsupported,
)
from frazil.format.filters import lit
from frazil.lake import Lake, connect
from frazil.model import Commit, Conflict
from frazil.read.scan import Scan
from frazil.table import Table
from frazil.transaction import LakeSnapshot, Transaction

__version__ = "0.1.0"

__all__ = [
    "CatalogUnavailable",
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
    "NamespaceExists",
    "NamespaceNotEmpty",
    "NoSuchNamespace",
    "NoSuchTable",
    "PermissionDenied",
    "RetriesExhausted",
    "Retry",
    "Scan",
    "SchemaMismatch",
    "StorageError",
    "Table",
    "TableExists",
    "Transaction",
    "Unsupported",
    "connect",
    "lit",
]

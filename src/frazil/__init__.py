"""Frazil: many writers, one Apache Iceberg table.

A lake is a catalog and its tables: ``frazil.connect("./lake")`` opens one. README.md has a first example.
"""

import os as _os
import typing as _typing
from importlib import import_module as _import_module

# First, so that every fork waits for modules that another thread is loading.
from frazil import _fork as _fork
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
    PartlyCommitted,
    PermissionDenied,
    RetriesExhausted,
    SchemaMismatch,
    SparkFailed,
    StorageError,
    TableExists,
    Unsupported,
)

if _typing.TYPE_CHECKING:
    from frazil.commit.retry import Retry
    from frazil.expr import lit
    from frazil.lake import Lake, connect, register
    from frazil.model import Commit, Conflict, ProcedureRows, TransactionCommit, Winner
    from frazil.on_spark.session import local as spark
    from frazil.read.changes import Changes
    from frazil.read.scan import Scan
    from frazil.table.merge import MergeBuilder
    from frazil.table.table import Table
    from frazil.transaction import LakeSnapshot, Transaction
else:
    _ON_FIRST_USE = {
        "Changes": "frazil.read.changes:Changes",
        "Commit": "frazil.model:Commit",
        "Conflict": "frazil.model:Conflict",
        "Lake": "frazil.lake:Lake",
        "LakeSnapshot": "frazil.transaction:LakeSnapshot",
        "MergeBuilder": "frazil.table.merge:MergeBuilder",
        "ProcedureRows": "frazil.model:ProcedureRows",
        "Retry": "frazil.commit.retry:Retry",
        "Scan": "frazil.read.scan:Scan",
        "Table": "frazil.table.table:Table",
        "Transaction": "frazil.transaction:Transaction",
        "TransactionCommit": "frazil.model:TransactionCommit",
        "Winner": "frazil.model:Winner",
        "connect": "frazil.lake:connect",
        "lit": "frazil.expr:lit",
        "register": "frazil.lake:register",
        "spark": "frazil.on_spark.session:local",
    }

    def __getattr__(name: str) -> object:
        """Names that need PyIceberg and Arrow are loaded on first use."""
        if name not in _ON_FIRST_USE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = _ON_FIRST_USE[name].partition(":")
        value = globals()[name] = getattr(_import_module(module), attribute)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_ON_FIRST_USE})


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
    "PartlyCommitted",
    "PermissionDenied",
    "ProcedureRows",
    "RetriesExhausted",
    "Retry",
    "Scan",
    "SchemaMismatch",
    "SparkFailed",
    "StorageError",
    "Table",
    "TableExists",
    "Transaction",
    "TransactionCommit",
    "Unsupported",
    "Winner",
    "connect",
    "lit",
    "register",
    "spark",
]

if _os.environ.get("FRAZIL_RECORD"):
    # Records any job without a change to it (docs/checker.md).
    from frazil.verify.recording import record_from_environment as _record

    _record()

"""Checks a recorded history: which isolation levels it rules out, and by which anomaly."""

from __future__ import annotations

from frazil.verify.checker.core import check
from frazil.verify.checker.model import (
    Anomaly,
    Edge,
    Figures,
    Key,
    Kind,
    Level,
    Outcome,
    Read,
    Report,
    Step,
    Transaction,
    Value,
    Version,
    VersionId,
    Write,
)

__all__ = [
    "Anomaly",
    "Edge",
    "Figures",
    "Key",
    "Kind",
    "Level",
    "Outcome",
    "Read",
    "Report",
    "Step",
    "Transaction",
    "Value",
    "Version",
    "VersionId",
    "Write",
    "check",
]

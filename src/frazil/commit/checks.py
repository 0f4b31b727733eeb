"""The names of the checks, and what they may look at beyond an operation and a winner's change."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from pyroaring import BitMap64

from frazil.model import Change, DataFile, Entry, Lineage

if TYPE_CHECKING:
    from frazil.commit.operations import Read


class Check(enum.StrEnum):
    SAME_TABLE = "same table"
    BRANCH_EXISTS = "branch still exists"
    SCHEMA_COMPATIBLE = "schema still compatible"
    SPEC_LISTED = "partition spec still listed"
    KEYS_UNCHANGED = "keys unchanged"
    LAYOUT_UNCHANGED = "partitioning and sort order unchanged"
    REFS_UNCHANGED = "refs unchanged"
    BASE_IS_ANCESTOR = "history unbroken since the base"
    FILES_EXIST = "required files still exist"
    FILES_NOT_REMOVED = "my files not removed by another"
    NO_NEW_DELETES = "no new deletes on my files"
    ROW_OWNER = "one owner for each row"
    NO_ADDED_ROWS = "no added rows match my filter"
    NO_REMOVED_ROWS = "no removed rows match my filter"
    NO_NEW_DELETE_FILES = "no new delete files match my filter"
    ADDED_ONCE = "my files not in the table already"
    NOT_DELETED = "my rows not deleted meanwhile"
    SINK_UNMOVED = "the sink's mark where I saw it"


class FileInspector(Protocol):
    """A closer look at a few files, where statistics cannot decide. Answers never depend on when they are asked."""

    def positions(self, deletes: DataFile) -> Mapping[str, BitMap64]:
        """Data file → rows that a position delete file takes out of it."""

    def lineage(self, path: str) -> Lineage | None:
        """A sidecar; None when it cannot be read any more."""

    def applies(self, deletes: Entry, file: DataFile) -> bool:
        """Whether, by partition and bounds, an equality delete of a winner may hit rows of this file."""

    def hit_by_keys(self, deletes: Entry, file: DataFile, rows: BitMap64) -> BitMap64:
        """Those of the rows whose key an equality delete names."""

    def asked_to_go(self, change: Change, file: DataFile) -> BitMap64:
        """Rows of a file of mine that the change was asked to take out of the table."""

    def matches(self, added: Entry, read: Read) -> bool:
        """Whether some row of a file that a winner added is among those that were looked at."""

    def live_rows(self, path: str) -> BitMap64 | None:
        """The rows of a file that were not deleted at the base; None: the file was not there then."""

    def seen_files(self) -> Mapping[str, DataFile]:
        """The files of the base that may hold rows which my operation depends on, by path."""

    def seen_rows(self, path: str) -> tuple[DataFile, BitMap64] | None:
        """The rows of one of these files that my operation depends on."""

"""The names of the checks, and what they may read beyond an operation and a concurrent change."""

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


REPEATABLE: Mapping[Check, bool] = {
    # The name, the branch, the columns or the ref mean something else now, and the same call would meet that again.
    Check.SAME_TABLE: False,
    Check.BRANCH_EXISTS: False,
    Check.SCHEMA_COMPATIBLE: False,
    Check.REFS_UNCHANGED: False,
    # The rows are in the table already.
    Check.ADDED_ONCE: False,
    # Another stream uses the sink's id.
    Check.SINK_UNMOVED: False,
    # The same call, given whole, finds what is in the table now.
    Check.SPEC_LISTED: True,
    Check.KEYS_UNCHANGED: True,
    Check.LAYOUT_UNCHANGED: True,
    Check.BASE_IS_ANCESTOR: True,
    Check.FILES_EXIST: True,
    Check.FILES_NOT_REMOVED: True,
    Check.NO_NEW_DELETES: True,
    Check.ROW_OWNER: True,
    Check.NO_ADDED_ROWS: True,
    Check.NO_REMOVED_ROWS: True,
    Check.NO_NEW_DELETE_FILES: True,
    Check.NOT_DELETED: True,
}
"""Whether a call that failed this check may succeed when it is repeated as it is."""


class FileInspector(Protocol):
    """Reads a few files where statistics do not decide. Answers do not depend on when they are asked for."""

    def positions(self, deletes: DataFile) -> Mapping[str, BitMap64]:
        """Data file → rows that a position delete file deletes from it."""

    def lineage(self, path: str) -> Lineage | None:
        """The content of a lineage sidecar; None: it can no longer be read."""

    def applies(self, deletes: Entry, file: DataFile) -> bool:
        """Whether, by partition and bounds, a delete file may apply to rows of this data file."""

    def hit_by_keys(self, deletes: Entry, file: DataFile, rows: BitMap64) -> BitMap64:
        """Those of the rows whose key an equality delete contains."""

    def asked_to_go(self, change: Change, file: DataFile) -> BitMap64 | None:
        """Rows of one of the operation's files that the change was asked to delete; None: the file has to be opened,
        and this inspector does not open files.
        """

    def matches(self, added: Entry, read: Read) -> bool:
        """Whether a concurrently added file contains a row that the operation would have read."""

    def live_rows(self, path: str) -> BitMap64 | None:
        """The rows of a file that were live at the base; None: the file was not in the table."""

    def seen_files(self) -> Mapping[str, DataFile]:
        """The files of the base that may contain rows which the operation depends on, by path."""

    def seen_rows(self, path: str) -> tuple[DataFile, BitMap64] | None:
        """The rows of one of these files that the operation depends on."""

"""Which version of a table a call reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from frazil.commit.group import GROUP_SIZE
from frazil.commit.summaries import commits_of
from frazil.expr import Filter
from frazil.format.metadata import TableMetadata
from frazil.model import Ident, SharedCommit

if TYPE_CHECKING:
    from frazil.lake import Lake


class Source(Protocol):
    """A table of a lake, and which version of it is read."""

    @property
    def lake(self) -> Lake: ...

    @property
    def ident(self) -> Ident: ...

    def metadata(self) -> TableMetadata:
        """The version that the next call reads."""
        ...

    def note_read(self, where: Filter, branch: str) -> None:
        """A scan of the newest rows of a branch was made."""
        ...

    def shared_commits(self, metadata: TableMetadata) -> Mapping[int, tuple[SharedCommit, ...]]:
        """By snapshot id, the commits that share a snapshot, as far as the catalog still has their records."""
        ...


@dataclass(frozen=True, slots=True)
class CurrentTable:
    """Every call reads the head."""

    lake: Lake
    ident: Ident

    def metadata(self) -> TableMetadata:
        return self.lake.catalog.load(self.ident).metadata

    def note_read(self, where: Filter, branch: str) -> None:
        """Only a transaction keeps a read set."""

    def shared_commits(self, metadata: TableMetadata) -> Mapping[int, tuple[SharedCommit, ...]]:
        numbers = [each.sequence_number for each in metadata.snapshots() if GROUP_SIZE in each.summary]
        log = self.lake.catalog.changes
        if not numbers or log is None:
            return {}
        return commits_of(log.find(metadata.uuid, min(numbers) - 1, max(numbers)))

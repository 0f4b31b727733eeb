"""Removes files below a table's location that nothing names: leftovers of killed jobs (rules P13 and P42).

    list ─▶ read what is needed ─▶ note ─▶ fence ─▶ read what is needed again ─▶ delete ─▶ notes removed

Listing comes first: a file that a commit names after the listing is found by the second step. The fence is a commit
that moves the head and lowers ``frazil.orphans.grace-ms``: an attempt that began before it loses its race, and one that
begins after it checks that none of its files is noted. So a writer that was stopped for hours fails, instead of
committing files that are gone. Files of writers that are alive are protected by their heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from frazil.catalog.base import FileKind, Head, NotedFile, StagedPrefix
from frazil.errors import FrazilError, InvalidInput, PermissionDenied, Unsupported
from frazil.format.metadata import TableMetadata
from frazil.format.properties import ORPHAN_GRACE
from frazil.format.storage import FileInfo, is_below, is_local, local_path, same_path
from frazil.services.context import DeletionPhase, ServiceContext
from frazil.services.deletion import delete_files
from frazil.services.reachable import Beside, FileSet, beside, hash_of, needed

DEFAULT_GRACE_MS = 3 * 24 * 60 * 60 * 1000
_DAY_MS = 24 * 60 * 60 * 1000
_CLOCKS_DIFFER_MS = 60_000
"""How much the clocks of a store and a catalog may differ, for files of a registered writer."""
_BATCH = 1000

Fence = Callable[[int], None]
"""Moves the head by a commit, and sets the table's grace period to so many milliseconds."""


@dataclass(frozen=True, slots=True)
class OrphanReport:
    """What orphan removal found below a table's location."""

    location: str
    dry_run: bool
    files_listed: int
    orphans: tuple[str, ...]
    """Files that nothing names and that are older than the grace period."""
    bytes: int
    files_removed: int
    kept_young: int
    """Files that nothing names and that are younger."""
    kept_staged: int
    """Files that nothing names and that a live writer may be staging."""
    failed: tuple[str, ...] = ()
    """Files that could not be removed."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Candidate:
    path: str
    info: FileInfo


@dataclass(frozen=True, slots=True)
class OrphanRun:
    """One removal, or only a search for orphans."""

    context: ServiceContext
    grace_ms: int = DEFAULT_GRACE_MS
    location: str | None = None
    """Only below this folder, inside the table's location."""

    def run(self, *, dry_run: bool, fence: Fence) -> OrphanReport:
        head = self.context.head()
        self._check(head.metadata, dry_run=dry_run)
        if not dry_run:
            self._forget_old_notes(head.metadata.uuid)
        roots = self._roots(head.metadata)
        store_now = self._store_now(head, dry_run=dry_run)
        listed = self._listed(roots, beside(self.context, head.metadata), head.metadata)
        self.context.on_phase(DeletionPhase.LISTED)
        unnamed = self._unnamed(listed)
        staged = self._staged(head.metadata.uuid)
        free = [each for each in unnamed if not _is_staged(each, staged)]
        old = [each for each in free if each.info.modified_ms <= store_now - self.grace_ms]
        failed: Sequence[str] = ()
        removed: list[str] = []
        if old and not dry_run:
            removed, failed = self._remove(old, head, fence)
        return OrphanReport(
            location=roots[0],
            dry_run=dry_run,
            files_listed=len(listed),
            orphans=tuple(each.path for each in old),
            bytes=sum(each.info.size for each in old),
            files_removed=len(removed),
            kept_young=len(free) - len(old),
            kept_staged=len(unnamed) - len(free),
            failed=tuple(failed),
        )

    def _forget_old_notes(self, table_uuid: str) -> None:
        """Those of a run that has ended without removing them. What they name is found again."""
        log, after = self.context.catalog.deletions, ""
        while log is not None and (batch := log.noted(table_uuid, after, _BATCH)):
            after = batch[-1].path
            old = [each.path for each in batch if each.kind is FileKind.ORPHAN and each.age_ms > _DAY_MS]
            log.remove(table_uuid, old)

    def _check(self, metadata: TableMetadata, *, dry_run: bool) -> None:
        if str(metadata.properties.get("gc.enabled", "true")).lower() == "false":
            raise InvalidInput(
                f"The table {self.context.ident} has gc.enabled=false: other tables may use its files as well",
                advice="Set gc.enabled to 'true' if they do not",
            )
        if self.grace_ms < 0:
            raise InvalidInput("older_than must be an age, not a moment in the future")
        if not dry_run and self.grace_ms < _DAY_MS and self.context.catalog.deletions is None:
            raise Unsupported(
                "This catalog keeps no notes of files to delete, so files younger than 24 hours may belong to a writer",
                advice="Pass older_than=datetime.timedelta(days=1) or more",
            )

    def _roots(self, metadata: TableMetadata) -> list[str]:
        # Folders that write.data.path names may belong to several tables, and are left alone.
        own = [metadata.location.rstrip("/"), metadata.metadata_folder]
        roots = [each for each in own if not any(_is_inside(each, other) for other in own if other != each)]
        if self.location is None:
            return roots
        if not any(is_below(same_path(self.location), same_path(each)) for each in own):
            raise InvalidInput(
                f"{self.location} is not below the location of {self.context.ident}, {metadata.location}",
                advice="Leave location out, or name a folder of this table",
            )
        return [self.location.rstrip("/")]

    def _store_now(self, head: Head, *, dry_run: bool) -> int:
        """The store's time, by a file that is written now: ages must not depend on the clock of this host."""
        if dry_run:
            return head.now_ms
        storage = self.context.storage
        folder = f"{head.metadata.metadata_folder}/clock-{self.context.runtime.new_hex()}"
        try:
            storage.write(f"{folder}/now", b"")
            found = [each.modified_ms for each in storage.list(folder)]
        finally:
            storage.delete([f"{folder}/now"])
            storage.remove_empty_folders(folder)
        return min([head.now_ms, *found])

    def _listed(self, roots: Sequence[str], others: Beside, metadata: TableMetadata) -> list[_Candidate]:
        """Every file below the roots that is not in the folder of a table with a place of its own."""
        inner = [each for each in others.folders if any(is_below(each, same_path(root)) for root in roots)]
        found: list[_Candidate] = []
        for root in roots:
            for info in self.context.storage.list(root):
                form = same_path(info.path)
                if is_below(form, same_path(root)) and not any(is_below(form, each) for each in inner):
                    found.append(_Candidate(_under(root, info.path), info))
        self._refuse_unknown_tables(found, metadata, others)
        return found

    def _refuse_unknown_tables(self, listed: Iterable[_Candidate], metadata: TableMetadata, others: Beside) -> None:
        """A table of which this catalog knows nothing lives here as well: its files cannot be told from orphans."""
        folders = {same_path(metadata.metadata_folder)}
        folders |= {same_path(each.metadata.metadata_folder) for each in others.heads}
        for each in listed:
            if each.path.endswith(".metadata.json") and same_path(each.path).rsplit("/", 1)[0] not in folders:
                raise InvalidInput(
                    f"Another table has files below {metadata.location}",
                    evidence=f"{each.path} is not one of {self.context.ident}, nor of another table of this catalog",
                    advice="Move that table, register it in this catalog, or name a folder with location=…",
                )

    def _unnamed(self, listed: Sequence[_Candidate]) -> list[_Candidate]:
        """What nothing names now. Versions are read after the listing."""
        versions, uuids = self._versions()
        found = needed(self.context, versions, extra_lists=self._pinned_lists(uuids))
        rest = [(each, hash_of(each.path)) for each in listed]
        for part in found.parts:
            if any(part.has(hashed) for _, hashed in rest):
                kept: FileSet = found.files(part)
                rest = [(each, hashed) for each, hashed in rest if not (part.has(hashed) and kept.has(hashed))]
        return [each for each, _ in rest]

    def _versions(self) -> tuple[list[Head], set[str]]:
        head = self.context.head()
        heads = [head, *beside(self.context, head.metadata).heads]
        return heads, {each.metadata.uuid for each in heads}

    def _pinned_lists(self, uuids: Iterable[str]) -> list[str]:
        """Lists of expired snapshots whose files are not deleted yet: expiry does that, and knows who needs them."""
        log = self.context.catalog.changes
        pins = self.context.catalog.pins
        if log is None or pins is None:
            return []
        lists = [path for uuid in uuids if pins.pinned(uuid) for path in log.dropped_lists(uuid)]
        storage = self.context.storage
        return [path for path in lists if _exists(storage, path)]

    def _staged(self, table_uuid: str) -> list[StagedPrefix]:
        log = self.context.catalog.staged
        return [] if log is None else log.live(table_uuid)

    def _remove(self, old: Sequence[_Candidate], head: Head, fence: Fence) -> tuple[list[str], list[str]]:
        log, uuid = self.context.catalog.deletions, head.metadata.uuid
        paths = [each.path for each in old]
        if log is not None:
            log.note(uuid, [NotedFile(path, FileKind.ORPHAN) for path in paths])
            self.context.on_phase(DeletionPhase.NOTED)
            fence(min(self.grace_ms, _grace(head.metadata)))
        # A commit may have landed, a file been queued, or a writer registered between the listing and the fence.
        staged = self._staged(uuid)
        unneeded = [each.path for each in self._unnamed(old) if not _is_staged(each, staged)]
        self.context.on_phase(DeletionPhase.CHECKED)
        failed: list[str] = []
        for start in range(0, len(unneeded), _BATCH):
            if self.context.progress.should_stop:
                break
            batch = unneeded[start : start + _BATCH]
            failed += delete_files(self.context, batch)
            self.context.on_phase(DeletionPhase.DELETED)
            if log is not None:
                log.remove(uuid, batch)
                self.context.on_phase(DeletionPhase.FORGOTTEN)
            self.context.progress.advanced(start + len(batch), len(unneeded), {})
        if log is not None:
            log.remove(uuid, paths)
        remain = set(failed)
        return [path for path in unneeded if path not in remain], failed


def _is_staged(each: _Candidate, staged: Sequence[StagedPrefix]) -> bool:
    form = same_path(each.path)
    return any(
        is_below(form, same_path(writer.prefix)) and each.info.modified_ms >= writer.since_ms - _CLOCKS_DIFFER_MS
        for writer in staged
    )


def _grace(metadata: TableMetadata) -> int:
    text = str(metadata.properties.get(ORPHAN_GRACE, DEFAULT_GRACE_MS))
    return int(text) if text.isdigit() else DEFAULT_GRACE_MS


def _is_inside(path: str, folder: str) -> bool:
    return is_below(same_path(path), same_path(folder))


def _under(root: str, listed: str) -> str:
    """A listed file as the table's own writers name it."""
    plain = local_path(root) if is_local(root) else root
    return root + listed[len(plain) :] if listed.startswith(plain + "/") else listed


def _exists(storage: Any, path: str) -> bool:
    try:
        storage.open_input(path).close()
    except PermissionDenied:
        raise
    except FrazilError:
        return False
    return True

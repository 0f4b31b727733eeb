"""What catalogs keep for services that delete: notes of files, staged prefixes, files of undecided commits (P42)."""

from __future__ import annotations

from contract.openers import Opener
from frazil.catalog.base import Catalog, FileKind, NotedFile, QueuedCommit, StagedPrefix

UUID, OTHER = "table-uuid", "another table"


def paths(found: list[NotedFile]) -> list[str]:
    return [each.path for each in found]


def test_notes_are_kept_until_they_are_removed(catalog: Catalog, opener: Opener) -> None:
    log = catalog.deletions
    assert (log is not None) is opener.ours
    if log is None:
        return
    files = [NotedFile(f"/t/{number:04}", FileKind.DATA) for number in range(2500)]
    log.note(UUID, files)
    log.note(UUID, [NotedFile("/t/0001", FileKind.MANIFEST), NotedFile("/t/x" * 500, FileKind.DATA)])
    log.note(OTHER, [NotedFile("/t/0001", FileKind.LINEAGE)])
    first = log.noted(UUID, "", 1000)
    assert paths(first) == [f"/t/{number:04}" for number in range(1000)]
    assert (first[1].kind, 0 <= first[1].age_ms < 600_000) == (FileKind.DATA, True)
    assert paths(log.noted(UUID, "/t/2498", 1000))[0] == "/t/2499"
    assert log.among(UUID, ["/t/0001", "/elsewhere", "/t/2499"]) == ["/t/0001", "/t/2499"]
    log.remove(UUID, [each.path for each in files])
    log.remove(UUID, ["/t/0001"])
    assert log.among(UUID, [each.path for each in files]) == []
    assert [each.kind for each in log.noted(OTHER, "", 10)] == [FileKind.LINEAGE]


def test_a_staging_writer_is_live_until_it_ends_or_is_silent(catalog: Catalog, opener: Opener) -> None:
    staged = catalog.staged
    assert (staged is not None) is opener.ours
    if staged is None:
        return
    staged.register("w1", UUID, "/t", 5_000, 60_000)
    staged.register("w1", UUID, "/t", 9_000, 60_000)
    staged.register("dead", UUID, "/t", 0, -1)
    staged.register("other", OTHER, "/o", 0, 60_000)
    (found,) = staged.live(UUID)
    assert found.prefix == "/t"
    (other,) = staged.live(OTHER)
    assert 4_000 <= other.since_ms - found.since_ms <= 600_000, "its start, not that of the second call"
    staged.extend("w1", -1)
    assert staged.live(UUID) == []
    staged.register("w1", UUID, "/t", 0, 60_000)
    assert len(staged.live(UUID)) == 1
    staged.release("w1")
    assert staged.live(UUID) == []
    assert staged.live(OTHER) == [StagedPrefix("/o", other.since_ms)]


def test_undecided_commits_are_those_that_may_still_land(catalog: Catalog, opener: Opener) -> None:
    queue = catalog.queue
    if queue is None or not opener.ours:
        return

    def ticket(key: str, uuid: str = UUID, version: int = 2) -> QueuedCommit:
        return QueuedCommit(key, uuid, key, version, b"" if version == 0 else b"{}", queue_key="q")

    for each in (ticket("waits"), ticket("gone"), ticket("other", OTHER), ticket("reserved", version=0)):
        queue.put(each, 60_000)
    queue.put(ticket("late"), -1)
    queue.withdraw("gone")
    assert [each.key for each in queue.undecided(UUID)] == ["waits"]

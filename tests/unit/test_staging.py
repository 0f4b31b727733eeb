"""Which writes register with the catalog, and when their heartbeats are sent, on a virtual clock."""

from __future__ import annotations

from dataclasses import replace

from frazil.catalog._memory_access import Access
from frazil.catalog._memory_services import MemoryStagedPrefixes
from frazil.format.metadata import TableMetadata
from frazil.runtime import SYSTEM, Runtime
from frazil.services.staging import LIVES_MS, StagingWatch

UUID = "u"


class Clock:
    now_s = 1_000.0

    def runtime(self) -> Runtime:
        return replace(SYSTEM, now_ms=lambda: int(self.now_s * 1000), monotonic=lambda: self.now_s)


def metadata(**properties: str) -> TableMetadata:
    named = {key.replace("_", "-"): value for key, value in properties.items()}
    return TableMetadata({"table-uuid": UUID, "location": "/t", "properties": named})


def watched() -> tuple[Clock, MemoryStagedPrefixes, StagingWatch]:
    clock = Clock()
    staged = MemoryStagedPrefixes(Access(), clock.runtime())
    return clock, staged, StagingWatch(staged, clock.runtime())


def test_a_short_write_costs_no_request() -> None:
    clock, staged, watch = watched()
    with watch.staging(metadata()):
        clock.now_s += 4
        watch.beat()
        assert staged.live(UUID) == []
    watch.close()


def test_a_long_write_is_registered_with_its_start_and_stays_alive() -> None:
    clock, staged, watch = watched()
    with watch.staging(metadata()):
        clock.now_s += 6
        watch.beat()
        assert [each.since_ms for each in staged.live(UUID)] == [1_000_000]
        for _ in range(1000):
            clock.now_s += 30
            watch.beat()
            assert len(staged.live(UUID)) == 1
    assert staged.live(UUID) == []
    watch.close()


def test_a_writer_that_is_silent_counts_as_dead_until_it_goes_on() -> None:
    clock, staged, watch = watched()
    with watch.staging(metadata(), at_once=True):
        assert len(staged.live(UUID)) == 1
        clock.now_s += LIVES_MS / 1000 + 1
        assert staged.live(UUID) == []
        watch.beat()
        assert len(staged.live(UUID)) == 1
    watch.close()


def test_a_catalog_without_the_record_is_left_alone() -> None:
    watch = StagingWatch(None, SYSTEM)
    with watch.staging(metadata(), at_once=True):
        watch.beat()
    watch.close()

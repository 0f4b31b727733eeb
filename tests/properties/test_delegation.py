"""Operations that travel in a queue come out as they went in."""

from __future__ import annotations

import math
from dataclasses import replace

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from frazil.catalog.base import QueuedCommit
from frazil.commit.delegation import MOST_FILES, VERSION, DelegatedCommit, UnreadableTicket, decode, delegable, encode
from frazil.commit.intents import PropertyChange, SinkMark
from frazil.commit.operations import Base, Bundle, Identity, Kind, MetadataChange, RowCounts, Write
from frazil.model import Content, DataFile, FieldSummary, Isolation, Manifest, Origin
from unit.test_summaries import bounds, counts, files, plain, texts

UUID = "11111111-1111-1111-1111-111111111111"
small = st.integers(0, 2**31 - 1)
longs = st.integers(0, 2**63 - 1)
whole_files = st.builds(
    lambda file, sizes, offsets, secret, order: replace(
        file, column_sizes=sizes, split_offsets=tuple(offsets), key_metadata=secret, sort_order_id=order
    ),
    files,
    counts,
    st.lists(longs, max_size=3),
    st.none() | st.binary(max_size=20),
    st.none() | small,
)
writes = st.builds(
    Write,
    kind=st.sampled_from([Kind.APPEND, Kind.UPSERT]),
    table_uuid=st.just(UUID),
    base=st.builds(Base, st.none() | longs, longs),
    branch=st.text(min_size=1, max_size=20),
    isolation=st.sampled_from(Isolation),
    added=st.lists(whole_files, min_size=1, max_size=3).map(tuple),
    deletes=st.lists(whole_files, max_size=2).map(tuple),
    keys=st.lists(small, max_size=3).map(tuple),
    key_spec_id=st.none() | small,
    on_deleted=st.sampled_from(["abort", "keep", "drop"]),
    schema_id=small,
    written_ids=st.dictionaries(small, texts, max_size=4),
    nullable_ids=st.frozensets(small, max_size=4),
    staged_since_ms=st.none() | longs,
    rows=st.builds(RowCounts, longs, longs, longs),
    snapshot_properties=st.dictionaries(texts, texts, max_size=3),
    own_snapshot=st.booleans(),
)
intents = st.one_of(
    st.builds(PropertyChange, st.dictionaries(texts, texts, max_size=3), st.lists(texts, max_size=3).map(tuple)),
    st.builds(SinkMark, texts, st.none() | texts, texts),
)
changes = st.lists(st.builds(MetadataChange, st.just(UUID), intents, texts), max_size=2).map(tuple)
identities = st.builds(Identity, texts, texts, st.booleans())
ranges = st.builds(
    FieldSummary, st.booleans(), st.none() | st.booleans(), st.none() | st.binary(), st.none() | st.binary()
)
bundles = st.builds(
    Bundle,
    st.builds(
        Manifest, texts, longs, small, st.integers(0, 1), longs, longs, longs, longs, longs, longs, longs, longs,
        longs, st.lists(ranges, max_size=2).map(tuple), st.none() | st.binary(max_size=20),
    ),
    longs,
)  # fmt: skip


def no_bundles() -> tuple[Bundle, ...]:
    raise AssertionError("a small operation travels as it is")


def ticket(body: bytes, identity: Identity, version: int = VERSION) -> QueuedCommit:
    return QueuedCommit("key", UUID, identity.commit_id, version, body)


@settings(max_examples=150)
@given(st.none() | writes, changes, identities)
@example(
    Write(Kind.APPEND, UUID, added=(DataFile("f", 1, 1, partition=(math.nan, -math.inf, -0.0)),)),
    (),
    Identity("id", "digest", given=False),
)
def test_what_is_decoded_is_what_was_encoded(
    write: Write | None, changes: tuple[MetadataChange, ...], identity: Identity
) -> None:
    body = encode(DelegatedCommit(write, changes), identity, no_bundles)
    assert body is not None
    parcel, found = decode(ticket(body, identity))
    assert found == identity
    assert plain(parcel.changes) == plain(changes)
    assert plain(parcel.write) == plain(write)


@given(st.none() | st.builds(Origin, texts, texts, texts, st.integers(0, 2**62)))
def test_a_ticket_brings_where_it_comes_from_and_needs_not(origin: Origin | None) -> None:
    identity = Identity("id", "digest", given=True, origin=origin)
    body = encode(DelegatedCommit(None), identity, no_bundles)
    assert body is not None
    assert decode(ticket(body, identity))[1].origin == origin
    raw = orjson.loads(body)
    del raw["origin"]
    assert set(raw) == {"digest", "given", "changes", "write"}, "all that earlier versions write, and read"
    found = decode(ticket(orjson.dumps(raw), identity))[1]
    assert (found, found.origin) == (identity, None)


@settings(max_examples=50)
@given(writes, st.lists(bundles, min_size=1, max_size=2).map(tuple), identities)
def test_an_operation_with_many_files_is_queued_with_manifests(
    write: Write, made: tuple[Bundle, ...], identity: Identity
) -> None:
    many = replace(write, added=write.added * (MOST_FILES + 1))
    body = encode(DelegatedCommit(many), identity, lambda: made)
    assert body is not None
    parcel, _ = decode(ticket(body, identity))
    assert plain(parcel.write) == plain(replace(write, added=(), deletes=(), bundles=made))


@settings(max_examples=120)
@given(writes, identities, st.data())
def test_a_damaged_ticket_is_not_understood_or_is_another_operation(
    write: Write, identity: Identity, data: st.DataObject
) -> None:
    """It is returned to its writer; no other commit fails because of it (P4)."""
    body = bytearray(encode(DelegatedCommit(write), identity, no_bundles) or b"")
    where = data.draw(st.integers(0, len(body) - 1))
    body[where] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(body), bytes(body[:where])):
        try:
            parcel, _ = decode(ticket(damaged, identity))
        except UnreadableTicket:
            continue
        assert isinstance(parcel, DelegatedCommit)


@given(st.binary(max_size=60), st.integers(-5, 50))
def test_other_bytes_and_versions_are_not_understood(body: bytes, version: int) -> None:
    identity = Identity("id", "digest", given=True)
    with pytest.raises(UnreadableTicket):
        decode(ticket(body, identity))
    if version != VERSION:
        good = encode(DelegatedCommit(None), identity, no_bundles)
        assert good is not None
        with pytest.raises(UnreadableTicket):
            decode(ticket(good, identity, version))


@settings(max_examples=100)
@given(writes, st.sampled_from(["removed", "removed_deletes", "copies", "moved", "positions", "snapshot_id", "owned"]))
def test_only_operations_without_references_to_other_files_are_delegable(write: Write, what: str) -> None:
    file = replace(write.added[0], content=Content.DATA)
    odd = {
        "removed": {"removed": (file,)},
        "removed_deletes": {"removed_deletes": (file,)},
        "copies": {"copies": {"out": ()}},
        "moved": {"moved": {"f": bounds}},
        "positions": {"positions": {"f": bounds}},
        "snapshot_id": {"snapshot_id": 7},
        "owned": {"owns_files": False},
    }[what]
    parcel = delegable((write,))
    assert parcel is not None
    assert parcel.write is write
    assert delegable((replace(write, **odd),)) is None  # type: ignore[arg-type]
    assert delegable((write, write)) is None

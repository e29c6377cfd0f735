"""Rows by hash: found, missing, pinned, bounded."""

import pytest

from engine.contract.errors import MediaStoreFull, MissingMedia, TooMuchMedia
from engine.contract.media_store import MediaStore
from engine.wire import Item, item_hash

SIZE = 16 * 588


def item(seed, with_rows=True):
    rows = bytes([seed]) * SIZE
    return Item("image", item_hash("image", (1, 4, 4), "u8", 1, rows), "u8", 1, (1, 4, 4), ((0, 4),),
                rows if with_rows else None)  # fmt: skip


def test_sent_once_then_by_hash():
    store = MediaStore(10 * SIZE)
    store.unpin([i for i in [item(1)] if store.pin([i])])
    assert store.pin([item(1, False)]) == {item(1).hash: item(1).data}
    assert store.bytes == SIZE


def test_every_missing_hash_is_named_once_and_nothing_is_kept():
    store = MediaStore(10 * SIZE)
    with pytest.raises(MissingMedia) as error:
        store.pin([item(1), item(2, False), item(3, False), item(2, False)])
    assert error.value.missing == [item(2).hash, item(3).hash]
    assert error.value.body()["missing"] == error.value.missing
    assert error.value.status == 409
    assert store.bytes == 0


def test_rows_sent_with_another_item_of_the_request_count():
    store = MediaStore(10 * SIZE)
    assert set(store.pin([item(1), item(1, False)])) == {item(1).hash}


def test_least_recently_used_rows_go_and_pinned_ones_stay():
    store = MediaStore(2 * SIZE)
    store.pin([item(1)])
    for seed in (2, 3):
        store.pin([item(seed)])
        store.unpin([item(seed)])
    assert [store.holds(item(s).hash) for s in (1, 2, 3)] == [True, False, True]
    assert store.bytes == 2 * SIZE


def test_pins_are_counted():
    store = MediaStore(SIZE)
    store.pin([item(1)])
    store.pin([item(1, False)])
    store.unpin([item(1)])
    with pytest.raises(MediaStoreFull):
        store.pin([item(2)])
    store.unpin([item(1)])
    store.pin([item(2)])
    assert not store.holds(item(1).hash)


def test_more_than_the_store_may_ever_hold_is_refused_with_the_numbers():
    store = MediaStore(2 * SIZE)
    with pytest.raises(TooMuchMedia, match=f"{3 * SIZE} bytes.*{2 * SIZE}"):
        store.pin([item(s) for s in range(3)])
    assert store.bytes == 0

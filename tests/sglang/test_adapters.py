"""What differs between SGLang versions, adapter by adapter, with SGLang's classes replaced by records."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from engine.sglang import adapter_0_5_17, adapter_0_5_23, plugin
from tests.contract.client import image_item


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules that the adapters import from, with classes that keep what they were given."""

    class Item(SimpleNamespace):
        def set_identity(self, identity: bytes) -> None:
            self.identity = identity

        def set_hash(self, hash_value: int) -> None:
            self.hash = hash_value

    class Request(SimpleNamespace):
        pass

    batch = ModuleType("schedule_batch")
    batch.Modality = SimpleNamespace(IMAGE="image", VIDEO="video")  # type: ignore[attr-defined]
    batch.MultimodalDataItem = Item  # type: ignore[attr-defined]
    batch.MultimodalProcessorOutput = Request  # type: ignore[attr-defined]
    struct = ModuleType("io_struct")
    struct.GenerateReqInput = Request  # type: ignore[attr-defined]
    for name, module in (("schedule_batch", batch), ("io_struct", struct)):
        monkeypatch.setitem(sys.modules, f"sglang.srt.managers.{name}", module)
    for name in ("sglang", "sglang.srt", "sglang.srt.managers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))


@pytest.mark.usefixtures("sglang")
def test_a_picture_keeps_its_hash() -> None:
    item = image_item(3, 1, (1, 4, 4))
    made = adapter_0_5_23.media_inputs([1, 2], [(item, "rows")], 500, 501).mm_items[0]
    assert made.identity == bytes.fromhex(item.hash)
    assert made.offsets == [(3, 6)]
    made = adapter_0_5_17.media_inputs([1, 2], [(item, "rows")], 500, 501).mm_items[0]
    assert made.hash == int(item.hash, 16)
    assert made.feature == "rows"


@pytest.mark.usefixtures("sglang")
def test_a_cache_salt_has_its_own_name_in_each_version() -> None:
    assert adapter_0_5_23.request_input(None, rid="r", cache_salt="s").cache_salt == "s"
    made = adapter_0_5_17.request_input("media", rid="r", cache_salt="s")
    assert made.extra_key == "s"
    assert made.catalejo_media == "media"
    assert not hasattr(made, "cache_salt")


@pytest.mark.parametrize(
    ("adapter", "argument"),
    [(adapter_0_5_23, "some/rid"), (adapter_0_5_17, SimpleNamespace(rid="some/rid"))],
    ids=["0.5.23", "0.5.17"],
)
def test_a_dispatched_request_is_told_once(adapter: Any, argument: Any) -> None:
    told: list[str] = []
    adapter.on_dispatch("some/rid", lambda: told.append("now"))
    for _ in range(2):
        adapter.dispatched(None, object(), argument)
    assert told == ["now"]
    adapter.on_dispatch("some/rid", lambda: told.append("never"))()
    adapter.dispatched(None, object(), argument)
    assert told == ["now"]


@pytest.mark.parametrize(("found", "adapter"), [("0.5.17", adapter_0_5_17), ("0.5.23", adapter_0_5_23)])
def test_the_installed_version_chooses(monkeypatch: pytest.MonkeyPatch, found: str, adapter: Any) -> None:
    monkeypatch.setattr(plugin, "sglang_version", lambda: found)
    assert plugin.adapter() is adapter

"""Parts in, prepared media out: order, single decode, budgets, refusals. Real decoder, real sockets on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.wire import item_hash
from gateway.errors import ApiError
from gateway.media.metrics import MediaMetrics
from gateway.media.preproc import Options, look
from gateway.media.problems import MediaProblem
from gateway.media.service import MediaService
from gateway.media.settings import MediaBudget, MediaSettings
from gateway.media.types import MediaPart, PreparedMedia
from gateway.media.urls import scheme_of
from tests.fixtures.media.hostile import Connection, Server, Table, lifted
from tests.fixtures.media.png import data_url, png

URL_CASES = json.loads((Path(__file__).parents[2] / "fixtures" / "media" / "urls.json").read_text())
DATA_CASES = [case for case in URL_CASES if scheme_of(case["url"]) == "data"]
HOST = "pictures.example"


def part(url: str | None = None, index: int = 0, **more: Any) -> MediaPart:
    return MediaPart(modality=more.pop("modality", "image"), param=f"messages[0].content[{index}]", url=url, **more)


def parts(*urls: str) -> list[MediaPart]:
    return [part(url, index) for index, url in enumerate(urls)]


class Running:
    def __init__(self, service: MediaService) -> None:
        self.service = service

    async def __call__(self, asked: Sequence[MediaPart], tenant: str = "default") -> list[PreparedMedia]:
        return await self.service.prepare(asked, tenant=tenant)

    async def refused(self, asked: Sequence[MediaPart]) -> ApiError:
        with pytest.raises(ApiError) as caught:
            await self.service.prepare(asked)
        assert caught.value.param in {p.param for p in asked} and caught.value.message.startswith(caught.value.param)
        return caught.value

    def count(self, name: str, **labels: str) -> float:
        found = 0.0
        for family in self.service.metrics.registry.collect():
            for sample in family.samples:
                if sample.name == f"catalejo_media_{name}" and labels.items() <= sample.labels.items():
                    found += sample.value
        return found


@asynccontextmanager
async def running(lookup: Table | None = None, **changes: Any) -> AsyncIterator[Running]:
    changes.setdefault("fetch", lifted())
    changes.setdefault("video_workers", 0)  # no processes where no videos are sent
    service = MediaService(
        MediaSettings(**changes), MediaMetrics(), lookup=lookup or Table(pictures_example=[["127.0.0.1"]])
    )
    await service.start()
    try:
        yield Running(service)
    finally:
        await service.close()


@asynccontextmanager
async def serving(body: bytes, headers: str = "", **changes: Any) -> AsyncIterator[tuple[Running, Server, str]]:
    """A service and a server whose every path answers `body`."""
    async with Server(lambda c: c.answer("200 OK", body, headers)) as server:
        async with running(fetch=lifted(f"{HOST}:{server.port}"), **changes) as media:
            yield media, server, f"http://{HOST}:{server.port}"


@pytest.mark.parametrize("case", DATA_CASES, ids=[case["why"] for case in DATA_CASES])
async def test_data_urls_of_the_case_list(case: dict[str, str]) -> None:
    async with running() as media:
        if case["expect"] == "ok":
            (got,) = await media([part(case["url"])])
            assert got.modality == "image" and got.grid[0] == 1
        else:
            error = await media.refused([part(case["url"])])
            assert error.status == 400 and case["url"][-20:] not in error.message


async def test_order_rows_and_hashes_are_kept() -> None:
    sizes = [(64, 48), (400, 300), (64, 48), (28, 280)]
    async with running() as media:
        got = await media(parts(*(data_url(png(w, h, seed)) for seed, (w, h) in enumerate(sizes))))
    for one, (width, height) in zip(got, sizes, strict=True):
        t, h, w = one.grid
        assert (one.rows, one.t_dup, t) == ("u8", 1, 1) and (h > w) == (height > width)
        assert one.tokens == t * h * w // 4 and one.data.nbytes == t * h * w * 588 and one.data.readonly
        assert one.hash == item_hash("image", one.grid, "u8", 1, one.data)
    assert len({one.hash for one in got}) == 4


async def test_low_detail_is_the_area_rule_and_the_rest_the_long_side_rule() -> None:
    url = data_url(png(1920, 1080))
    async with running() as media:
        low, high, auto, small = await media(
            [
                part(url, 0, detail="low"),
                part(url, 1, detail="high"),
                part(url, 2),
                part(url, 3, max_long_side_pixel=448),
            ]
        )
    assert (low.tokens, high.tokens, auto.hash == high.hash) == (576, 2691, True)
    assert small.grid == (1, 18, 32)


async def test_a_hundred_requests_with_one_picture_decode_it_once() -> None:
    url = data_url(png(300, 200))
    async with running() as media:
        results = await asyncio.gather(*(media([part(url)]) for _ in range(100)))
        assert len({one.hash for (one,) in results}) == 1
        assert media.count("decodes_total") == 1 == media.count("cache_misses_total")
        assert media.count("cache_hits_total") == 99


async def test_a_second_request_neither_fetches_nor_decodes() -> None:
    async with serving(png()) as (media, server, base):
        first = await media([part(f"{base}/a.png")])
        second = await media([part(f"{base}/a.png")])
        assert first == second and server.connections == 1
        assert media.count("decodes_total") == 1 and media.count("cache_hits_total", level="memory") == 1
        assert media.count("saved_seconds_total") > 0
        await media([part(f"{base}/same-bytes-elsewhere.png")])
        assert server.connections == 2 and media.count("decodes_total") == 1


async def test_fifty_requests_for_one_url_fetch_it_once() -> None:
    async with serving(png()) as (media, server, base):
        await asyncio.gather(*(media([part(f"{base}/a.png")]) for _ in range(50)))
        assert server.connections == 1 and media.count("fetches_total", outcome="ok") == 1


async def test_no_store_is_fetched_again_but_not_decoded_again() -> None:
    async with serving(png(), "Cache-Control: no-store\r\n") as (media, server, base):
        for _ in range(3):
            await media([part(f"{base}/a.png")])
        assert server.connections == 3 and media.count("decodes_total") == 1


async def test_tenants_share_nothing_unless_told_so() -> None:
    url = data_url(png())
    for scope, decodes in (("tenant", 2), ("shared", 1)):
        async with running(cache_scope=scope) as media:
            await media([part(url)], tenant="a")
            await media([part(url)], tenant="b")
            assert media.count("decodes_total") == decodes


async def test_a_page_instead_of_a_picture_is_named() -> None:
    async with serving(b"<!doctype html><p>hello", "Content-Type: text/html; charset=utf-8\r\n") as (media, _, base):
        error = await media.refused([part(f"{base}/a.png")])
        assert (error.status, error.code) == (400, "media_unsupported_format") and "text/html" in error.message
        assert HOST not in error.message


@pytest.mark.parametrize("modality", ["image", "video"])
@pytest.mark.parametrize("head", [b"%PDF-1.7", b"<svg xmlns='http://www.w3.org/2000/svg'></svg>", b"plain words"])
def test_what_is_neither_is_told_what_is_taken(head: bytes, modality: str) -> None:
    with pytest.raises(MediaProblem) as caught:
        look(head, "image/png", Options(modality, "u8"), 1 << 20)
    assert caught.value.code == "media_unsupported_format"
    assert ("JPEG, PNG, WebP, GIF" if modality == "image" else "MP4, WebM") in caught.value.message


async def test_wrong_declared_type_is_counted_and_the_magic_decides() -> None:
    async with serving(png(), "Content-Type: image/jpeg\r\n") as (media, _, base):
        await media([part(f"{base}/a.jpg")])
        assert media.count("type_mismatches_total") == 1
    async with serving(png(), "Content-Type: application/octet-stream\r\n") as (media, _, base):
        await media([part(f"{base}/a.jpg")])
        assert media.count("type_mismatches_total") == 0


async def test_a_broken_picture_is_refused_and_not_tried_again_for_a_while() -> None:
    whole = png(200, 200)
    async with serving(whole[: len(whole) // 2]) as (media, server, base):
        for _ in range(3):
            error = await media.refused([part(f"{base}/a.png")])
            assert (error.status, error.code) == (400, "media_undecodable")
        assert server.connections == 1 and media.count("cache_negative_hits_total") == 2
    async with serving(whole[: len(whole) // 2], negative_ttl_s=0) as (media, server, base):
        for _ in range(2):
            await media.refused([part(f"{base}/a.png")])
        assert server.connections == 2


async def test_the_bad_part_is_named_and_the_others_are_stopped() -> None:
    async with Server(lambda c: c.until_gone()) as server:
        async with running(fetch=lifted(f"{HOST}:{server.port}", idle_timeout_s=30, total_timeout_s=30)) as media:
            asked = parts(data_url(png()), f"http://{HOST}:{server.port}/", data_url(b"\x89PNG\r\n\x1a\nbroken"))
            error = await media.refused(asked)
            assert error.param == "messages[0].content[2]"
            await asyncio.sleep(0.05)
            assert server.open_now == 0


async def test_spelling_and_options_are_refused_before_any_part_is_fetched() -> None:
    async with serving(png()) as (media, server, base):
        for bad in (
            part("http://127.0.0.1/", 1),
            part("file:///etc/passwd", 1),
            part(None, 1),
            part(f"{base}/b.png", 1, file_id="file-1"),
            part(f"{base}/b.png", 1, max_long_side_pixel=100),
            part(f"{base}/b.png", 1, max_long_side_pixel=4000),
            part(f"{base}/b.mp4", 1, modality="video", fps=60.0),
            part(f"{base}/b.mp4", 1, modality="video", max_frames=0),
        ):
            error = await media.refused([part(f"{base}/a.png", 0), bad])
            assert error.param == "messages[0].content[1]" and error.status == 400
        assert server.connections == 0


async def test_number_of_parts_is_bounded_and_the_first_one_too_many_is_named() -> None:
    async with running(budget=MediaBudget(max_images=2)) as media:
        error = await media.refused(parts(*[data_url(png())] * 4))
        assert (error.code, error.param) == ("media_limit_exceeded", "messages[0].content[2]")
        assert "4 images" in error.message and "limit is 2" in error.message
    tenants = {"rich": MediaBudget(max_images=4)}
    async with running(budget=MediaBudget(max_images=2), tenant_budgets=tenants) as media:
        assert len(await media(parts(*[data_url(png())] * 4), tenant="rich")) == 4


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"max_total_bytes": 3 * (len(png(300, 300)) + 1) - 1}, "together"),
        ({"max_total_pixels": 3 * 300 * 300 - 1}, "pixels"),
        ({"max_total_tokens": 3 * 121 - 1}, "vision tokens"),
    ],
)
async def test_budgets_of_a_request_count_all_parts_whether_cached_or_not(limit: dict[str, int], words: str) -> None:
    three = parts(*(data_url(png(300, 300) + bytes([seed])) for seed in range(3)))
    async with running(budget=MediaBudget(**limit)) as media:
        for _ in range(2):
            error = await media.refused(three)
            assert error.code == "media_limit_exceeded" and words in error.message
            assert len(await media(three[:2])) == 2, "two fit, before and after"


async def test_budgets_are_checked_before_decoding() -> None:
    for limit in ({"max_total_tokens": 100}, {"max_total_pixels": 1000}, {"max_total_bytes": 1000}):
        async with running(budget=MediaBudget(**limit)) as media:
            await media.refused([part(data_url(png(300, 300)))])
            assert media.count("decodes_total") == 0 == media.count("cache_misses_total")


async def test_one_tenants_crowd_is_told_to_come_back_and_others_pass() -> None:
    async with Server(lambda c: c.until_gone()) as server:
        async with running(fetch=lifted(f"{HOST}:{server.port}"), max_parts_per_tenant=3) as media:
            held = asyncio.create_task(media(parts(*[f"http://{HOST}:{server.port}/{n}" for n in range(3)])))
            while server.open_now < 3:
                await asyncio.sleep(0.01)
            with pytest.raises(ApiError) as caught:
                await media([part(data_url(png()))])
            assert caught.value.status == 429 and "retry-after" in caught.value.headers
            assert await media([part(data_url(png()))], tenant="another")
            with pytest.raises(ApiError):
                await held
            assert len(await media(parts(*[data_url(png())] * 5))) == 5, "a request alone is never refused by it"


async def test_more_requests_than_may_be_prepared_are_told_to_come_back() -> None:
    async with Server(lambda c: c.until_gone()) as server:
        async with running(fetch=lifted(f"{HOST}:{server.port}"), max_requests=2) as media:
            held = [asyncio.create_task(media([part(f"http://{HOST}:{server.port}/{n}")])) for n in range(2)]
            while server.open_now < 2:
                await asyncio.sleep(0.01)
            error = await caught_from(media([part(data_url(png()))], tenant="another"))
            assert error.status == 503 and "retry-after" in error.headers
            assert await media([], tenant="another") == [], "a request without media is none of our business"
            await asyncio.gather(*held, return_exceptions=True)
            assert await media([part(data_url(png()))])


async def caught_from(work: Coroutine[Any, Any, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await work
    return caught.value


async def test_pictures_above_the_limits_name_the_limit() -> None:
    async with running(max_image_bytes=1000, max_image_pixels=10_000) as media:
        error = await media.refused([part(data_url(png(64, 64) + bytes(2000)))])
        assert error.code == "media_too_large"
        error = await media.refused([part(data_url(png(200, 51)))])
        assert error.code == "media_limit_exceeded"


async def test_cancelled_requests_leave_nothing_behind() -> None:
    async def slow(c: Connection) -> None:
        await c.answer("200 OK", png(), length=1 << 20)
        await c.until_gone()

    async with Server(slow) as server:
        fetch = lifted(f"{HOST}:{server.port}", idle_timeout_s=30, total_timeout_s=30, min_rate_bytes_s=0)
        async with running(fetch=fetch) as media:
            before = len(asyncio.all_tasks())
            asked = [part(f"http://{HOST}:{server.port}/", 0), part(data_url(png(2000, 2000)), 1)]
            task = asyncio.create_task(media(asked))
            while server.open_now == 0:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while server.open_now or len(asyncio.all_tasks()) > before:
                await asyncio.sleep(0.01)
            assert media.count("in_flight_bytes") == 0


async def test_a_full_decode_queue_is_a_503_with_retry_after_and_passes() -> None:
    async with running(image_threads=1, image_queue=1, parts_at_once=64) as media:
        many = [data_url(png(1500, 1500, seed)) for seed in range(12)]
        results = await asyncio.gather(*(media([part(url)]) for url in many), return_exceptions=True)
        refused = [r for r in results if isinstance(r, ApiError)]
        assert refused and all(r.code == "overloaded" and r.status == 503 for r in refused)
        assert all("retry-after" in r.headers for r in refused)
        assert len(refused) < len(many)
        for url in many:
            await media([part(url)])
        assert media.count("queued", modality="image") == 0 and media.count("in_flight_bytes") == 0


async def test_uploaded_files_are_used_by_id_and_only_by_their_tenant() -> None:
    async with running() as media:
        store = media.service.files
        assert store is not None
        upload = await store.begin("a")
        await upload.write(png(100, 100))
        stored = await store.commit(upload, filename="x", purpose="vision")
        store.end(upload)
        asked = [part(None, 0, file_id=stored.id)]
        (got,) = await media(asked, tenant="a")
        assert await media(asked, tenant="a") == [got]
        (again,) = await media([part(data_url(png(100, 100)))], tenant="a")
        assert got.hash == again.hash and media.count("decodes_total") == 1
        error = await media.refused(asked)
        assert (error.status, error.code) == (404, "file_not_found")
        await store.delete("a", stored.id)
        with pytest.raises(ApiError) as caught:
            await media(asked, tenant="a")
        assert caught.value.code == "file_not_found", "deleted means gone, although its rows are still in the cache"


async def test_rows_survive_a_restart_on_disk_and_damage_is_noticed(tmp_path: Path) -> None:
    url = data_url(png(300, 200))
    async with running(disk_cache_dir=tmp_path) as media:
        (first,) = await media([part(url)])
    async with running(disk_cache_dir=tmp_path) as media:
        (second,) = await media([part(url)])
        assert second == first and media.count("decodes_total") == 0
        assert media.count("cache_hits_total", level="disk") == 1
    (file,) = tmp_path.glob("*.rows")
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    async with running(disk_cache_dir=tmp_path) as media:
        (third,) = await media([part(url)])
        assert third == first and media.count("decodes_total") == 1


async def test_disk_is_bounded_and_oldest_rows_go_first(tmp_path: Path) -> None:
    size = (await_rows := 10 * 12 * 588) + 2000
    async with running(disk_cache_dir=tmp_path, disk_cache_bytes=2 * size) as media:
        for seed in range(4):
            await media([part(data_url(png(168, 140, seed)))])
    files = list(tmp_path.iterdir())
    assert len(files) == 2 and all(await_rows < f.stat().st_size <= size for f in files)


async def test_no_text_of_a_part_shows_up_in_metrics() -> None:
    async with serving(png()) as (media, _, base):
        await media([part(f"{base}/secret-name.png?token=hidden")])
        await media.refused([part(f"{base}/x", modality="video")])
        series = "".join(str(f.samples) for f in media.service.metrics.registry.collect())
        assert "secret" not in series and "hidden" not in series and HOST not in series

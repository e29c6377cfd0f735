"""Videos through the service: decoded in processes of their own, once, cancelled and refused cleanly."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.wire import item_hash
from gateway.errors import ApiError
from gateway.media.settings import MediaBudget
from tests.fixtures.media.hostile import Server, lifted
from tests.fixtures.media.png import data_url, png
from tests.unit.media.test_service import HOST, part, running

pytest.importorskip("gateway.media.video_worker", reason="needs preproc_rs with its feature `video`")

FOLDER = Path(__file__).parents[2] / "fixtures" / "preproc" / "media"
GOOD = (FOLDER / "v_base_faststart.mp4").read_bytes()
VIDEO = data_url(GOOD, "video/mp4")


async def test_a_video_has_rows_and_timestamps_for_each_temporal_patch() -> None:
    async with running(video_workers=1) as media:
        (got,) = await media([part(VIDEO, modality="video")])
        t, h, w = got.grid
        assert (got.modality, got.t_dup) == ("video", 0) and got.tokens == t * h * w // 4
        assert got.data.nbytes == t * h * w * 1176 and got.data.readonly
        assert got.timestamps is not None and len(got.timestamps) == t
        assert got.hash == item_hash("video", got.grid, got.rows, 0, got.data)


async def test_the_same_video_is_decoded_once_per_set_of_options() -> None:
    async with running(video_workers=1) as media:
        await asyncio.gather(*(media([part(VIDEO, modality="video")]) for _ in range(6)))
        assert media.count("decodes_total", modality="video") == 1
        (few,) = await media([part(VIDEO, modality="video", max_frames=2)])
        assert media.count("decodes_total", modality="video") == 2 and few.grid[0] == 1


async def test_a_picture_as_a_video_and_a_video_as_a_picture_are_named() -> None:
    async with running(video_workers=1) as media:
        for url, modality, word in ((VIDEO, "image", "video_url"), (data_url(png()), "video", "image_url")):
            error = await media.refused([part(url, modality=modality)])
            assert error.code == "media_unsupported_format" and word in error.message


@pytest.mark.parametrize("name", ["v_corrupt_mdat.mp4", "v_stsz_count_2G.mp4", "v_audio_only.mp4"])
async def test_a_hostile_video_is_an_answer_and_the_next_one_works(name: str) -> None:
    async with running(video_workers=1) as media:
        hostile = part(data_url((FOLDER / name).read_bytes(), "video/mp4"), modality="video")
        (result,) = await asyncio.gather(media([hostile]), return_exceptions=True)
        assert isinstance(result, list) or (isinstance(result, ApiError) and result.status == 400)
        assert (await media([part(VIDEO, modality="video")]))[0].modality == "video"


async def test_number_and_tokens_of_videos_are_bounded() -> None:
    async with running(video_workers=1, budget=MediaBudget(max_videos=1)) as media:
        error = await media.refused([part(VIDEO, 0, modality="video"), part(VIDEO, 1, modality="video")])
        assert error.param == "messages[0].content[1]" and "videos" in error.message
    async with running(video_workers=1, budget=MediaBudget(max_total_tokens=1)) as media:
        assert (await media.refused([part(VIDEO, modality="video")])).code == "media_limit_exceeded"


async def test_a_flood_of_videos_is_refused_early_and_holds_up_no_picture() -> None:
    async with running(video_workers=1, video_queue=2) as media:
        videos = [data_url(GOOD + bytes([n]), "video/mp4") for n in range(12)]
        flood = [asyncio.create_task(media([part(url, modality="video")])) for url in videos]
        await asyncio.sleep(0)
        assert (await media([part(data_url(png()))]))[0].modality == "image"
        results = await asyncio.gather(*flood, return_exceptions=True)
        refused = [r for r in results if isinstance(r, BaseException)]
        assert refused and all(isinstance(r, ApiError) and r.status == 503 for r in refused)
        assert len(refused) < len(flood)
        assert (await media([part(videos[-1], modality="video")]))[0].modality == "video"


async def test_a_full_video_queue_refuses_before_anything_is_fetched() -> None:
    async with Server(lambda c: c.answer("200 OK", GOOD)) as server:
        async with running(fetch=lifted(f"{HOST}:{server.port}"), video_workers=1, video_queue=1) as media:
            videos = [data_url(GOOD + bytes([n]), "video/mp4") for n in range(2)]
            busy = [asyncio.create_task(media([part(url, modality="video", fps=5.0)])) for url in videos]
            while media.count("queued", modality="video") < 1:
                assert not all(task.done() for task in busy)
                await asyncio.sleep(0)
            error = await media.refused([part(f"http://{HOST}:{server.port}/a.mp4", modality="video")])
            assert error.status == 503 and server.connections == 0
            await asyncio.gather(*busy)


async def test_a_client_that_leaves_frees_the_decoder() -> None:
    async with running(video_workers=1) as media:
        task = asyncio.create_task(media([part(VIDEO, modality="video", fps=5.0)]))
        while media.count("cache_misses_total") == 0:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(20):
            assert (await media([part(VIDEO, modality="video")]))[0].modality == "video"
        assert media.count("queued", modality="video") == 0

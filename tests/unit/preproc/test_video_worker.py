"""The worker pool: same rows as in-process, one crash costs one request, cancelled and overlong jobs free their process."""

import asyncio
import os
import signal
import time

import numpy as np
import pytest

import preproc_rs
from engine.wire import item_hash

from .paths import MEDIA, cases

pytestmark = pytest.mark.skipif(not preproc_rs.HAS_VIDEO, reason="built without video")

if preproc_rs.HAS_VIDEO:
    from gateway.media.video_worker import VideoPool

VIDEO = (MEDIA / "v_base_faststart.mp4").read_bytes()


@pytest.fixture
async def pool():
    pool = VideoPool(workers=1)
    await pool.start()
    yield pool
    await pool.close()


def pid_of(pool) -> int:
    return next(iter(pool._living)).pid


async def test_rows_equal_those_in_process(pool):
    got = await pool.prepare(VIDEO, fps=3, max_frames=5, max_long_side_pixel=140)
    own = preproc_rs.prepare_video(VIDEO, fps=3, max_frames=5, max_long_side_pixel=140)
    assert np.array_equal(got.patches, own.patches) and not got.patches.flags.writeable
    for name in ("kind", "format", "width", "height", "resized_hw", "grid_thw", "tokens", "rows", "t_dup", "hash"):
        assert getattr(got, name) == getattr(own, name), name
    assert (got.source_key, got.timestamps, got.frame_indices) == (own.source_key, own.timestamps, own.frame_indices)
    assert got.hash == item_hash("video", got.grid_thw, got.rows, got.t_dup, memoryview(got.patches).cast("B"))


async def test_every_case_through_one_process(pool):
    first = pid_of(pool)
    for case in cases("video"):
        try:
            outcome = "ok" if (await pool.prepare((MEDIA / case["file"]).read_bytes())).tokens else "empty"
        except preproc_rs.PreprocError:
            outcome = "400"
        assert outcome in case["expect"].replace("ok_or_400", "ok 400"), case["file"]
    assert pid_of(pool) == first and pool.respawned == 0
    assert peak_rss_mib(first) < 512


def peak_rss_mib(pid: int) -> int:
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) >> 10


async def test_a_dead_process_costs_one_request(pool):
    first = pid_of(pool)
    os.kill(first, signal.SIGSTOP)
    job = asyncio.create_task(pool.prepare(VIDEO))
    await asyncio.sleep(0.05)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(preproc_rs.PreprocError) as caught:
        await job
    assert caught.value.code == "corrupt"
    assert (await pool.prepare(VIDEO)).tokens > 0
    assert pid_of(pool) != first and pool.respawned == 1


async def test_cancelling_frees_the_process(pool):
    first = pid_of(pool)
    os.kill(first, signal.SIGSTOP)
    job = asyncio.create_task(pool.prepare(VIDEO))
    await asyncio.sleep(0.05)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    os.kill(first, signal.SIGCONT)
    assert (await pool.prepare(VIDEO)).tokens > 0
    assert pid_of(pool) == first and pool.respawned == 0


async def test_a_process_that_does_not_stop_is_killed(pool):
    first = pid_of(pool)
    os.kill(first, signal.SIGSTOP)
    job = asyncio.create_task(pool.prepare(VIDEO))
    await asyncio.sleep(0.05)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert (await pool.prepare(VIDEO)).tokens > 0  # waits for the kill and the new process
    assert pid_of(pool) != first


async def test_overrun_is_a_deadline():
    pool = VideoPool(workers=1, deadline_s=0.2)
    await pool.start()
    try:
        os.kill(pid_of(pool), signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(preproc_rs.PreprocError) as caught:
            await pool.prepare(VIDEO)
        assert caught.value.code == "deadline" and time.monotonic() - begin < 10
        assert (await pool.prepare(VIDEO)).tokens > 0
    finally:
        await pool.close()


async def test_memory_cap_is_a_refusal():
    pool = VideoPool(workers=1, memory_bytes=64 << 20)
    await pool.start()
    try:
        with pytest.raises(preproc_rs.PreprocError) as caught:
            await pool.prepare(VIDEO + bytes(80 << 20))
        assert caught.value.code == "out_of_memory"
        assert (await pool.prepare(VIDEO)).tokens > 0 and pool.respawned == 0
    finally:
        await pool.close()


async def test_bad_options_come_back_typed(pool):
    with pytest.raises(preproc_rs.PreprocError) as caught:
        await pool.prepare(VIDEO, fps=50)
    assert caught.value.code == "bad_option" and "0.2" in caught.value.message


async def test_waiting_jobs_share_the_workers():
    pool = VideoPool(workers=2)
    await pool.start()
    try:
        jobs = await asyncio.gather(*(pool.prepare(VIDEO) for _ in range(5)))
        assert len({j.hash for j in jobs}) == 1
    finally:
        await pool.close()


async def test_closing_ends_running_and_waiting_jobs():
    pool = VideoPool(workers=1)
    await pool.start()
    os.kill(pid_of(pool), signal.SIGSTOP)
    jobs = [asyncio.create_task(pool.prepare(VIDEO)) for _ in range(3)]
    await asyncio.sleep(0.05)
    await asyncio.wait_for(pool.close(), 10)
    results = await asyncio.wait_for(asyncio.gather(*jobs, return_exceptions=True), 10)
    assert all(isinstance(r, preproc_rs.PreprocError) for r in results)

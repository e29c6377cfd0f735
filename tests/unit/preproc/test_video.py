"""Videos: every hostile case, and a small collection whose frames were compared bit for bit with the ffmpeg program's
(video/expected.json keeps frame numbers, times and mean colours; the files are testsrc2 at 25 frames a second)."""

import json
import time

import numpy as np
import pytest

import preproc_rs
from engine.wire import item_hash

from . import resize_ref as ref
from .paths import MEDIA, ROOT, cases, refusal

pytestmark = pytest.mark.skipif(not preproc_rs.HAS_VIDEO, reason="built without video")
VIDEO = ROOT / "video"
EXPECTED = json.loads((VIDEO / "expected.json").read_text()) if (VIDEO / "expected.json").exists() else {}
NATIVE = {"fps": 5, "max_long_side_pixel": 168}  # the files are 168 x 112: nothing is resized
REFUSED = {
    "v_audio_only.mp4": ("corrupt", "no video stream"),
    "v_8k.mp4": ("too_many_pixels", "8192 x 4320"),
    "v_trunc_nomoov.mp4": ("corrupt", "corrupt"),
}


def frames(prepared) -> list[np.ndarray]:
    """[H, W, 3] of each time slot."""
    t, gh, gw = prepared.grid_thw
    x = prepared.patches.reshape(t, gh * gw, 3, 2, 196)
    return [ref.picture(x[k, :, :, slot].reshape(-1, 588), (1, gh, gw)) for k in range(t) for slot in range(2)]


@pytest.mark.parametrize("case", cases("video"), ids=lambda c: c["file"])
def test_outcome(case):
    data = (MEDIA / case["file"]).read_bytes()
    begin = time.monotonic()
    error = refusal(preproc_rs.prepare_video, data, fps=5)
    assert time.monotonic() - begin < 2
    if error is not None:
        assert "400" in case["expect"]
        code, words = REFUSED.get(case["file"], (error.code, ""))
        assert error.code == code and words in error.message
        return
    assert case["expect"] != "400"
    got = preproc_rs.prepare_video(data, fps=5)
    if "coded_size" in case:
        assert [got.width, got.height] == case["coded_size"]
        assert got.frame_indices[-1] == case["frames_pyav"] - 1
        assert got.timestamps[-1] == pytest.approx(got.frame_indices[2 * (got.grid_thw[0] - 1)] / case["avg_fps"])
        first = frames(got)[0]
        assert np.abs(first.reshape(-1, 3).mean(0) - case["first_frame_mean"]).max() <= case["tol"]
        middle = first[first.shape[0] // 2, first.shape[1] // 2].astype(int)
        assert np.abs(middle - case["center_pixel"]).max() <= case["tol"] + 14  # after a resize


@pytest.mark.parametrize("name", EXPECTED)
def test_frames(name):
    data, expected = (VIDEO / name).read_bytes(), EXPECTED[name]
    got = preproc_rs.prepare_video(data, **NATIVE)
    assert [got.width, got.height] == expected["size"] and got.resized_hw == (got.height, got.width)
    assert list(got.frame_indices) == expected["frame_indices"]
    assert got.timestamps == pytest.approx(expected["timestamps"], abs=1e-3)
    assert len(got.timestamps) == got.grid_thw[0] and got.tokens == got.patches.shape[0] // 4
    means = [f.reshape(-1, 3).mean(0) for f in frames(got)][: len(got.frame_indices)]
    assert np.abs(np.array(means) - expected["means"]).max() < 1
    rows = memoryview(got.patches).cast("B")
    assert got.hash == item_hash("video", got.grid_thw, got.rows, got.t_dup, rows)


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("fps", [0.2, 0.7, 5])
def test_skipping_changes_nothing(name, fps):
    data = (VIDEO / name).read_bytes()
    fast = preproc_rs.prepare_video(data, fps=fps)
    full = preproc_rs.prepare_video(data, fps=fps, exhaustive=True)
    assert fast.frame_indices == full.frame_indices and np.array_equal(fast.patches, full.patches)


@pytest.mark.parametrize(("name", "turns"), [("rotated_90.mp4", 1), ("rotated_180.mp4", 2), ("rotated_270.mp4", 3)])
def test_rotation_turns_the_frames(name, turns):
    upright = frames(preproc_rs.prepare_video((VIDEO / "upright.mp4").read_bytes(), **NATIVE))
    turned = frames(preproc_rs.prepare_video((VIDEO / name).read_bytes(), **NATIVE))
    # the muxer wrote the tag as a matrix that turns counter-clockwise; the ffmpeg program shows the same frames
    assert all(np.array_equal(np.rot90(a, turns), b) for a, b in zip(upright, turned, strict=True))
    small = preproc_rs.prepare_video((VIDEO / name).read_bytes(), max_long_side_pixel=140)
    expected = ref.resize(np.ascontiguousarray(np.rot90(upright[0], turns)), *small.resized_hw)
    assert np.array_equal(frames(small)[0], expected)


def test_colour_matrix_counts():
    plain, tagged = (
        frames(preproc_rs.prepare_video((VIDEO / n).read_bytes(), **NATIVE))[0].astype(int)
        for n in ("upright.mp4", "bt709.mp4")
    )
    assert np.abs(plain - tagged).max() > 10


def test_float_rows_are_the_normalised_bytes():
    data = (VIDEO / "upright.mp4").read_bytes()
    small, floats = (preproc_rs.prepare_video(data, rows=r, **NATIVE) for r in ("u8", "f32"))
    mean, std = ref.MEAN * np.float32(255), ref.STD * np.float32(255)
    values = small.patches.reshape(-1, 3, 392).astype(np.float32)
    assert np.array_equal(((values - mean[:, None]) / std[:, None]).reshape(-1, 1176), floats.patches)


def test_an_odd_last_frame_is_repeated():
    got = preproc_rs.prepare_video((VIDEO / "upright.mp4").read_bytes(), max_frames=3, fps=5)
    assert len(got.frame_indices) == 3 and got.grid_thw[0] == 2
    *_, third, fourth = frames(got)
    assert np.array_equal(third, fourth)
    one = preproc_rs.prepare_video((VIDEO / "upright.mp4").read_bytes(), max_frames=1)
    assert one.grid_thw[0] == 1 and one.frame_indices == (24,) and one.timestamps == (pytest.approx(24 / 25),)


def test_volume_thins_the_frames():
    data = (VIDEO / "short_groups.mp4").read_bytes()
    every = preproc_rs.prepare_video(data, **NATIVE)
    thinned = preproc_rs.prepare_video(data, max_volume=168 * 112 * 7, **NATIVE)
    assert len(every.frame_indices) == 21 and len(thinned.frame_indices) == 6
    assert thinned.frame_indices[-1] == 99 and set(thinned.frame_indices) < set(every.frame_indices)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"fps": 0.1}, "fps"),
        ({"fps": 5.1}, "fps"),
        ({"fps": float("nan")}, "fps"),
        ({"max_frames": 0}, "max_frames"),
        ({"max_long_side_pixel": 100}, "max_long_side_pixel"),
        ({"max_volume": 1 << 40}, "max_volume"),
        ({"threads": 0}, "threads"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"rows": "x"}, "rows"),
    ],
)
def test_bad_options(options, word):
    error = refusal(preproc_rs.prepare_video, (VIDEO / "upright.mp4").read_bytes(), **options)
    assert error.code == "bad_option" and word in error.message


def test_refusals():
    video = (VIDEO / "upright.mp4").read_bytes()
    token = preproc_rs.CancelToken()
    token.cancel()
    for data, options, code in [
        (b"", {}, "truncated"),
        (b"hello", {}, "unsupported_format"),
        ((MEDIA / "rgb_baseline.png").read_bytes(), {}, "unsupported_format"),
        ((VIDEO / "mjpeg.avi").read_bytes(), {}, "unsupported_format"),
        (video, {"max_bytes": 100}, "too_many_bytes"),
        (video, {"deadline_s": 1e-9}, "deadline"),
        (video, {"cancel": token}, "cancelled"),
    ]:
        error = refusal(preproc_rs.prepare_video, data, **options)
        assert error is not None and error.code == code, (code, error)
    for name in ("playlist.m3u8", "concat.txt", "sdp.sdp"):
        assert refusal(preproc_rs.prepare_video, (MEDIA / name).read_bytes()).code == "unsupported_format"


def test_cut_and_flipped_files_are_typed_or_decode():
    rng = np.random.default_rng(2)
    for name in ("short_groups.mp4", "groups.ts", "vp8.webm", "asp.avi", "hevc_open.mp4"):
        data = (VIDEO / name).read_bytes()
        for cut in range(0, len(data), len(data) // 12):
            refusal(preproc_rs.prepare_video, data[:cut])
        for _ in range(12):
            broken = bytearray(data)
            for at in rng.integers(0, len(data), 20):
                broken[at] = rng.integers(0, 256)
            refusal(preproc_rs.prepare_video, bytes(broken), deadline_s=2)


def test_a_cut_transport_stream_keeps_what_came():
    data = (VIDEO / "groups.ts").read_bytes()
    got = preproc_rs.prepare_video(data[: len(data) * 2 // 3], **NATIVE)
    whole = preproc_rs.prepare_video(data, **NATIVE)
    assert 1 < len(got.frame_indices) < len(whole.frame_indices)
    assert np.array_equal(frames(got)[0], frames(whole)[0])


def test_two_threads_give_the_same_rows():
    data = (VIDEO / "hevc_open.mp4").read_bytes()
    one, two = (preproc_rs.prepare_video(data, threads=n) for n in (1, 2))
    assert np.array_equal(one.patches, two.patches)


def test_an_impossible_count_of_chunks_is_the_files_fault():
    """libav asks for an impossible amount of memory: a limit of ours, which trying again does not move."""
    data = bytearray((MEDIA / "v_base_faststart.mp4").read_bytes())
    at = data.index(b"stco") + 8
    data[at : at + 4] = b"\xff" * 4
    refused = refusal(preproc_rs.prepare_video, bytes(data))
    assert refused is not None and refused.code == "limit_exceeded" and "256 MiB" in refused.message

"""The Python interface: options, errors, keys, cancellation, buffers, data URLs."""

import gc
import json
import pickle
import threading

import numpy as np
import pytest
from blake3 import blake3

import preproc_rs

from . import resize_ref as ref
from .paths import MEDIA, refusal

PNG = ref.png(ref.formula(40, 60))


def test_module_facts():
    assert preproc_rs.BUILD_PROFILE == "release"
    assert len(set(preproc_rs.ERROR_CODES)) == len(preproc_rs.ERROR_CODES)
    assert issubclass(preproc_rs.PreprocError, ValueError)


@pytest.mark.parametrize(
    "options",
    [
        {"size_rule": "square"},
        {"rows": "bf16"},
        {"max_long_side_pixel": 100},
        {"max_long_side_pixel": 3612},
        {"max_long_side_pixel": 84},
        {"size_rule": "area", "max_long_side_pixel": 112},
        {"resize_form": "mmx"},
    ],
)
def test_bad_options(options):
    with pytest.raises(preproc_rs.PreprocError) as caught:
        preproc_rs.prepare_image(PNG, **options)
    assert caught.value.code == "bad_option" and next(reversed(options)) in caught.value.message


@pytest.mark.parametrize("form", preproc_rs.RESIZE_FORMS)
@pytest.mark.parametrize("size", [(37, 1031), (1031, 37), (700, 1300)])
def test_every_resize_form_gives_the_reference_rows(form, size):
    pixels = ref.formula(*size)
    got = preproc_rs.prepare_image(ref.png(pixels), size_rule="area", resize_form=form)
    expected = ref.byte_rows(ref.resize(pixels, *got.resized_hw))
    assert np.array_equal(got.patches, expected)


def test_error_survives_pickling():
    with pytest.raises(preproc_rs.PreprocError) as caught:
        preproc_rs.prepare_image(b"")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.code, again.message) == (caught.value.code, caught.value.message)


def test_source_key_is_of_bytes_and_options():
    keys = {
        preproc_rs.source_key(PNG),
        preproc_rs.source_key(PNG + b"x"),
        preproc_rs.source_key(PNG, size_rule="area"),
        preproc_rs.source_key(PNG, rows="f32"),
        preproc_rs.source_key(PNG, max_long_side_pixel=112),
        preproc_rs.source_key(PNG, apply_exif=False),
    }
    assert len(keys) == 6
    assert preproc_rs.source_key(PNG, max_long_side_pixel=2016) == preproc_rs.source_key(PNG)
    assert preproc_rs.prepare_image(PNG, rows="f32").source_key == preproc_rs.source_key(PNG, rows="f32")


def test_rows_are_read_only_and_outlive_the_result():
    got = preproc_rs.prepare_image(PNG)
    rows = got.patches
    expected = rows.copy()
    del got
    gc.collect()
    for _ in range(3):  # would reuse the buffer if it had gone back to the pool
        preproc_rs.prepare_image(ref.png(255 - ref.formula(40, 60)))
    assert np.array_equal(rows, expected)
    assert not rows.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        rows[0, 0] = 1


def test_cancelled_before_and_during():
    token = preproc_rs.CancelToken()
    token.cancel()
    assert token.cancelled
    with pytest.raises(preproc_rs.PreprocError) as caught:
        preproc_rs.prepare_image(PNG, cancel=token)
    assert caught.value.code == "cancelled"


def test_cancelled_from_another_thread():
    big = ref.png(np.zeros((9000, 9000), np.uint8))
    token = preproc_rs.CancelToken()
    timer = threading.Timer(0.02, token.cancel)
    timer.start()
    with pytest.raises(preproc_rs.PreprocError) as caught:
        preproc_rs.prepare_image(big, cancel=token)
    timer.join()
    assert caught.value.code == "cancelled"


def test_budgets_name_the_limit():
    for options, code, words in [
        ({"max_bytes": 10}, "too_many_bytes", "10"),
        ({"max_pixels": 2000}, "too_many_pixels", "40"),
    ]:
        for call in (preproc_rs.prepare_image, preproc_rs.probe):
            with pytest.raises(preproc_rs.PreprocError) as caught:
                call(PNG, **options)
            assert caught.value.code == code and words in caught.value.message


def test_probe_reads_headers_only():
    assert preproc_rs.probe((MEDIA / "exif_orient_6.jpg").read_bytes())[:3] == ("jpeg", 48, 64)
    assert preproc_rs.probe((MEDIA / "exif_orient_6.jpg").read_bytes(), apply_exif=False)[:3] == ("jpeg", 64, 48)
    assert preproc_rs.probe((MEDIA / "truncated_half.jpg").read_bytes())[0] == "jpeg"


def test_exif_switch():
    data = (MEDIA / "exif_orient_6.jpg").read_bytes()
    turned, stored = preproc_rs.prepare_image(data), preproc_rs.prepare_image(data, apply_exif=False)
    assert (turned.width, turned.height, stored.width, stored.height) == (48, 64, 64, 48)
    assert turned.source_key != stored.source_key


def test_data_urls():
    for row in json.loads((MEDIA / "urls.json").read_text()):
        if not row["url"].lower().startswith("data:"):
            continue
        error = refusal(lambda url: preproc_rs.prepare_image(preproc_rs.decode_data_url(url, 1 << 20)[1]), row["url"])
        outcome = "ok" if error is None else "400"
        assert outcome == row["expect"], row["why"]
        assert error is None or error.code == "bad_data_url"


def test_data_url_budget():
    with pytest.raises(preproc_rs.PreprocError) as caught:
        preproc_rs.decode_data_url("data:image/png;base64," + "A" * 400, 299)
    assert caught.value.code == "too_many_bytes" and "299" in caught.value.message
    assert len(preproc_rs.decode_data_url("data:image/png;base64," + "A" * 400, 300)[1]) == 300


def test_data_url_inside_a_body():
    body = b'{"url":"data:image/png;base64,aGk+Pw=="}'
    start, end = body.index(b"data:"), body.index(b'"}')
    assert preproc_rs.decode_data_url(body, 9, start, end) == ("image/png", b"hi>?")
    assert preproc_rs.decode_data_url(body[start:end], 9) == ("image/png", b"hi>?")
    for wrong in [(end, start), (0, len(body) + 1), (len(body) + 1, None)]:
        with pytest.raises(ValueError, match="range"):
            preproc_rs.decode_data_url(body, 9, *wrong)
    with pytest.raises(TypeError):
        preproc_rs.decode_data_url(bytearray(body), 9)


@pytest.mark.parametrize(
    ("name", "format_"),
    [
        ("v_base_faststart.mp4", "mp4"),
        ("v_vp9.webm", "webm"),
        ("v_mkv.mkv", "mkv"),
        ("v_mpeg4.avi", "avi"),
        ("v_no_key_start.ts", "mpegts"),
        ("avif.avif", "avif"),
        ("heic.heic", "heic"),
        ("svg.svg", "svg"),
        ("bmp_24.bmp", "bmp"),
        ("anim.gif", "gif"),
        ("truncated.webp", "webp"),
        ("random_2k.bin", None),
    ],
)
def test_sniff(name, format_):
    assert preproc_rs.sniff((MEDIA / name).read_bytes()) == format_


def test_pieces_are_joined_and_named_as_python_does_it():
    pieces = [b"", b"ab", bytes(range(256)) * 5000, b"c"]
    whole = b"".join(pieces)
    assert preproc_rs.join(pieces) == whole and preproc_rs.join([]) == b""
    assert preproc_rs.digest(b"who", whole, 2, 700_000) == blake3(b"who" + whole[2:700_000]).digest()
    assert preproc_rs.digest(b"", whole) == blake3(whole).digest()
    for start, end in ((1, 0), (0, len(whole) + 1)):
        with pytest.raises(ValueError, match="range"):
            preproc_rs.digest(b"", whole, start, end)


def test_long_values_of_a_body_are_read_as_json_reads_them():
    values = ["wörd\n\U0001f600" * 100, [0, 2**32 - 1, 17] * 100, "data:;base64," + "QUJD" * 100]
    for body in (json.dumps(values).encode(), json.dumps(values, ensure_ascii=False, indent=1).encode()):
        (_, *text), (_, *ids), (_, *url) = found = preproc_rs.find_long_values(body, 300)
        assert [kind for kind, _, _ in found] == ["text", "ids", "url"]
        assert preproc_rs.long_text(body, *text).decode() == values[0]
        assert np.frombuffer(preproc_rs.long_ids(body, *ids), "<u4").tolist() == values[1]
        assert preproc_rs.long_text(body, *url).decode() == values[2]
        wrong = [(preproc_rs.long_ids, text), (preproc_rs.long_ids, (0, 0)), (preproc_rs.long_text, (3, 1 << 30))]
        for read, (start, end) in wrong:
            with pytest.raises(ValueError, match="such a value"):
                read(body, start, end)

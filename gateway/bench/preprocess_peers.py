"""Other ways from an image or video to patch rows, each a function of bytes; a peer that is not installed says why.

"reference" is transformers' MiniMax-M3 processor. `python -m gateway.bench.preprocess_peers PEER FILE` prints the peak
memory (MiB) that one call adds, in a process of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

import preproc_rs

Run = Callable[[bytes], object]
MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
STD: Final = (0.26862954, 0.26130258, 0.27577711)


def ours_area() -> Run:
    return lambda data: preproc_rs.prepare_image(data, size_rule="area")


def ours_area_avx2() -> Run:
    """As on a CPU without AVX-512."""
    if "avx2" not in preproc_rs.RESIZE_FORMS[:-1]:
        raise RuntimeError(f"{preproc_rs.RESIZE_FORMS[-1]} is this CPU's best already")
    return lambda data: preproc_rs.prepare_image(data, size_rule="area", resize_form="avx2")


def ours_area_f32() -> Run:
    return lambda data: preproc_rs.prepare_image(data, size_rule="area", rows="f32")


def ours_long_side() -> Run:
    return lambda data: preproc_rs.prepare_image(data)


def decoder_alone() -> Run:
    """libjpeg-turbo for a JPEG, the whole picture into memory; the rows of other formats go nowhere."""
    return preproc_rs.decode_alone


def _reference() -> Any:
    import torch

    torch.set_num_threads(1)
    name = "transformers.models.minimax_m3_vl.image_processing_minimax_m3_vl"
    return importlib.import_module(name).MiniMaxM3VLImageProcessor()


def pillow_reference() -> Run:
    from PIL import Image

    processor = _reference()
    return lambda data: processor(images=Image.open(io.BytesIO(data)).convert("RGB"), return_tensors="pt")


def torchvision_reference() -> Run:
    import torch

    decode: Any = importlib.import_module("torchvision.io").decode_image
    processor = _reference()

    def run(data: bytes) -> object:
        image = decode(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode="RGB")
        return processor(images=image, return_tensors="pt")

    return run


def opencv_reference() -> Run:
    import torch

    cv2: Any = importlib.import_module("cv2")
    cv2.setNumThreads(1)
    processor = _reference()

    def run(data: bytes) -> object:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
        return processor(images=torch.from_numpy(image).permute(2, 0, 1), return_tensors="pt")

    return run


def pillow_long_side() -> Run:
    """Pillow's bicubic by the long-side rule, normalised and cut into patches in numpy."""
    from PIL import Image

    mean, std = (np.float32(255) * np.array(v, np.float32) for v in (MEAN, STD))

    def run(data: bytes) -> object:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        scale = min(1.0, 2016 / max(image.size))
        w, h = (max(28, round(side * scale / 28) * 28) for side in image.size)
        pixels = (np.asarray(image.resize((w, h), Image.Resampling.BICUBIC), np.float32) - mean) / std
        rows = pixels.reshape(h // 28, 2, 14, w // 28, 2, 14, 3).transpose(0, 3, 1, 4, 6, 2, 5)
        return np.repeat(rows[:, :, :, :, :, None], 2, axis=5).reshape(-1, 1176)

    return run


def sglang_extension() -> Run:
    """SGLang's Rust extension, from an installed wheel or the file named by CATALEJO_BENCH_SGLANG_EXTENSION."""
    named = os.environ.get("CATALEJO_BENCH_SGLANG_EXTENSION")
    if named is None:
        package = importlib.util.find_spec("sglang")
        if package is None or package.submodule_search_locations is None:
            raise ImportError("sglang is not installed")
        found = next(Path(package.submodule_search_locations[0]).glob("srt/rust_extensions/_multimodal*.so"), None)
        if found is None:
            raise ImportError("this sglang has no _multimodal extension")
        named = str(found)
    spec = importlib.util.spec_from_file_location("_multimodal", named)
    if spec is None or spec.loader is None:
        raise ImportError(f"{named} is not an extension module")
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sizes = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2, "min_pixels": 3136, "max_pixels": 451584}
    values = {"image_mean": MEAN, "image_std": STD, "resample": "aten_u8", "image_token_id": 1}
    options = json.dumps({"family": "qwen2_vl", **sizes, **values})
    return lambda data: module.qwen_vl.preprocess(data, options)


def _video_reference(frames_of: Callable[[bytes], Any]) -> Run:
    import torch

    torch.set_num_threads(1)
    name = "transformers.models.minimax_m3_vl.video_processing_minimax_m3_vl"
    processor: Any = importlib.import_module(name).MiniMaxM3VLVideoProcessor()

    def run(data: bytes) -> object:
        return processor(videos=[frames_of(data)], do_resize=True, do_sample_frames=False, return_tensors="pt")

    return run


def _wanted(total: int, fps: float) -> list[int]:
    """2 frames a second, and the last: what ours keeps."""
    step = fps / 2
    return sorted({*(int(np.ceil(i * step - 1e-3)) for i in range(int(total / step))), total - 1})


def opencv_video() -> Run:
    import torch

    cv2: Any = importlib.import_module("cv2")
    cv2.setNumThreads(1)

    def frames(data: bytes) -> Any:
        import tempfile

        with tempfile.NamedTemporaryFile(suffix=".mp4") as file:
            file.write(data)
            file.flush()
            source = cv2.VideoCapture(file.name)
            source.set(cv2.CAP_PROP_N_THREADS, 1)
            wanted, kept = set(_wanted(int(source.get(cv2.CAP_PROP_FRAME_COUNT)), source.get(cv2.CAP_PROP_FPS))), []
            for i in range(max(wanted) + 1):
                if not source.grab():
                    break
                if i in wanted:
                    kept.append(cv2.cvtColor(source.retrieve()[1], cv2.COLOR_BGR2RGB))
        return torch.from_numpy(np.stack(kept)).permute(0, 3, 1, 2)

    return _video_reference(frames)


def pyav_video() -> Run:
    import torch

    av: Any = importlib.import_module("av")

    def frames(data: bytes) -> Any:
        with av.open(io.BytesIO(data)) as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            wanted = set(_wanted(stream.frames, float(stream.average_rate)))
            kept = [f.to_ndarray(format="rgb24") for i, f in enumerate(container.decode(stream)) if i in wanted]
        return torch.from_numpy(np.stack(kept)).permute(0, 3, 1, 2)

    return _video_reference(frames)


def torchcodec_video() -> Run:
    decoders: Any = importlib.import_module("torchcodec.decoders")

    def frames(data: bytes) -> Any:
        decoder = decoders.VideoDecoder(data, num_ffmpeg_threads=1)
        return decoder.get_frames_at(_wanted(decoder.metadata.num_frames, decoder.metadata.average_fps)).data

    return _video_reference(frames)


def ours_video() -> Run:
    return lambda data: preproc_rs.prepare_video(data, fps=2)


def ours_video_f32() -> Run:
    return lambda data: preproc_rs.prepare_video(data, fps=2, rows="f32")


PEERS: Final[dict[str, Callable[[], Run]]] = {
    "ours, area": ours_area,
    "ours, area, AVX2": ours_area_avx2,
    "ours, area, f32": ours_area_f32,
    "ours, long side": ours_long_side,
    "decoder alone": decoder_alone,
    "Pillow + reference": pillow_reference,
    "torchvision + reference": torchvision_reference,
    "OpenCV + reference": opencv_reference,
    "Pillow bicubic, long side": pillow_long_side,
    "SGLang's Rust extension": sglang_extension,
    "ours, 2 fps": ours_video,
    "ours, 2 fps, f32": ours_video_f32,
    "OpenCV + reference, 2 fps": opencv_video,
    "PyAV + reference, 2 fps": pyav_video,
    "torchcodec + reference, 2 fps": torchcodec_video,
}


def _peak_mib() -> float:
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) / 1024


def main(peer: str, path: str, warm_up: str) -> None:
    run = PEERS[peer]()
    run(Path(warm_up).read_bytes())
    data = Path(path).read_bytes()
    before = _peak_mib()
    run(data)
    print(_peak_mib() - before)


if __name__ == "__main__":
    main(*sys.argv[1:])

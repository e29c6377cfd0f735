"""Building the kernels: what is found, what is made, and what is said when neither can be."""

import shutil

import pytest

from engine.msa.kernels import build


def test_sources_decide_the_name(monkeypatch, tmp_path):
    name = build.library_name(emulate=False)
    copy = tmp_path / "cuda"
    shutil.copytree(build.SOURCES, copy)
    (copy / "device.cuh").write_text((copy / "device.cuh").read_text() + "\n")
    monkeypatch.setattr(build, "SOURCES", copy)
    build.source_hash.cache_clear()
    try:
        assert build.library_name(emulate=False) != name
    finally:
        build.source_hash.cache_clear()


def test_without_a_compiler_the_reason_is_plain(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.unavailable() == "not prebuilt, and no compiler here"
    with pytest.raises(build.KernelBuildError, match="nvcc is not on the PATH"):
        build.library()


def test_a_prebuilt_library_is_used_as_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    made = tmp_path / build.library_name(emulate=False)
    made.write_bytes(b"")
    monkeypatch.setenv("PATH", "")
    assert build.unavailable() is None
    assert build.library() == made


def test_a_failing_compiler_shows_its_words(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "EMULATE_FLAGS", ("-fno-such-flag",))
    with pytest.raises(build.KernelBuildError, match="no-such-flag"):
        build.compile_to(tmp_path / "x.so", emulate=True)

"""Compiles the CUDA sources of the Hopper kernels. `python -m engine.msa.kernels.build [FOLDER]` ahead of time, for
images whose root is read-only or that have no compiler; else at first use, cached by the hash of the sources.

The result is a plain shared library of C functions over pointers (no framework headers): seconds to build, one file."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "cuda"
PREBUILT = Path(__file__).parent / "prebuilt"
NVCC_FLAGS = ("-std=c++17", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "-shared", "-Xcompiler", "-fPIC")
EMULATE_FLAGS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-DMSA_EMULATE", "-Wno-psabi", "-x", "c++")


class KernelBuildError(RuntimeError):
    """The kernels cannot be had on this machine: no prebuilt library and no compiler, or the compiler failed."""


@cache
def source_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "catalejo" / "kernels"


def nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")


def unavailable(*, emulate: bool = False) -> str | None:
    """Why the library cannot be had here (nothing is compiled to find out), or None."""
    name = library_name(emulate)
    if (PREBUILT / name).is_file() or (cache_folder() / name).is_file() or (shutil.which("g++") if emulate else nvcc()):
        return None
    return "not prebuilt, and no compiler here"


def library_name(emulate: bool) -> str:
    return f"msa_{'emulated' if emulate else 'sm90a'}_{source_hash()}.so"


def compile_to(path: Path, *, emulate: bool = False) -> None:
    compiler = shutil.which("g++") if emulate else nvcc()
    if compiler is None:
        raise KernelBuildError("g++ is not on the PATH" if emulate else "nvcc is not on the PATH nor in $CUDA_HOME/bin")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:  # same file system: the rename below is atomic
        made = Path(scratch) / path.name
        command = [
            compiler,
            *(EMULATE_FLAGS if emulate else NVCC_FLAGS),
            str(SOURCES / "decode_sm90.cu"),
            "-o",
            str(made),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise KernelBuildError(
                f"{Path(compiler).name} failed with status {done.returncode}:\n{done.stderr[-4000:]}"
            )
        made.rename(path)


def library(*, emulate: bool = False) -> Path:
    """The path of the built library: the prebuilt one, the cached one, or one made now. The choice is logged."""
    name = library_name(emulate)
    if not emulate and (PREBUILT / name).is_file():
        log.info("msa kernels: prebuilt %s", name)
        return PREBUILT / name
    path = cache_folder() / name
    if path.is_file():
        log.info("msa kernels: cached %s", path)
        return path
    log.info("msa kernels: compiling %s", path)
    compile_to(path, emulate=emulate)
    return path


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]) if arguments else PREBUILT
    path = folder / library_name(emulate=False)
    try:
        compile_to(path)
    except KernelBuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

#!/usr/bin/env bash
# Packs what `run.sh` needs on a GPU machine without a package registry: $1/site.tar.xz, about 32 MB. Run it where pip works.
#   tests/gpu/serving/prepare.sh build/gpu
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
OUT=$(mkdir -p "${1:?a folder for site.tar.xz}" && cd "$1" && pwd)
PYTHON=${PYTHON:-python3}
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

platforms=()
for glibc in 2_35 2_34 2_31 2_28 2_24 2_17 2_12 2_5; do platforms+=(--platform "manylinux_${glibc}_x86_64"); done
platforms+=(--platform manylinux2014_x86_64 --platform manylinux2010_x86_64 --platform manylinux1_x86_64)
"$PYTHON" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
  "${platforms[@]}" --dest "$WORK/wheels" --requirement "$HERE/packages.txt"
mkdir "$WORK/site"
for wheel in "$WORK"/wheels/*.whl; do "$PYTHON" -m zipfile -e "$wheel" "$WORK/site"; done
cd "$WORK/site"
rm -rf sglang/multimodal_gen sglang/test bin sgl_kernel/sm100 triton_kernels sgl_kernel/*flash_ops* sgl_kernel/*flashmla_ops* \
  sgl_kernel/*infllm_ops* torch_memory_saver_hook_mode_*cu12* torch_memory_saver_hook_mode_torch.abi3.so \
  torch_memory_saver_hook_mode_preload.abi3.so
rm -rf tvm_ffi/3rdparty/libbacktrace  # not libtvm_ffi_testing.so: the package's core is linked to it
find sglang/srt -name '_core*.so' -delete  # Rust front ends, not used
tar --sort=name --exclude=__pycache__ -cf - . | xz -T0 -7 >"$OUT/site.tar.xz"
ls -l "$OUT/site.tar.xz"

#!/usr/bin/env bash
# On a GPU machine with torch 2.11 and Triton: SGLang 0.5.17 with our plugin, kernels off against on, end to end.
#   tests/gpu/serving/run.sh build/gpu [options of `catalejo bench engine`]
# $1 holds site.tar.xz (prepare.sh) and, to save minutes of compiling, cache.tar.xz of an earlier run; a new one is left in
# $OUT beside the result and the servers' logs (default: $1).
set -euo pipefail
cd "$(dirname "$0")/../../.."
IN=$(cd "$1" && pwd); shift
OUT=${OUT:-$IN}
SITE=${SITE:-/tmp/catalejo-site}
CACHE=${CACHE:-/tmp/catalejo-cache}
[ -d "$SITE" ] || { mkdir -p "$SITE" && python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$IN/site.tar.xz" "$SITE"; }
mkdir -p "$CACHE"
[ ! -f "$IN/cache.tar.xz" ] || python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$IN/cache.tar.xz" "$CACHE"
export PATH=/usr/local/cuda/bin:$PATH PYTHONPATH=$PWD/tests/gpu/serving/stubs:$PWD:$SITE PYTHONUNBUFFERED=1
export SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK=1 SGLANG_IS_FLASHINFER_AVAILABLE=false HF_HUB_OFFLINE=1
export TVM_FFI_CACHE_DIR=$CACHE/tvm-ffi TRITON_CACHE_DIR=$CACHE/triton TRITON_CACHE_AUTOTUNING=1 TORCH_EXTENSIONS_DIR=$CACHE/extensions
code=0
python3 -m engine.bench.serving --logs "$OUT/logs" --out "$OUT/result.json" "$@" || code=$?
tar -C "$CACHE" -cf - . | xz -T0 -3 >"$OUT/cache.tar.xz"
exit $code

#!/usr/bin/env bash
# On a GPU machine with torch 2.11 and Triton: SGLang 0.5.17 with our plugin, kernels off against on, end to end.
#   tests/gpu/serving/run.sh build/gpu [options of `catalejo bench engine`]
# $1 holds site.tar.xz (prepare.sh) and, to save minutes of compiling, cache.tar.xz.* of an earlier run; new ones are left in
# $OUT beside the result and the servers' logs (default: $1). LIMIT: seconds for everything (default 570): the benchmark gets
# what is left of it less 45, and is ended 25 before, so that the compiled kernels can still be kept.
set -euo pipefail
cd "$(dirname "$0")/../../.."
IN=$(cd "$1" && pwd); shift
OUT=${OUT:-$IN}
SITE=${SITE:-/tmp/catalejo-site}
CACHE=${CACHE:-/tmp/catalejo-cache}
unpack='import io, sys, tarfile; tarfile.open(fileobj=io.BytesIO(b"".join(open(p, "rb").read() for p in sys.argv[2:]))).extractall(sys.argv[1])'
mkdir -p "$CACHE"
shopt -s nullglob
parts=("$IN"/cache.tar.xz.*)
[ ${#parts[@]} = 0 ] || python3 -c "$unpack" "$CACHE" "${parts[@]}"
export PATH=/usr/local/cuda/bin:$PATH PYTHONPATH=$PWD/tests/gpu/serving/stubs:$PWD:$SITE PYTHONUNBUFFERED=1
export SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK=1 SGLANG_IS_FLASHINFER_AVAILABLE=false HF_HUB_OFFLINE=1 XDG_CACHE_HOME=$CACHE/xdg
export TVM_FFI_CACHE_DIR=$CACHE/tvm-ffi TRITON_CACHE_DIR=$CACHE/triton TRITON_CACHE_AUTOTUNING=1 TORCH_EXTENSIONS_DIR=$CACHE/extensions
# Our CUDA kernels compile while SGLang is unpacked; else the first server that uses them would wait for it.
python3 -c 'from engine.msa.kernels import build; print("kernels:", build.unavailable() or build.library())' &
built=$!
[ -d "$SITE/sglang" ] || { mkdir -p "$SITE" && python3 -c "$unpack" "$SITE" "$IN/site.tar.xz"; }
timeout ${AHEAD:-150} python3 tests/gpu/serving/compile_ahead.py || echo "not all of SGLang's sources could be compiled ahead"
wait $built || echo "our CUDA kernels could not be built: Triton serves"
echo "unpacked and built after $SECONDS s"
code=0
left=$((${LIMIT:-570} - SECONDS))
timeout -k 10 $((left - 25)) python3 -m engine.bench.serving --seconds $((left - 45)) --logs "$OUT/logs" --out "$OUT/result.json" "$@" || code=$?
echo "ended with $code after $SECONDS s"
rm -f "$OUT"/cache.tar.xz.*
tar -C "$CACHE" -cf - . | xz -T0 -6 | split -b 15M - "$OUT/cache.tar.xz."
ls -l "$OUT"
exit $code

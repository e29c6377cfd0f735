#!/usr/bin/env bash
# Fuzzes one target: run.sh TARGET [SECONDS]. Needs cargo-fuzz, a nightly toolchain, clang with its runtime (libclang-rt).
# The C libraries are instrumented too: without their coverage the fuzzer is blind inside libwebp and libjpeg-turbo.
set -euo pipefail
cd "$(dirname "$0")"
target=${1:?TARGET: image, webp, exif, data_url or video}
export CC=clang CXX=clang++
export CFLAGS="-fsanitize=fuzzer-no-link,address -fno-omit-frame-pointer -g1"
export CXXFLAGS=$CFLAGS
# A test of impossible allocations wants null, not an end; leaks inside libav are not ours to judge.
export ASAN_OPTIONS=allocator_may_return_null=1:detect_odr_violation=0
[ -d "corpus/$target" ] || ./seed.sh
exec cargo +nightly fuzz run ${FEATURES:+--features "$FEATURES"} "$target" -- \
  -max_total_time="${2:-600}" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1

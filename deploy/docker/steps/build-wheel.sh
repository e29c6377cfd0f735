#!/bin/sh
# The project's wheel (Python packages and the Rust extension) into $1, from the checkout that is the working directory.
# Needs: cargo, a C toolchain, clang, nasm, cmake, the libav headers (steps/build-packages.sh), python3 with pip.
set -eu
out=$1
# VIDEO=0 leaves the video decoder out, and with it Debian's GPL build of libav (docs/deploy.md, third-party notices).
[ "${VIDEO:-1}" = 1 ] || export MATURIN_PEP517_ARGS="--features extension-module"
# Pinned: the build must not depend on the day.
python3 -m pip install --quiet --root-user-action=ignore 'maturin==1.16.0' 2>/dev/null ||
  python3 -m pip install --quiet --break-system-packages 'maturin==1.16.0'
python3 -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$out" .
ls -l "$out"

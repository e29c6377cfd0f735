#!/usr/bin/env bash
# Prepares a machine to build and run from a checkout: system packages, virtual environment, Python packages, the Rust
# extension. Called by the Makefile; safe to run again, and quick when nothing changed.
#
# CATALEJO_TORCH_INDEX  URL of another PyTorch wheel index, e.g. the CPU-only one: about 0.2 GB instead of 3 GB
# VENV                  where the virtual environment goes (default .venv)
# PYTHON                which Python makes it (default: python3; 3.11 or newer)
set -euo pipefail
cd "$(dirname "$0")/../.."
VENV=${VENV:-.venv}
PYTHON=${PYTHON:-python3}
LOCK=requirements/app.txt
APT_PACKAGES=(build-essential pkg-config cmake nasm
  libavcodec-dev libavformat-dev libavutil-dev libswscale-dev)

say() { printf '==> %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

system_packages() {
  local missing=() tool
  for tool in cc:build-essential pkg-config:pkg-config cmake:cmake nasm:nasm; do
    command -v "${tool%%:*}" >/dev/null || missing+=("${tool##*:}")
  done
  if command -v pkg-config >/dev/null; then
    for tool in libavcodec libavformat libavutil libswscale; do
      pkg-config --exists "$tool" || missing+=("$tool-dev")
    done
  fi
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
  if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
      say "installing system packages with apt (about 300 MB): ${missing[*]}"
      apt-get update -qq
      # The whole list, since pkg-config may just have been missing and its libraries unchecked.
      DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${APT_PACKAGES[@]}" \
        $([[ " ${missing[*]} " == *" python3-venv "* ]] && echo python3-venv) >/dev/null
    else
      die "system packages are missing; run: sudo apt-get install ${missing[*]}"
    fi
  fi
}

test_packages() { # what some tests start; they are skipped without
  command -v redis-server >/dev/null && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing redis-server with apt, for the tests of shared limits"
    apt-get update -qq
    # RUNLEVEL=1: the package must not start a server of its own.
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server >/dev/null
  else
    say "redis-server is missing, so the tests of shared limits will be skipped (sudo apt-get install redis-server)"
  fi
}

check_toolchains() {
  command -v "$PYTHON" >/dev/null || die "$PYTHON was not found; Catalejo needs Python 3.11 or newer (set PYTHON=...)"
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "$PYTHON is $("$PYTHON" -V 2>&1); Catalejo needs Python 3.11 or newer (set PYTHON=/path/to/python3.11)"
  command -v cargo >/dev/null || die "cargo was not found; install Rust 1.89 or newer with rustup, then run this again"
}

python_packages() {
  local stamp key
  stamp=$VENV/.catalejo-packages
  key=$( (cat "$LOCK"; echo "${CATALEJO_TORCH_INDEX:-}") | cksum)
  [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$key" ] && return
  [ -x "$VENV/bin/python" ] || { say "creating $VENV"; "$PYTHON" -m venv "$VENV"; }
  if [ -n "${CATALEJO_TORCH_INDEX:-}" ]; then
    say "downloading PyTorch from CATALEJO_TORCH_INDEX, then about 0.2 GB of other packages"
    # shellcheck disable=SC2046
    "$VENV/bin/pip" install --no-deps --index-url "$CATALEJO_TORCH_INDEX" $(grep -E '^(torch|torchvision)==' "$LOCK")
    grep -vE '^(torch|torchvision|triton|nvidia-.*|cuda-.*)==' "$LOCK" >"$VENV/lock-without-cuda.txt"
    "$VENV/bin/pip" install --no-deps -r "$VENV/lock-without-cuda.txt"
  else
    say "downloading Python packages: about 3 GB, most of it PyTorch with CUDA (CPU only: set CATALEJO_TORCH_INDEX)"
    "$VENV/bin/pip" install --no-deps -r "$LOCK"
  fi
  echo "$key" >"$stamp"
}

extension() {
  local stamp=$VENV/.catalejo-build
  if [ -f "$stamp" ] && [ -z "$(find preproc_rs Cargo.toml Cargo.lock pyproject.toml -newer "$stamp" -type f -print -quit)" ]; then
    return
  fi
  say "building the Rust extension (release, two or three minutes the first time; image and JPEG libraries are built in)"
  PATH="$(cd "$VENV/bin" && pwd):$PATH" "$VENV/bin/pip" install --no-deps --no-build-isolation --editable . ||
    die "the Rust extension did not build; the lines above say why"
  touch "$stamp"
}

check_toolchains
system_packages
test_packages
python_packages
extension

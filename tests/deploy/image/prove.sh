#!/usr/bin/env bash
# Proves the gateway image without a container engine: the steps of deploy/docker/gateway.Dockerfile in a clean Debian root.
#
#   tests/deploy/image/prove.sh [ROOT]     root only; ROOT (default .cache/deploy/image) is made anew unless KEEP=1
#
# debootstrap makes the base, steps/runtime-packages.sh and steps/install.sh run inside by chroot as they do in the
# Dockerfile, the wheel comes from steps/build-wheel.sh's command on this machine (WHEELS=folder takes one that is there).
# Then: size under 500 MB, no torch, and as user 10001 the gateway answers a picture with a real engine behind it.
set -euo pipefail
cd "$(dirname "$0")/../../.."
ROOT=$(realpath -m "${1:-.cache/deploy/image}")
WHEELS=${WHEELS:-.cache/deploy/wheels}
PYTHON=${PYTHON:-${VENV:-.venv}/bin/python}
LIMIT_MB=500
say() { printf '==> %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || die "chroot needs root"

if ! ls "$WHEELS"/catalejo-*.whl >/dev/null 2>&1; then
  say "building the wheel"
  "$PYTHON" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$WHEELS" .
fi

mirror=$(grep -rhoE '(https?|file):[^ ]+debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | grep -v security | head -1 | tr -d ' ') || true
[ -n "$mirror" ] || mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/*.sources | awk '{print $1}' | grep -v security | head -1) || true
bootstrap() {
  local tool=(debootstrap)
  if ! command -v debootstrap >/dev/null; then
    local scratch=.cache/deploy/debootstrap
    mkdir -p "$scratch"
    (cd "$scratch" && { apt-get download -qq debootstrap || { apt-get update -qq && apt-get download -qq debootstrap; }; } && dpkg-deb -x debootstrap_*.deb .)
    tool=(env "DEBOOTSTRAP_DIR=$PWD/$scratch/usr/share/debootstrap" "$scratch/usr/sbin/debootstrap")
  fi
  "${tool[@]}" --variant=minbase bookworm "$ROOT" "$mirror" >"$ROOT.log" 2>&1 || { tail -5 "$ROOT.log" >&2; die "debootstrap failed"; }
}

inside() { chroot "$ROOT" "$@" >>"$ROOT.log" 2>&1 || { tail -15 "$ROOT.log" >&2; die "$* failed"; }; }
apt_install() { inside sh -c "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $*"; }

if [ "${KEEP:-}" != 1 ] || [ ! -x "$ROOT/usr/bin/python3" ]; then
  say "clean Debian root (debootstrap) in $ROOT"
  rm -rf "$ROOT"
  mkdir -p "$ROOT"
  bootstrap
fi
mkdir -p "$ROOT/steps" "$ROOT/wheels"
cp /etc/resolv.conf "$ROOT/etc/resolv.conf"
cp deploy/docker/steps/*.sh deploy/docker/gateway.lock "$ROOT/steps/"
cp "$WHEELS"/catalejo-*.whl "$ROOT/wheels/"
# This machine's way to its package index, certificates included; all of it is removed again below.
[ ! -f /etc/pip.conf ] || cp /etc/pip.conf "$ROOT/etc/pip.conf"
cp "${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}" "$ROOT/steps/certificates.crt"

say "runtime packages"
inside sh /steps/runtime-packages.sh
say "environment with the lock's hashes"
# In the Dockerfile python3-venv is on top in a stage that only /opt/catalejo leaves; here it is removed again.
apt_install python3-venv
rm -rf "$ROOT/opt/catalejo"
inside env PIP_CERT=/steps/certificates.crt REQUESTS_CA_BUNDLE=/steps/certificates.crt PIP_FIND_LINKS= \
  sh /steps/install.sh /steps/gateway.lock /wheels
inside apt-get purge -y -qq python3-venv python3.11-venv python3-pip-whl python3-setuptools-whl
inside apt-get clean
rm -rf "$ROOT"/{steps,wheels,etc/pip.conf,etc/resolv.conf,var/lib/apt/lists,var/cache/apt,root/.cache} "$ROOT"/usr/share/doc/*

size_mb=$(($(du -skx "$ROOT" | cut -f1) / 1024))
env_mb=$(($(du -sk "$ROOT/opt/catalejo" | cut -f1) / 1024))
say "size: $size_mb MB, of which /opt/catalejo $env_mb MB (debootstrap's base is larger than Debian's slim image)"
[ "$size_mb" -lt "$LIMIT_MB" ] || die "the root has $size_mb MB; the limit is $LIMIT_MB"
[ -z "$(find "$ROOT/opt/catalejo" -maxdepth 5 -type d \( -name torch -o -name transformers -o -name nvidia \))" ] || die "torch is in the image"

say "the gateway runs from it, as user 10001, with a read-only look at its root"
"$PYTHON" tests/deploy/image/serve.py "$ROOT"

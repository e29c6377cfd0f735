#!/usr/bin/env bash
# Builds the images with one version. RELEASE=1 demands that every base is pinned by digest:
#   RELEASE=1 BASE_IMAGE=debian:bookworm-slim@sha256:... RUST_IMAGE=...@sha256:... SGLANG_IMAGE=...@sha256:... deploy/docker/build.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
VERSION=${VERSION:-$(sed -nE 's/^appVersion: *"?([^"]+)"?/\1/p' deploy/helm/catalejo/Chart.yaml)}
# A release is published, so it must not carry Debian's GPL build of libav: videos are then refused with `decoder_disabled`.
VIDEO=${VIDEO:-$([ "${RELEASE:-}" = 1 ] && echo 0 || echo 1)}
BUILDER=${BUILDER:-docker}
arguments=(--build-arg "VIDEO=$VIDEO")
for name in BASE_IMAGE RUST_IMAGE SGLANG_IMAGE; do
  value=${!name:-}
  if [ "${RELEASE:-}" = 1 ] && [[ "$value" != *@sha256:* ]]; then
    echo "error: RELEASE=1 needs $name with a digest (name:tag@sha256:...), it is '${value}'" >&2
    exit 2
  fi
  [ -z "$value" ] || arguments+=(--build-arg "$name=$value")
done
for image in ${IMAGES:-gateway engine-local engine-sglang}; do
  "$BUILDER" build -f "deploy/docker/$image.Dockerfile" "${arguments[@]}" \
    --build-arg "GATEWAY_IMAGE=catalejo/gateway:$VERSION" ${TORCH_INDEX:+--build-arg "TORCH_INDEX=$TORCH_INDEX"} \
    --label "org.opencontainers.image.version=$VERSION" --label "org.opencontainers.image.licenses=Apache-2.0" \
    -t "catalejo/$image:$VERSION" .
done

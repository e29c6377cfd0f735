#!/bin/sh
# What the build stage needs besides Rust; the same list as deploy/build/setup.sh.
set -eu
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  build-essential pkg-config cmake nasm clang libclang-dev python3 python3-pip python3-venv \
  libavcodec-dev libavformat-dev libavutil-dev libswscale-dev
rm -rf /var/lib/apt/lists/*

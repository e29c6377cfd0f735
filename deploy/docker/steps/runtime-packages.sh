#!/bin/sh
# What the gateway needs from Debian 12 at run time: Python 3.11 and the video libraries (GPL builds: see docs/deploy.md).
set -eu
video="libavcodec59 libavformat59 libavutil57 libswscale6"
[ "${VIDEO:-1}" = 1 ] || video=""
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  ca-certificates python3 $video
apt-get clean
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin
# Intel's hardware decoders (opened only when asked for by name) and what desktops look up.
rm -rf /usr/lib/*/mfx /usr/lib/*/libmfxhw64.so* /usr/share/mime /usr/share/fonts /usr/share/X11
rm -rf /usr/share/doc/* /usr/share/man/* /usr/share/locale/* /usr/share/info/*

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
rm -rf /usr/share/doc/* /usr/share/man/* /usr/share/locale/* /usr/share/info/*

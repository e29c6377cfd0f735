#!/usr/bin/env bash
# `make test-apiserver`: the chart against a real kube-apiserver, etcd and kube-controller-manager on loopback.
# Needs Go 1.26 for the first build (tests/deploy/apiserver/build.sh).
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-${VENV:-.venv}/bin/python}
export CATALEJO_TOOLS=${CATALEJO_TOOLS:-$PWD/.cache/deploy}
"$PYTHON" tests/deploy/tools.py >/dev/null
CATALEJO_APISERVER=$(tests/deploy/apiserver/build.sh)
export CATALEJO_APISERVER
PYTHONPATH=$PWD exec "$PYTHON" -m pytest -p no:cacheprovider -v tests/deploy/apiserver "$@"

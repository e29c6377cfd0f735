#!/usr/bin/env bash
# Real clients against a real gateway process with the mock engine (make conformance).
# Each group of clients has a virtual environment of its own, made from its lock file when that changes.
# CATALEJO_PYTHON: the interpreter that has the project; PYTHON: the one that makes the environments.
set -euo pipefail
cd "$(dirname "$0")/../.."
CATALEJO_PYTHON=${CATALEJO_PYTHON:-$PWD/${VENV:-.venv}/bin/python}
PYTHON=${PYTHON:-$CATALEJO_PYTHON}
export CATALEJO_PYTHON CATALEJO_CONFORMANCE=1 PYTHONPATH=$PWD OMP_NUM_THREADS=1 PIP_DISABLE_PIP_VERSION_CHECK=1
[ -x "$CATALEJO_PYTHON" ] || { echo "conformance: no project interpreter at $CATALEJO_PYTHON; run make setup" >&2; exit 2; }

fresh() { # STAMP LOCK: whether STAMP was made from this LOCK
  [ -f "$1" ] && [ "$(cat "$1")" = "$(sha256sum <"$2")" ]
}

environment() { # NAME LOCK
  fresh "$1/.lock" "$2" && return
  echo "conformance: installing $(grep -c == "$2") packages from $2 into $1"
  "$PYTHON" -m venv --clear "$1"
  "$1/bin/pip" install --quiet -r "$2"
  sha256sum <"$2" >"$1/.lock"
}

clients() { # VENV FOLDER, then more arguments for pytest
  local venv=$1 folder=$2
  shift 2
  "$venv/bin/python" -m pytest -c tests/conformance/pytest.ini --rootdir . --confcutdir "$folder" \
    -p no:cacheprovider -q "$folder" "$@"
}

environment .venv-conformance requirements/conformance.txt
environment .venv-conformance-instructor requirements/conformance-instructor.txt
failed=0
clients .venv-conformance tests/conformance/clients "$@" || failed=1
clients .venv-conformance-instructor tests/conformance/instructor || failed=1

major=$(node --version 2>/dev/null | sed -E 's/^v([0-9]+).*/\1/' || true)
if ! command -v npm >/dev/null || [ "${major:-0}" -lt 20 ]; then
  echo "conformance: SKIPPED openai (Node) and Vercel ai: they need npm and node 20 or newer, found ${major:-none}"
  exit $failed
fi
node=tests/conformance/node
if ! fresh $node/node_modules/.lock $node/package-lock.json; then
  echo "conformance: installing the Node clients (60 MB)"
  npm ci --prefix $node --no-audit --no-fund --loglevel error
  sha256sum <$node/package-lock.json >$node/node_modules/.lock
fi
"$CATALEJO_PYTHON" -m tests.conformance.stack npm test --silent --prefix $node || failed=1
exit $failed

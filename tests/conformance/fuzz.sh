#!/usr/bin/env bash
# Random requests, made from our own OpenAPI page, against a real gateway with the mock engine: none may be a 5xx.
# FUZZ_EXAMPLES: cases per operation (default 100). FUZZ_SEED: repeats a run.
set -euo pipefail
cd "$(dirname "$0")/../.."
CATALEJO_PYTHON=${CATALEJO_PYTHON:-$PWD/${VENV:-.venv}/bin/python}
export CATALEJO_PYTHON PYTHONPATH=$PWD OMP_NUM_THREADS=1 PIP_DISABLE_PIP_VERSION_CHECK=1
venv=.venv-api-fuzz lock=requirements/api-fuzz.txt
if ! [ -f $venv/.lock ] || [ "$(cat $venv/.lock)" != "$(sha256sum <$lock)" ]; then
  echo "api-fuzz: installing $(grep -c == $lock) packages from $lock into $venv"
  "${PYTHON:-$CATALEJO_PYTHON}" -m venv --clear $venv
  $venv/bin/pip install --quiet -r $lock
  sha256sum <$lock >$venv/.lock
fi
seed=${FUZZ_SEED:-$RANDOM}
export SCHEMATHESIS_HOOKS=tests.conformance.fuzz_hooks
echo "api-fuzz: seed $seed"
exec "$CATALEJO_PYTHON" -m tests.conformance.stack bash -c '
  mkdir -p .cache/api-fuzz && cd .cache/api-fuzz
  exec "$0" run "$CATALEJO_URL/openapi.json" --header "Authorization: Bearer $CATALEJO_KEY" \
    --checks not_a_server_error --phases examples,coverage,fuzzing --max-examples "$1" --seed "$2" \
    --request-timeout 30 --continue-on-failure --warnings off --suppress-health-check all' \
  "$PWD/$venv/bin/schemathesis" "${FUZZ_EXAMPLES:-100}" "$seed"

#!/usr/bin/env bash
# `make test-deploy`: everything about deployment that needs helm, promtool or Kubernetes' schemas.
# Tools are pinned and fetched once into .cache/deploy. With FAST=1 the slow check that every value has an effect is left out.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-${VENV:-.venv}/bin/python}
export CATALEJO_TOOLS=${CATALEJO_TOOLS:-$PWD/.cache/deploy}
"$PYTHON" tests/deploy/tools.py >/dev/null
SCHEMAS=$CATALEJO_TOOLS/python
[ -d "$SCHEMAS/kubernetes_validate" ] ||
  "$PYTHON" -m pip install --quiet --no-deps --target "$SCHEMAS" -r tests/deploy/requirements.txt
export PYTHONPATH=$PWD:$SCHEMAS OMP_NUM_THREADS=1
more=()
[ "${FAST:-}" = 1 ] && more=(--deselect tests/deploy/chart/test_values_used.py::test_value_has_an_effect)
exec "$PYTHON" -m pytest -p no:cacheprovider tests/deploy --ignore tests/deploy/apiserver "${more[@]}" "$@"

#!/usr/bin/env bash
# Real SGLang on the CPU with our plugin and the tiny M3 checkpoint (make test-sglang): the contract suite, then
# tests/sglang/live against the same server. About 7 GB to install and 3 GB of memory.
#
# VENV / CATALEJO_PYTHON  the project's environment; it runs the tests
# SGLANG_VENV             SGLang's own (default .venv-sglang), made from requirements/sglang.txt less cuda_only.txt
# SGLANG_PORT             where the server listens (default 30917)
# SGLANG_PARTS            some of: rows tiny attack hicache demo plain bench (default: all)
# CATALEJO_TORCH_INDEX    another PyTorch index, e.g. the CPU-only one, as in deploy/build/setup.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
CATALEJO_PYTHON=${CATALEJO_PYTHON:-$PWD/${VENV:-.venv}/bin/python}
PYTHON=${PYTHON:-$CATALEJO_PYTHON}
SGLANG_VENV=${SGLANG_VENV:-.venv-sglang}
PORT=${SGLANG_PORT:-30917}
LOCK=requirements/sglang.txt
OUT=build/sglang
[ -x "$CATALEJO_PYTHON" ] || { echo "test-sglang: no project interpreter at $CATALEJO_PYTHON; run make setup" >&2; exit 2; }

environment() {
  local key names
  key=$(cat "$LOCK" tests/sglang/cuda_only.txt | sha256sum)
  [ -f "$SGLANG_VENV/.lock" ] && [ "$(cat "$SGLANG_VENV/.lock")" = "$key" ] && return
  names=$(grep -v '^#' tests/sglang/cuda_only.txt | paste -sd'|')
  mkdir -p $OUT
  grep -v '^#' "$LOCK" | grep -Ev "^($names)==" >$OUT/requirements.txt
  echo "test-sglang: installing $(grep -c == $OUT/requirements.txt) packages into $SGLANG_VENV"
  "$PYTHON" -m venv --clear "$SGLANG_VENV"
  if [ -n "${CATALEJO_TORCH_INDEX:-}" ]; then
    # shellcheck disable=SC2046
    "$SGLANG_VENV/bin/pip" install --quiet --no-deps --index-url "$CATALEJO_TORCH_INDEX" $(grep -E '^(torch|torchvision)==' "$LOCK")
    grep -vE '^(torch|torchvision|triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+)==' $OUT/requirements.txt >$OUT/rest.txt
    mv $OUT/rest.txt $OUT/requirements.txt
  fi
  "$SGLANG_VENV/bin/pip" install --quiet --no-deps -r $OUT/requirements.txt
  echo "$key" >"$SGLANG_VENV/.lock"
}

# What each setting is for:
#   SGLANG_USE_CPU_ENGINE                       SGLang's CPU platform
#   PYTHONOPTIMIZE                              its M3 vision tower asserts bfloat16; we compare in float32, where greedy
#                                               tokens of two engines can be equal
#   TORCHDYNAMO_DISABLE                         the vision tower's rotary step is torch.compile'd, seconds per shape
#   SGLANG_OPT_USE_MINIMAX_DECODE_TOPK_RADIX    a CUDA kernel
#   SGLANG_OPT_USE_BF16_ROUTER_GEMM             off: the router in float32, as the checkpoint's reference has it
#   --skip-server-warmup                        the warm-up needs SGLang's own picture processor
server() (
  unset PYTHONDONTWRITEBYTECODE  # -O has bytecode of its own; without it each start compiles all of SGLang, three times
  PYTHONPATH=${BROKEN:-}$PWD/tests/sglang/stubs:$PWD SGLANG_USE_CPU_ENGINE=1 PYTHONOPTIMIZE=1 OMP_NUM_THREADS=1 \
    TORCHDYNAMO_DISABLE=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false SGLANG_OPT_USE_MINIMAX_DECODE_TOPK_RADIX=0 SGLANG_OPT_USE_BF16_ROUTER_GEMM=0 \
    "$@"
)
FLAGS=(--device cpu --attention-backend torch_native --disable-overlap-schedule --dtype float32 --sampling-backend pytorch
  --mem-fraction-static 0.9 --max-running-requests 64 --grammar-backend xgrammar --chunked-prefill-size 512
  --incremental-streaming-output --enable-metrics --enable-priority-scheduling
  --constrained-json-disable-any-whitespace --load-snapshot-publish-interval 1 --skip-server-warmup)
SERVER=
stop() { if [ -n "$SERVER" ]; then kill -9 -- -"$SERVER" 2>/dev/null || true; wait "$SERVER" 2>/dev/null || true; SERVER=; fi; }
trap stop EXIT

start() {  # name, checkpoint, more flags: a server that answers, its log in $OUT/name.log
  local name=$1 model=$2; shift 2
  LOG=$OUT/$name.log
  stop
  set -m
  server "$SGLANG_VENV/bin/python" -m sglang.launch_server --model-path "$model" --host 127.0.0.1 --port "$PORT" \
    --api-key "$CATALEJO_CONTRACT_TOKEN" "${FLAGS[@]}" "$@" >"$LOG" 2>&1 &
  SERVER=$!
  set +m
  echo "test-sglang: waiting for the $name server (log: $LOG)"
  for _ in $(seq 300); do
    if ! kill -0 "$SERVER" 2>/dev/null; then tail -40 "$LOG"; echo "test-sglang: the server ended" >&2; exit 1; fi
    curl -sf -o /dev/null -m 2 "$CATALEJO_CONTRACT_URL/health" && return
    sleep 2
  done
  tail -40 "$LOG"; echo "test-sglang: not up after 600 s" >&2; exit 1
}

failed=0
check() {  # pytest's arguments
  "$CATALEJO_PYTHON" -m pytest -q -p no:cacheprovider "$@" && return
  failed=1
  echo "test-sglang: the end of $LOG:"; tail -20 "$LOG"
}

wants() { [ -z "${SGLANG_PARTS:-}" ] || [[ " $SGLANG_PARTS " == *" $1 "* ]]; }

environment
"$CATALEJO_PYTHON" -m tests.sglang.checkpoint engine/checkpoints/tiny $OUT/tiny
"$CATALEJO_PYTHON" -m tests.sglang.checkpoint engine/checkpoints/demo/model $OUT/demo
export CATALEJO_CONTRACT_URL=http://127.0.0.1:$PORT CATALEJO_CONTRACT_TOKEN=contract-suite-token
export CATALEJO_CONTRACT_KEEP_ALIVE_S=0.2 CATALEJO_CONTRACT_MAX_BODY_BYTES=8388608
export CATALEJO_KEEP_ALIVE_S=$CATALEJO_CONTRACT_KEEP_ALIVE_S CATALEJO_MAX_BODY_BYTES=$CATALEJO_CONTRACT_MAX_BODY_BYTES
export CATALEJO_CONTRACT_MODEL=$PWD/engine/checkpoints/tiny PYTHONPATH=$PWD OMP_NUM_THREADS=1
TINY=($OUT/tiny --page-size 16 --max-total-tokens 140000)
DEMO=($OUT/demo --page-size 32 --max-total-tokens 20000 --reasoning-parser minimax-m3 --tool-call-parser minimax-m3 --served-model-name demo)

if wants rows; then
  echo "test-sglang: $(server "$SGLANG_VENV/bin/python" -m tests.sglang.break_rows 2>&1 | tail -1)" | tee $OUT/rows.txt
  grep -q "each one missing or changed is refused" $OUT/rows.txt
  if BROKEN=$PWD/tests/sglang/broken: server timeout 300 "$SGLANG_VENV/bin/python" -m sglang.launch_server --model-path "${TINY[@]}" \
    --port "$PORT" "${FLAGS[@]}" >$OUT/broken.log 2>&1; then
    echo "test-sglang: a SGLang with a changed operator was served" >&2; exit 1
  fi
  tail -3 $OUT/broken.log | grep -q "refusing to serve" || { tail -20 $OUT/broken.log; exit 1; }
  echo "test-sglang: a SGLang with a changed operator ends with: $(grep -o 'catalejo: SGLang.*' $OUT/broken.log)"
  if BROKEN=$PWD/tests/sglang/lossy: server timeout 600 "$SGLANG_VENV/bin/python" -m sglang.launch_server --model-path "${TINY[@]}" \
    --port "$PORT" "${FLAGS[@]}" --radix-cache-backend lossy >$OUT/lossy.log 2>&1; then
    echo "test-sglang: a cache that nobody knows was served" >&2; exit 1
  fi
  grep -q "LossyCache is not known to carry the index keys.*refusing to serve" $OUT/lossy.log || { tail -20 $OUT/lossy.log; exit 1; }
  if grep -q "fired up and ready" $OUT/lossy.log; then echo "test-sglang: it was ready before it was refused" >&2; exit 1; fi
  echo "test-sglang: a cache that nobody knows is refused"
fi

if wants tiny; then  # our route: the contract, equality with the embedded engine, attacks
  start tiny "${TINY[@]}"
  check tests/contract -k "url" "$@"
  check tests/sglang/live/test_equality.py tests/sglang/live/test_gateway.py "$@"
fi

if wants attack; then  # a KV pool of 3,072 tokens, handed out lightly, so that requests are retracted
  start attack $OUT/tiny --page-size 16 --max-total-tokens 3072 --schedule-conservativeness 0
  check tests/sglang/live/test_attack.py "$@"
fi

if wants hicache; then  # prefixes that leave the device for host memory and come back
  start hicache $OUT/tiny --page-size 16 --max-total-tokens 3072 --enable-hierarchical-cache --hicache-ratio 8 \
    --hicache-io-backend direct --hicache-mem-layout layer_first --hicache-write-policy write_through
  check tests/sglang/live/test_hicache.py "$@"
fi

if wants demo; then  # a model that answers: the gateway beside SGLang's own OpenAI layer
  start demo "${DEMO[@]}"
  check tests/sglang/live/test_side_by_side.py "$@"
fi

if wants plain; then  # SGLang as it comes, without our plugin
  SGLANG_PLUGINS=cpu_stand_ins start plain "${DEMO[@]}"
  check tests/sglang/live/test_plain.py "$@"
fi

if wants bench; then  # `catalejo bench engine` from start to table; on a CPU there is nothing to compare
  stop
  echo "test-sglang: catalejo bench engine (log: $OUT/bench)"
  server "$SGLANG_VENV/bin/python" -m engine.bench.serving --small --layers 3 --hidden 128 --modes auto \
    --prefix 64 --own 20 --decode 4 --concurrency 1,2 --new 20 --far 128 --passes 2 --profile --port "$PORT" --logs $OUT/bench --out $OUT/bench.json \
    "${FLAGS[@]}" --max-total-tokens 20000 >$OUT/bench.txt || { failed=1; tail -20 $OUT/bench.txt; }
  grep -E '(: profile|^greedy|^mix 2|^far 20)' $OUT/bench.txt || failed=1
fi
exit $failed

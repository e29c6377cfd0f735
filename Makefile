# `make serve` and `make test` do all their own set-up. `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
VENV ?= .venv
export VENV
BIN := $(VENV)/bin
PORT ?= 8000
PYTEST_WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup serve test test-codecs test-asan test-arm64 soak conformance fuzz-api test-sglang test-deploy test-apiserver check format locks clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/; s/\$$\(PORT\)/$(PORT)/' | expand -t 18

setup: ## system packages, virtual environment, Rust extension
	@deploy/build/setup.sh

serve: setup ## gateway and embedded engine on 127.0.0.1:$(PORT) (PORT=8001 for another), with the demo checkpoint
	@exec $(BIN)/catalejo up --port $(PORT)

test: setup ## every test that needs no GPU, no cluster and no network
	cargo test --release --quiet --manifest-path preproc_rs/Cargo.toml --features video,tiff
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile -m "not slow"

test-codecs: setup ## preproc_rs with TIFF, AVIF and HEIC, which are off elsewhere: clippy and its tests
	cargo clippy --release --quiet --all-targets --features extension-module,video,tiff,avif,heic -- -D warnings
	cargo test --release --quiet --manifest-path preproc_rs/Cargo.toml --features video,tiff,avif,heic
	cargo build --release --quiet --target-dir target/codecs --package preproc_rs --features extension-module,video,tiff,avif,heic
	mkdir -p target/codecs/python/preproc_rs
	cp target/codecs/release/libpreproc_rs.so target/codecs/python/preproc_rs/preproc_rs.abi3.so
	cp "$$($(BIN)/python -c 'import preproc_rs; print(preproc_rs.__file__)')" target/codecs/python/preproc_rs/
	PYTHONPATH=target/codecs/python $(BIN)/python -m pytest tests/unit/preproc tests/unit/media

# Instrumented on the stable toolchain, C code too; libav and assembly are not. A test asks for impossible allocations: null, not an end.
test-asan: ## preproc_rs's tests under AddressSanitizer (builds everything again: about ten minutes)
	ASAN_OPTIONS=allocator_may_return_null=1 RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CFLAGS="-fsanitize=address -fno-omit-frame-pointer" \
	  CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_TARGET_DIR=target/asan \
	  cargo test --release --target $$(rustc -vV | sed -n 's/^host: //p') --manifest-path preproc_rs/Cargo.toml --features video,tiff

# Debian: qemu-user, g++-aarch64-linux-gnu; rustup target add aarch64-unknown-linux-gnu.
test-arm64: ## preproc_rs's tests as built for 64-bit ARM (NEON), under qemu
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
	  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" \
	  cargo test --release --target aarch64-unknown-linux-gnu --manifest-path preproc_rs/Cargo.toml

soak: setup ## gateway, failing engines and clients of every kind for SOAK_SECONDS (1200), then the accounts are compared
	SOAK_SECONDS=$(or $(SOAK_SECONDS),1200) $(BIN)/python -m pytest -s -m slow tests/soak/gateway

conformance: setup ## real OpenAI clients against a real gateway; own virtual environments, needs node for half of them
	VENV=$(VENV) tests/conformance/run.sh

fuzz-api: setup ## schemathesis over our OpenAPI: no 5xx (about a minute)
	VENV=$(VENV) tests/conformance/fuzz.sh

test-sglang: setup ## real SGLang on the CPU: contract suite, equality with the embedded engine (about 7 GB to install)
	VENV=$(VENV) tests/sglang/run.sh

test-deploy: setup ## the Helm chart with the real tools: lint, matrix, schemas, alerts (fetches helm and promtool)
	VENV=$(VENV) tests/deploy/run.sh

test-apiserver: setup ## the chart on a real kube-apiserver and etcd, built once (long)
	VENV=$(VENV) tests/deploy/apiserver.sh

check: setup ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	cargo fmt --all --check
	cargo clippy --release --quiet --all-targets --features extension-module,video,tiff -- -D warnings

format: setup ## rewrite files in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	cargo fmt --all

locks: setup ## re-pin requirements/app.txt from pyproject.toml
	$(BIN)/pip-compile --quiet --upgrade --extra engine-local --extra loadtest --extra tracing --extra dev --strip-extras --allow-unsafe \
	  --no-emit-index-url --no-emit-find-links --no-header --no-annotate -o requirements/app.txt pyproject.toml

clean: ## remove everything built here
	rm -rf $(VENV) .venv-* .cache/deploy tests/conformance/node/node_modules target .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist

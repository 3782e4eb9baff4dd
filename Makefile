# The only commands a newcomer needs.
#
#   make demo    twenty downloads, a host dies, nobody notices
#   make test    everything that must hold (root is needed for network namespaces)
#   make bench   the bars, side by side with the same server unprotected; FULL=1: all rows;
#                ONLY="ROW ...": these; the report is bench/out/report.html
#   make torture RUNS=n SEED=s
#                the fault campaign: random faults at random moments; ONLY=KIND and SCHEME=NAME
#                choose among the seeds; PAGE=1 writes docs/torture.md, or docs/torture-NAME.md;
#                DUAL=1: both nodes serve, and the page is docs/torture-dual.md;
#                DETECTION_MS=n for a machine that stands still again and again;
#                RESUME=1 goes on behind the last run of the same campaign, if it was ended
#   make lint    formatting and lints
#   make build   target/release/steadfast

SHELL := /bin/bash
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -E)
TARGET := $(shell uname -m)-unknown-linux-gnu
# Tests make namespaces and load BPF programs: cargo builds as the user, the tests run as root.
RUNNER := $(if $(SUDO),CARGO_TARGET_$(shell echo $(TARGET) | tr a-z- A-Z_)_RUNNER="$(SUDO)")
BIN := target/release/steadfast
# No member of the workspace: see its Cargo.toml.
RUNTIME := crates/runtime/program
DEMO ?=
FULL ?=
ONLY ?=
SCHEME ?=
RUNS ?= 100
SEED ?= 1
PAGE ?=
DETECTION_MS ?=
RESUME ?=
DUAL ?=

.PHONY: demo test bench torture lint build deps deps-run sim clean

demo: deps-run build
	$(SUDO) $(BIN) demo $(DEMO)

test: deps-run build
	$(RUNNER) STEADFAST_BIN=$(CURDIR)/$(BIN) cargo test --workspace --release --no-fail-fast

bench: deps-run build
	cargo build --release -p bench
	$(SUDO) STEADFAST_BIN=$(CURDIR)/$(BIN) target/release/bench $(if $(FULL),--full) \
		$(addprefix --only ,$(ONLY)) \
		$(if $(ONLY),,--page docs/benchmarks.md --report docs/benchmarks.html)

torture: deps-run build
	cargo build --release -p torture
	$(SUDO) target/release/torture --product $(BIN) --runs $(RUNS) --seed $(SEED) \
		$(addprefix --only ,$(ONLY)) $(addprefix --scheme ,$(SCHEME)) \
		$(addprefix --detection-ms ,$(DETECTION_MS)) --json target/torture/summary.json \
		$(if $(RESUME),--resume) $(if $(DUAL),--dual) \
		$(if $(PAGE),--page docs/torture$(addprefix -,$(SCHEME))$(if $(DUAL),-dual).md)

lint: deps
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cd $(RUNTIME) && cargo fmt --check
	cd $(RUNTIME) && cargo clippy --locked --target-dir ../../../target/runtime -- -D warnings

build: deps
	cargo build --release --bin steadfast

sim: deps
	cargo run --release -p sim -- --runs 10000

deps:
	@tools/deps.sh build

deps-run:
	@tools/deps.sh run

clean:
	cargo clean

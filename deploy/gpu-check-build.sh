#!/usr/bin/env bash
# Builds the test programs that deploy/gpu-check.sh runs, in release mode, and puts them into a folder without their
# symbols. They look for their data under the path of this checkout.
set -euo pipefail

if [ $# -ne 1 ] || [ "$1" = --help ] || [ "$1" = -h ]; then
  echo "Usage: deploy/gpu-check-build.sh DIR"
  echo
  echo "Needs the Rust toolchain and no GPU. Then, on the machine with the GPU and at the same path (or with that path as a"
  echo "link to the checkout there): deploy/gpu-check.sh --tests DIR"
  [ "${1:-}" = --help ] || [ "${1:-}" = -h ]
  exit
fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."

# collect PACKAGE TEST...
collect() {
  local package=$1 test program log
  shift
  log=$(mktemp)
  # shellcheck disable=SC2046 # a flag and a name for each test
  cargo test --release --locked --no-run -p "$package" $(printf -- '--test %s ' "$@") 2>&1 | tee "$log" >&2
  for test in "$@"; do
    program=$(sed -n "s|.*Executable tests/${test}[./].*(\(.*\))|\1|p" "$log")
    [ -n "$program" ] || { echo "gpu-check-build: cargo named no program of $package, $test" >&2; exit 1; }
    strip -o "$out/$package.$test" "$program" 2>/dev/null || cp "$program" "$out/$package.$test"
  done
  rm -f "$log"
}
collect kernels conformance kv_types exchange
collect models goldens gpu lossless one_launch parking stages dflash_goldens dflash_context dflash_dialects dflash_demo speculation_goldens
collect engine speculation lossless prefixes disk parking

# collect_bench NAME
collect_bench() {
  local program log
  log=$(mktemp)
  cargo bench --locked --no-run -p kernels --bench "$1" 2>&1 | tee "$log" >&2
  program=$(sed -n "s|.*Executable benches/$1.*(\\(.*\\))|\\1|p" "$log")
  [ -n "$program" ] || { echo "gpu-check-build: cargo named no program of the bench $1" >&2; exit 1; }
  strip -o "$out/kernels.$1" "$program" 2>/dev/null || cp "$program" "$out/kernels.$1"
  rm -f "$log"
}
# What compares the ways to share the work of products: TANDEM_BENCH_DEVICE=cuda:0 DIR/kernels.product_shapes [ROWS PART]
collect_bench product_shapes
# The table of tensor channels.
collect_bench channels
ls -l "$out"

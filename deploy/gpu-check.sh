#!/usr/bin/env bash
# Is this GPU right, and how fast? One line for each check, then tables. `--help` says more.
# shellcheck disable=SC2329 # `check` calls functions by their names
set -uo pipefail

usage() {
  cat <<'TEXT'
Usage: deploy/gpu-check.sh [OPTIONS] [TANDEM]

Checks Tandem on a GPU and measures it. Run it from the root of the repository. TANDEM is the program
[default: target/release/tandem].

  --device NAME      the GPU [default: cuda:0]
  --tests DIR        also run the test programs in DIR, which deploy/gpu-check-build.sh makes. They look for their data
                     where the checkout was when they were built: run them from the same path, or make the old path a
                     link to this checkout.
  --split A,B        also split the model over these devices, and hold the answer against that of one; may be given several
                     times. Measured too, unless --no-bench
  --draft NAME       a device that the demo pair's draft runs on; may be given several times [default: the GPU, and cpu]
  --model FILE       a GGUF file to measure; may be given several times [default: the demo model inside TANDEM]
  --depth N,N        contexts to decode after [default: 0,4096]
  --rows N,N         rows of the trees to verify [default: 1,8,16,23,32,64]
  --greedy N         tokens of the answer that both decode paths have to agree in; 0: none [default: 10000]
  --prefill-chunk N  prompt tokens computed in a step [default: 512]
  --no-bench         only the checks
  --compute-sanitizer
                     only run the tests of operations and of steps in one launch under compute-sanitizer, with memcheck and
                     racecheck, in small shapes, all at once; wants --tests
  --logs DIR         where outputs go [default: a new folder, named at the end]
  --help             this text

PASS, FAIL or SKIP begins each check's line; the exit status is 1 where something failed.
The floor of a decoded token is its bytes (weights, recurrent states, keys and values) by the bandwidth measured in the
same run; no program can take less. First start: kernels are compiled; second: they are kept from the first one.
TEXT
}

stop() {
  echo "gpu-check: $*" >&2
  exit 2
}

device=cuda:0 tests='' models=() splits=() drafts=() depth=0,4096 rows=1,8,16,23,32,64 greedy=10000 chunk=512 bench=yes sanitizer='' logs='' tandem=''
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) usage && exit 0 ;;
    --no-bench) bench='' && shift && continue ;;
    --compute-sanitizer) sanitizer=yes && shift && continue ;;
    --device | --tests | --split | --draft | --model | --depth | --rows | --greedy | --prefill-chunk | --logs)
      [ $# -gt 1 ] || stop "$1 wants a value" ;;
    -*) stop "unknown option $1; --help lists them" ;;
    *)
      [ -z "$tandem" ] || stop "more than one program: $tandem, $1"
      tandem=$1
      shift
      continue
      ;;
  esac
  case $1 in
    --device) device=$2 ;;
    --tests) tests=$2 ;;
    --split) splits+=("$2") ;;
    --draft) drafts+=("$2") ;;
    --model) models+=("$2") ;;
    --depth) depth=$2 ;;
    --rows) rows=$2 ;;
    --greedy) greedy=$2 ;;
    --prefill-chunk) chunk=$2 ;;
    --logs) logs=$2 ;;
  esac
  shift 2
done
tandem=${tandem:-target/release/tandem}
if [ ${#drafts[@]} = 0 ]; then
  drafts=("$device")
  [ "$device" = cpu ] || drafts+=(cpu)
fi
[ -z "$tests" ] || [ -d "$tests" ] || stop "--tests: there is no folder $tests"
if [ -z "$logs" ]; then
  logs=$(mktemp -d "${TMPDIR:-/tmp}/gpu-check.XXXXXX") || exit 2
fi
mkdir -p "$logs" || exit 2
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
failed=0

# now: seconds since some time.
now() { date +%s.%N; }
since() { awk -v from="$1" -v to="$(now)" 'BEGIN { printf "%.1f", to - from }'; }

# check NAME COMMAND...: one line, and the end of the output where it failed.
check() {
  local name=$1 from log
  shift
  log="$logs/${name//[^A-Za-z0-9._-]/-}.log"
  from=$(now)
  if "$@" >"$log" 2>&1; then
    echo "PASS $name ($(since "$from") s)"
    return 0
  fi
  echo "FAIL $name ($(since "$from") s): $log ends with"
  tail -n 15 "$log" | sed 's/^/     | /'
  failed=1
  return 1
}

if [ -n "$sanitizer" ]; then
  [ -n "$tests" ] || stop "--compute-sanitizer wants --tests"
  program=$(command -v compute-sanitizer) ||
    program=$(ls "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer" 2>/dev/null) ||
    stop "there is no compute-sanitizer, in PATH or in ${CUDA_HOME:-/usr/local/cuda}/bin"
  # All at once: most of the time they wait for the sanitizer, which keeps one processor busy.
  running=()
  # Told to stop, they would go on: what a script has in the background does not hear of an interrupt.
  trap 'for one in "${running[@]}"; do pkill -P "$one"; done; exit 130' INT TERM
  for tool in memcheck racecheck; do
    for filter in rows top_k linear attention prompt kv_types delta_net commits draft steps; do
      filter+=::
      check "$tool $filter" env TANDEM_TEST_DEVICES="$device" TANDEM_TEST_SMALL=1 TANDEM_NVRTC_OPTIONS=-DFOR_RACECHECK=1 timeout 900 \
        "$program" --tool "$tool" --error-exitcode 99 "$tests/kernels.conformance" --test-threads=1 "$filter" &
      running+=($!)
    done
    # Whole steps in one launch: of all that these tests launch that kernel alone.
    for filter in one_launch_has_the_bits several_tokens slices_of_two_warps; do
      check "$tool $filter" env TANDEM_TEST_DEVICE="$device" TANDEM_NVRTC_OPTIONS=-DFOR_RACECHECK=1 timeout 900 \
        "$program" --tool "$tool" --error-exitcode 99 --kernel-name kernel_substring=step "$tests/models.one_launch" --test-threads=1 "$filter" &
      running+=($!)
    done
  done
  for one in "${running[@]}"; do wait "$one" || failed=1; done
  echo "logs: $logs"
  exit "$failed"
fi

[ -x "$tandem" ] || stop "there is no program $tandem; build it with: cargo build --release"

# What doctor says of the device, and that it was measured.
doctor() {
  "$tandem" doctor >"$logs/doctor.log" 2>&1 || return 1
  awk -v head="device  $device:" '
    /^[a-z]/ { ours = index($0, head) == 1 }
    ours { print; if (/memory reads at/) measured = 1; if (/cannot be used/) broken = 1 }
    /^cuda/ { print }
    END { exit !measured || broken }' "$logs/doctor.log"
}
check doctor doctor
sed 's/^/     /' "$logs/doctor.log" | awk -v head="device  $device:" '
  /^     [a-z]/ { ours = index($0, head) || /^     cuda/ }
  ours'

# answer ARGUMENTS: ids of a greedy answer of the demo model.
answer() {
  "$tandem" run "$@" -p 'def fibonacci(n):' -n 64 --json 2>"$scratch/errors" |
    sed 's/.*"tokens":\(\[[0-9,]*\]\).*/\1/'
}
# same_answer FLAG VALUE: whether the answer is that of the CPU.
same_answer() {
  local ours theirs
  ours=$(answer "$@")
  cat "$scratch/errors"
  theirs=$(answer --device cpu)
  cat "$scratch/errors"
  echo "$2: $ours"
  echo "cpu: $theirs"
  [ -n "$ours" ] && [ "$ours" = "$theirs" ]
}
check "demo model: the answer of the CPU" same_answer --device "$device"
# These fail where a draft changes a token.
for draft in "${drafts[@]}"; do
  check "demo pair, draft on $draft" "$tandem" bench --device "$device" --draft-device "$draft" --mode ar,tree,auto -r 1 -n 48
done
for split in "${splits[@]}"; do
  check "demo model split over $split: the answer of the CPU" same_answer --target-devices "$split"
  check "demo pair, target split over $split" "$tandem" bench --target-devices "$split" --draft-device "$device" \
    --mode ar,tree,auto -r 1 -n 48
done

if [ -n "$tests" ]; then
  for test in kernels.conformance kernels.kv_types kernels.exchange models.goldens models.gpu models.lossless models.one_launch models.parking models.stages models.dflash_goldens \
    models.dflash_context models.dflash_dialects models.dflash_demo models.speculation_goldens engine.speculation \
    engine.lossless engine.prefixes engine.disk engine.parking; do
    if [ -x "$tests/$test" ]; then
      check "$test" env TANDEM_TEST_DEVICES="$device" TANDEM_TEST_DEVICE="$device" "$tests/$test" --nocapture
    else
      echo "SKIP $test: not in $tests"
    fi
  done
else
  echo "SKIP tests: no --tests"
fi

if [ -n "$bench" ] && [ -x "$tests/kernels.channels" ]; then
  check "tensor channels" "$tests/kernels.channels" && sed 's/^/     /' "$logs/tensor-channels.log"
fi

if [ -n "$bench" ]; then
  [ ${#models[@]} -gt 0 ] || models=(demo)
  # start MODEL: seconds from nothing to the second token.
  start() {
    local from
    from=$(now)
    TANDEM_KERNEL_CACHE="$scratch/kernels" "$tandem" run --device "$device" "$@" -p hi -n 2 --ignore-eos \
      >/dev/null 2>>"$logs/start.log" || return 1
    since "$from"
  }
  # long_answer PATH ARGUMENTS: ids of a long greedy answer, decoded on that path.
  long_answer() {
    local path=$1
    shift
    "$tandem" run --device "$device" --decode-path "$path" "$@" -c $((greedy + 64)) --tokens "$scratch/prompt.json" -n "$greedy" \
      --ignore-eos --json | sed 's/.*"tokens":\(\[[0-9,]*\]\).*/\1/'
  }
  same_on_both_paths() {
    local graph megakernel
    graph=$(long_answer graph "$@") && megakernel=$(long_answer megakernel "$@") || return 1
    printf 'graph: %s\nmegakernel: %s\n' "$graph" "$megakernel"
    [ "$(tr -cd , <<<"$graph" | wc -c)" = $((greedy - 1)) ] && [ "$graph" = "$megakernel" ]
  }
  # logits_on PATH ARGUMENTS: logits of some tokens, a step for each, on that path.
  logits_on() {
    local path=$1
    shift
    "$tandem" probe target --device "$device" --decode-path "$path" "$@" --tokens "$scratch/probed.json" --rows 1 \
      --out "$scratch/$path.safetensors"
  }
  same_logits_on_both_paths() {
    logits_on graph "$@" && logits_on megakernel "$@" && cmp "$scratch"/{graph,megakernel}.safetensors
  }
  echo '[1,2,3]' >"$scratch/prompt.json"
  echo '[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]' >"$scratch/probed.json"
  summary="$scratch/summary" paths="$scratch/paths" energy=()
  [[ $device != cuda* ]] || energy=(--energy)
  for model in "${models[@]}"; do
    file=()
    [ "$model" = demo ] || file=(--model "$model")
    rm -rf "$scratch/kernels"
    first=$(start "${file[@]}") || first='-'
    second=$(start "${file[@]}") || second='-'
    name=$(basename "$model" .gguf)
    if check "bench $name" "$tandem" bench --device "$device" "${file[@]}" --pp 512,4096 --tg 128 --depth "$depth" \
      --rows "$rows" --prefill-chunk "$chunk"; then
      log="$logs/bench-${name//[^A-Za-z0-9._-]/-}.log"
      sed 's/^/     /' "$log"
      awk -F '|' -v name="$name" -v first="$first" -v second="$second" '
        function trimmed(text) { gsub(/^ +| +$/, "", text); return text }
        /^memory/ {
          bandwidth = floor = $0
          sub(/^memory +/, "", bandwidth); sub(/ .*/, "", bandwidth)
          sub(/ ms$/, "", floor); sub(/.* /, "", floor)
        }
        /^\| tg128/ && !/@/ { decode = trimmed($3); share = trimmed($6) }
        /^\| tg128 @/ { deep = deep (deep == "" ? "" : ", ") trimmed($3) " (" trimmed($6) ")" }
        /^\| pp512/ { short = trimmed($3) }
        /^\| pp4096/ { long = trimmed($3) }
        END {
          each = decode ? sprintf("%.3f", 1000 / decode) : "-"
          printf("| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", name, bandwidth, floor, each, decode, share, deep, short, long,
            first, second)
        }' "$log" >>"$summary"
    fi
    check "logits of $name: the same on both decode paths" same_logits_on_both_paths "${file[@]}"
    [ "$greedy" = 0 ] ||
      check "$greedy greedy tokens of $name: the same on both decode paths" same_on_both_paths "${file[@]}"
    for path in graph megakernel; do
      if check "bench $name as $path" "$tandem" bench --device "$device" "${file[@]}" --decode-path "$path" --pp 8 --tg 128 \
        --depth "$depth" "${energy[@]}"; then
        # A test has a line for its speed and, further down, one for its energy.
        awk -F '|' -v name="$name" -v path="$path" '
          function trimmed(text) { gsub(/^ +| +$/, "", text); return text }
          /^memory/ { bandwidth = $0; sub(/^memory +/, "", bandwidth); sub(/ .*/, "", bandwidth) }
          /^\| energy/ { energy = 1 }
          /^\| test/ { energy = 0 }
          /^\| tg128/ && !energy { test = trimmed($2); tests[++count] = test; speed[test] = trimmed($3); share[test] = trimmed($6) }
          /^\| tg128/ && energy { joule[trimmed($2)] = trimmed($3) }
          END {
            for (i = 1; i <= count; i++) {
              test = tests[i]
              printf("| %s | %s | %s | %s | %s | %s | %s |\n", name, path, test, bandwidth, speed[test], share[test], joule[test])
            }
          }' "$logs/bench-${name//[^A-Za-z0-9._-]/-}-as-$path.log" >>"$paths"
      fi
    done
    for split in "${splits[@]}"; do
      if check "bench $name over $split" "$tandem" bench --target-devices "$split" "${file[@]}" --pp 512 --tg 128 \
        --rows "$rows" --prefill-chunk "$chunk"; then
        log="bench $name over $split"
        sed 's/^/     /' "$logs/${log//[^A-Za-z0-9._-]/-}.log"
      fi
    done
  done
  if [ -s "$summary" ]; then
    echo
    echo "| model | GB/s read | floor ms | tg128 ms | tg128 tok/s | share | tg128 at depth | pp512 tok/s | pp4096 tok/s | first start s | second |"
    echo "| --- | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |"
    cat "$summary"
  fi
  if [ -s "$paths" ]; then
    echo
    echo "| model | decode path | test | GB/s read | tok/s | share | tokens/J |"
    echo "| --- | --- | --- | ---: | ---: | ---: | ---: |"
    cat "$paths"
  fi
fi
echo
echo "logs: $logs"
exit "$failed"

# Implements scripts/gpu.sh run; see there.

from="$root/build/card" out="${OUT:-$root/build/card_results}" total=530 each="" stages=()
while (($#)); do
  case "$1" in
    --from | --out | --seconds | --each)
      (($# > 1)) || usage
      case "$1" in --from) from="$2" ;; --out) out="$2" ;; --seconds) total="$2" ;; --each) each="$2" ;; esac
      shift
      ;;
    --once) export DEEPREC_BENCH_ONCE=1 ;;
    smoke | test | bench | bench:?* | tune | ncu | sanitize | sanitize:?*) stages+=("$1") ;;
    *) usage ;;
  esac
  shift
done
((${#stages[@]})) && [[ "$total$each" =~ ^[0-9]+$ ]] || usage
[[ -f "$from/build.txt" ]] || { say "no builds in $from; scripts/gpu.sh build makes them" && exit 2; }
from="$(realpath "$from")"
query() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -n 1 | sed 's/, */;/g'; }
card="$(query name)"
[[ -n "$card" ]] || { say "ABSENT: no GPU here" && exit 77; }

mkdir -p "$out" || exit 2
out="$(realpath "$out")"
work="$(mktemp -d)"
mkdir -p "$work"/{logs,json}

# All output goes to a file as well. Whoever ends this script waits for the last lines.
exec 3>&1 4>&2
exec > >(exec tee "$out/summary.txt") 2>&1
tee=$!
end() {
  local code=$? i
  exec >&3 2>&4
  for ((i = 0; i < 50; ++i)); do
    kill -0 "$tee" 2>/dev/null || break
    sleep 0.1
  done
  rm -rf "$work"
  exit "$code"
}
trap end EXIT
# After each stage, so that little is lost when somebody else ends this script.
archive() {
  cp "$out/summary.txt" "$from"/{build,kernels}.txt "$work/" 2>/dev/null
  tar -czf "$work.tar.gz" -C "$work" . && mv "$work.tar.gz" "$out/results.tar.gz"
}

# --- processes -----------------------------------------------------------------------------------

left() { echo $((total - (SECONDS - started))); }
# limit_of SECONDS: no more than that, and not beyond the end.
limit_of() {
  local limit="${each:-$1}" rest
  rest="$(left)"
  echo "$((limit < rest ? limit : rest))"
}
at_once=1
waiting=() # "PID NAME" of what was launched and not yet looked at
log_of() { echo "$work/logs/$(tr ' /*:=,' '______' <<<"$1").txt"; }

# launch SECONDS NAME COMMAND...: starts it as soon as fewer than $at_once run.
launch() {
  local limit name="$2" log
  while (($(jobs -rp | wc -l) >= at_once)); do sleep 0.05; done
  limit="$(limit_of "$1")"
  log="$(log_of "$name")"
  shift 2
  if ((limit < 2)); then
    fail "$name: no time left"
    return
  fi
  {
    local began=$SECONDS code=0
    timeout --signal=KILL "$limit" "$@" </dev/null >"$log" 2>&1 || code=$?
    echo "$code $((SECONDS - began))" >"$log.code"
  } 2>/dev/null &
  waiting+=("$! $name")
}
# finish [REPORT]: waits for all, and says how each ended; where there is a report of Google Benchmark, also by it. Answers with 0 when all
# did well.
finish() {
  local entry name log code seconds bad=0 report="${1:-}"
  for entry in "${waiting[@]}"; do
    wait "${entry%% *}" 2>/dev/null
    name="${entry#* }"
    log="$(log_of "$name")"
    code="?" seconds="?"
    read -r code seconds <"$log.code" 2>/dev/null
    rm -f "$log.code"
    if [[ "$code" == 0 ]] && grep -qE '^\[doctest\] test cases: +0 ' "$log"; then
      fail "$name: it has no such tests" && bad=1
    elif [[ "$code" == 0 && -n "$report" && "$(tail -n 1 "$report" 2>/dev/null)" != "}" ]]; then
      fail "$name: nothing was recorded" && bad=1
    elif [[ "$code" == 0 && -n "$report" ]] && grep -q '"error_occurred": true' "$report"; then
      fail "$name: $(grep -m 1 '"error_message"' "$report" | sed 's/^ *//')" && bad=1
    elif [[ "$code" == 0 ]]; then
      say "ok: $name ($seconds s)"
    else
      bad=1
      case "$code" in
        77) fail "$name: skipped itself" ;;
        124 | 137) fail "$name: cut off after $seconds s" ;;
        *) fail "$name: exit code $code" ;;
      esac
      tail -n 12 "$log" | cut -c -300 | sed 's/^/        /'
    fi
  done
  waiting=()
  return "$bad"
}

# --- what is there -------------------------------------------------------------------------------

# tool NAME PLACE...: where it is; nothing when it is nowhere.
tool() {
  local place
  for place in "$(command -v "$1")" "${@:2}"; do
    if [[ -n "$place" && -x "$place" ]]; then echo "$place" && return; fi
  done
}
toolkit="${CUDA_PATH:-/usr/local/cuda}"
sanitizer="$(tool compute-sanitizer "$toolkit"/{bin,compute-sanitizer,extras/compute-sanitizer}/compute-sanitizer)"
profiler="$(tool ncu "$toolkit"/bin/ncu /opt/nvidia/nsight-compute/*/ncu)"

commit="" dirty="" arch="" made_by="" built=""
while IFS='=' read -r key value; do
  case "$key" in
    commit) commit="$value" ;;
    dirty) dirty="$value" ;;
    arch) arch="$value" ;;
    toolkit) made_by="$value" ;;
    date) built="$value" ;;
  esac
done <"$from/build.txt"
driver="$(query driver_version)"
made="card=$card,driver=$driver,toolkit=$made_by,sm=$arch,commit=$commit,dirty=$dirty"
say "$card, driver $driver; built $built for sm_$arch by toolkit $made_by, commit $commit, changes of its own: $dirty"
[[ "$(query compute_cap | tr -d .)" == "${arch%[af]}" ]] || fail "built for sm_$arch, but the card is $(query compute_cap)"
mapfile -t programs <"$from/programs.txt"
for name in "${programs[@]}"; do [[ -x "$from/bin/$name" ]] || fail "$name was not carried"; done
# with PREFIX: the programs that are there and are called so.
with() {
  local name
  for name in "${programs[@]}"; do [[ "$name" != "$1"* || ! -x "$from/bin/$name" ]] || echo "$name"; done
}

# Libraries: those that were carried, and those that lie elsewhere on this machine.
export LD_LIBRARY_PATH="$from/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
missing() {
  local name
  for name in $(with ""); do ldd "$from/bin/$name" 2>&1; done |
    sed -nE 's/^[[:space:]]*([^ ]+) => not found.*/\1/p; s/.*(libstdc\+\+\.so\.6): version.*not found.*/\1/p' | sort -u
}
IFS=: read -ra folders <<<"${DEEPREC_LIBRARY_FOLDERS:-}"
folders+=("$from/lib/cxx" "$toolkit"/lib64 "$toolkit"/targets/*/lib /usr/local/cuda*/lib64
  /opt/*/{,.venv/}lib/python3*/site-packages/nvidia/*/lib /usr/l*/python3*/{site,dist}-packages/nvidia/*/lib)
for library in $(missing); do
  found=""
  for place in "${folders[@]}"; do
    if [[ -e "$place/$library" ]]; then found="$place" && break; fi
  done
  if [[ -z "$found" ]]; then
    found="$(timeout 30 find / -xdev -name "$library" -not -path '*/stubs/*' 2>/dev/null | head -n 1)"
    found="${found%/*}"
  fi
  if [[ -n "$found" ]]; then
    say "$library: $found"
    LD_LIBRARY_PATH+=":$found"
  fi
done
for library in $(missing); do fail "$library is nowhere: what needs it does not start"; done

# --- stages --------------------------------------------------------------------------------------

smoke() {
  local name
  at_once=4
  for name in $(with test_); do launch 60 "start $name" "$from/bin/$name" -ltc; done
  for name in $(with bench_gpu_); do launch 60 "start $name" "$from/bin/$name" --benchmark_list_tests; done
  finish
  at_once=1
  for name in $(with test_memory_cuda); do launch 60 "$name" "$from/bin/$name"; done
  finish
  timed 60 bench_gpu_ceilings gpu/ceilings/copy
  [[ -n "$sanitizer" ]] || say "ABSENT: no compute-sanitizer, neither in PATH nor in $toolkit"
  [[ -n "$profiler" ]] || say "ABSENT: no ncu, neither in PATH nor in $toolkit"
}

tests() {
  local unit name shared
  at_once=6
  while read -r unit name shared; do # what looks at the memory that is free comes by itself
    [[ "$name" == test_memory_cuda ]] || launch 150 "$unit" "$from/bin/$name" "-sf=*/$unit.cu"
  done <"$from/units.txt"
  for name in $(with example_); do launch 150 "$name" "$from/bin/$name"; done
  finish
  while read -r unit name shared; do
    [[ "$name" != test_memory_cuda ]] || launch 150 "$unit" "$from/bin/$name" "-sf=*/$unit.cu"
  done <"$from/units.txt"
  finish
}

# Counters of a report: the median of repetitions, or the only one.
counters() {
  awk -F'": ' '
    function flush() {
      if (of != "" && (aggregate == "median" || (aggregate == "" && repetitions == 1))) print "      " line
      of = line = aggregate = ""
    }
    /^ *"benchmarks": / { inside = 1 }
    !inside { next }
    /^    }/ { flush() }
    { key = $1; sub(/^ *"/, "", key); value = $2; sub(/,$/, "", value) }
    key == "name" { of = value }
    key == "aggregate_name" { gsub(/"/, "", value); aggregate = value }
    key == "repetitions" { repetitions = value }
    key !~ /^(family_index|per_family_instance_index|repetitions|repetition_index|threads|iterations|real_time|cpu_time)$/ &&
      value ~ /^-?[0-9.]+(e[-+][0-9]+)?$/ { line = line sprintf("%s=%.4g ", key, value) }' "$1" | fold -s -w 150
}
# timed SECONDS PROGRAM BENCHMARK: by itself, with a report and the clock of the SMs while it runs.
timed() {
  local limit="$1" program="$2" name="$3" plain="${3%%/iterations:*}" file clocks sampler
  [[ -x "$from/bin/$program" ]] || return
  file="$work/json/$(tr / _ <<<"${plain#gpu/}").json"
  clocks="$work/clocks"
  nvidia-smi --query-gpu=clocks.sm,clocks.mem,temperature.gpu,power.draw --format=csv,noheader,nounits -lms 200 \
    >"$clocks" 2>/dev/null 3>&- 4>&- &
  sampler=$!
  at_once=2 # with the sampler
  launch "$limit" "$plain" "$from/bin/$program" "--benchmark_filter=^$name(/iterations:|\$)" \
    "--benchmark_out=$file" --benchmark_out_format=json "--benchmark_context=$made,run_date=$(date -u +%Y-%m-%dT%H:%M:%SZ)"
  if finish "$file"; then counters "$file"; fi
  [[ "$(tail -n 1 "$file" 2>/dev/null)" == "}" ]] || rm -f "$file"
  kill "$sampler" 2>/dev/null
  wait "$sampler" 2>/dev/null
  { echo "$plain" && cat "$clocks"; } >>"$work/clocks.txt"
  cut -d, -f1 "$clocks" | grep -E '^[0-9]+$' | sort -n |
    awk '{ x[NR] = $1 } END { if (NR) printf "      SM clock %d MHz (%d to %d)\n", x[int((NR + 1) / 2)], x[1], x[NR] }'
  rm -f "$clocks"
}
# benches LIMIT FAMILY PATTERN: those that are like the pattern, or with a ! before it those that are not.
benches() {
  local limit="$1" program name names pattern="${3#!}" found=0
  for program in $(with "bench_gpu_$2"); do
    [[ -z "$2" || "$program" == "bench_gpu_$2" ]] || continue
    names="$(timeout --signal=KILL 30 "$from/bin/$program" --benchmark_list_tests </dev/null 2>/dev/null)" ||
      fail "$program does not list its benchmarks"
    if [[ "$3" == !* ]]; then names="$(grep -v "$pattern" <<<"$names")"; else names="$(grep "$pattern" <<<"$names")"; fi
    # Names of one benchmark differ behind its own part only.
    for name in $(sed 's,/iterations:.*,,' <<<"$names" | sort -u); do
      found=1
      timed "$limit" "$program" "$name"
    done
  done
  ((found)) || fail "no benchmarks ${2:+of the family $2}"
}

# profile REPORT PROGRAM BENCHMARK KERNELS COUNT
profile() {
  [[ -x "$from/bin/$2" ]] || return
  local log limit
  log="$(log_of "ncu $1")"
  limit="$(limit_of 120)"
  rm -f "$out/$1.ncu-rep"
  ((limit > 1)) || { fail "ncu $1: no time left" && return; }
  DEEPREC_BENCH_ONCE=1 timeout --signal=KILL "$limit" "$profiler" --clock-control none --set full --kernel-name "regex:$4" \
    --launch-skip 4 --launch-count "$5" --kill yes --force-overwrite --export "$out/$1.ncu-rep" \
    "$from/bin/$2" "--benchmark_filter=^$3(/iterations:|\$)" </dev/null >"$log" 2>&1
  # It ends the program itself, so its exit code says little.
  if [[ -s "$out/$1.ncu-rep" ]]; then
    say "ok: ncu $1"
    timeout --signal=KILL 60 "$profiler" --import "$out/$1.ncu-rep" --page details >"$work/$1.ncu.txt" 2>&1 </dev/null
  else
    fail "ncu $1: no report"
    tail -n 12 "$log" | cut -c -300 | sed 's/^/        /'
  fi
}
profiles() {
  [[ -n "$profiler" ]] || { fail "ABSENT: no ncu, neither in PATH nor in $toolkit: nothing is profiled" && return; }
  profile lookup bench_gpu_lookup gpu/lookup/large 'pool_(plain_|short_)?bags|sum_chunks' 4
  profile table_group bench_gpu_lookup gpu/lookup/tbe_default pool_groups 2
  profile update bench_gpu_update gpu/update/adam 'expand_bags|step_(crossing|inner)_runs|sum_run_chunks|Onesweep' 7
  profile gather bench_gpu_ceilings gpu/ceilings/gather/512 read_rows 2
}

# sanitized UNIT PROGRAM SHARED ARGUMENT...
sanitized() {
  local check options
  for check in memcheck synccheck initcheck racecheck; do
    [[ "$check" != racecheck || "$3" != no ]] || continue
    options=(--tool "$check" --error-exitcode 9)
    # Tests let allocations fail on purpose, and look at the status; memcheck would count each as an error.
    [[ "$check" != memcheck ]] || options+=(--report-api-errors no)
    launch 240 "$check of $1" "$sanitizer" "${options[@]}" "$from/bin/$2" "${@:4}"
  done
}
sanitizers() {
  local wanted="$1" unit name shared found=0
  [[ -n "$sanitizer" ]] || { fail "ABSENT: no compute-sanitizer, neither in PATH nor in $toolkit: nothing is sanitized" && return; }
  at_once=5
  while read -r unit name shared; do
    [[ -z "$wanted" || "$unit" == "$wanted" ]] || continue
    found=1
    sanitized "$unit" "$name" "$shared" "-sf=*/$unit.cu"
  done <"$from/units.txt"
  for name in $(with example_); do
    [[ -z "$wanted" || "$name" == "$wanted" ]] || continue
    found=1
    case "$name" in
      example_linear_regression_streams) sanitized "$name" "$name" yes document ;;
      *) sanitized "$name" "$name" no ;;
    esac
  done
  ((found)) || fail "no test unit $wanted"
  finish
}

for stage in "${stages[@]}"; do
  say "--- $stage"
  case "$stage" in
    smoke) smoke ;;
    test) tests ;;
    bench) benches 150 "" '!^gpu/tune/' ;;
    bench:*) benches 150 "${stage#*:}" '!^gpu/tune/' ;;
    tune) benches 200 "" '^gpu/tune/' ;;
    ncu) profiles ;;
    sanitize) sanitizers "" ;;
    sanitize:*) sanitizers "${stage#*:}" ;;
  esac
  archive
done

# --- the end -------------------------------------------------------------------------------------

recorded=("$work"/json/*.json)
if [[ " ${stages[*]}" == *" bench"* && -e "${recorded[0]}" ]]; then
  if [[ ! -x "$from/bin/claims" ]]; then
    fail "no tool for the claims was carried"
  else
    at_once=1
    launch 60 claims "$from/bin/claims" --claims "$from/claims.json" --select gpu --json "$work/claims_gpu.json" --from "${recorded[@]}"
    finish
  fi
fi
code=0
judged || code=1
archive
cat "$(log_of claims)" 2>/dev/null
exit "$code"

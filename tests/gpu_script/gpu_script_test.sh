#!/usr/bin/env bash
# gpu_script_test.sh GPU.SH   scripts/gpu.sh with a compiler, a card, programs and tools that are a few lines of shell each.

set -uo pipefail
scripts="$(dirname "$(realpath "$1")")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
failed=0

# A machine with nothing but these.
bin="$work/bin"
mkdir -p "$bin" "$work"/{toolkit/bin,behave,libraries,elsewhere} "$work/ran"
for tool in bash env tee timeout date nproc sed grep head cut tr cat basename dirname realpath mkdir rm mktemp touch sleep tail \
  find sort wc chmod cp mv awk stat du tar gzip fold mapfile ls kill; do
  path="$(type -P "$tool")" && ln -s "$path" "$bin/$tool"
done

# What a program does: behave/NAME says hang, fail, wrong, crash or empty. ran/ gets when each ran.
cat >"$work/program" <<'END'
#!/usr/bin/env bash
name="${0##*/}"
key="$name"
for a; do [[ "$a" != -sf=* ]] || key="${a##*/}"; done
key="${key%.cu}"
behave="$(cat "$STUB/behave/$key" 2>/dev/null)"
[[ "$LD_LIBRARY_PATH" == *card/lib* ]] || { echo "the libraries that were carried are not looked for"; exit 5; }
for a; do
  case "$a" in
    --benchmark_list_tests)
      [[ "$name" != bench_gpu_tune ]] || { echo gpu/tune/one/iterations:1/repeats:1; exit; }
      echo "gpu/${name#bench_gpu_}/one/iterations:1/repeats:3"
      [[ "$name" != bench_gpu_lookup ]] || printf 'gpu/lookup/one/more/iterations:1/repeats:3\n'
      [[ "$name" != bench_gpu_update ]] || printf 'gpu/tune/update/iterations:1/repeats:1\n'
      exit
      ;;
    -ltc) echo "[doctest] listing" && exit ;;
  esac
done
date +%s.%N >"$STUB/ran/$key.$$.begin"
case "$behave" in
  hang) sleep 100 ;;
  fail) echo "it is row 7" && exit 3 ;;
  crash) kill -SEGV $$ ;;
  empty) echo "[doctest] test cases:  0 |  0 passed" && exit 0 ;;
esac
sleep 0.1
for a; do
  case "$a" in
    --benchmark_out=*)
      printf '{\n  "context": {},\n  "benchmarks": [\n    {\n      "name": "x",\n      "run_type": "iteration",\n' >"${a#*=}"
      [[ "$behave" != wrong ]] || printf '      "error_occurred": true,\n      "error_message": "wrong answer: row 3",\n' >>"${a#*=}"
      printf '      "repetitions": 3,\n      "real_time": 5.0e+00,\n      "share": 5.0000000e-01\n    },\n    {\n' >>"${a#*=}"
      for aggregate in median:7.5 stddev:0.1; do
        printf '      "name": "x_%s",\n      "run_type": "aggregate",\n      "repetitions": 3,\n' "${aggregate%:*}" >>"${a#*=}"
        printf '      "aggregate_name": "%s",\n      "cpu_time": 5.0e+00,\n' "${aggregate%:*}" >>"${a#*=}"
        printf '      "GB/s": 4.0e+03,\n      "share": %se-01\n    }' "${aggregate#*:}" >>"${a#*=}"
        if [[ "$aggregate" == median* ]]; then printf ',\n    {\n' >>"${a#*=}"; fi
      done
      printf '\n  ]\n}\n' >>"${a#*=}"
      ;;
    --benchmark_context=*) echo "$name was run with ${a#*=}" ;;
  esac
done
[[ "$name" != claims ]] || { echo "holds  gpu.one" && [[ "$behave" != claims_fail ]] || exit 1; }
echo "$name says hello $*${DEEPREC_BENCH_ONCE:+ once}"
date +%s.%N >"$STUB/ran/$key.$$.end"
END
chmod +x "$work/program"
programs=(test_embedding_cuda test_memory_cuda example_thrust_table example_linear_regression_streams test_dense_cuda bench_gpu_ceilings
  bench_gpu_lookup bench_gpu_update bench_gpu_tune bench_gpu_gemm bench_gpu_linear_regression claims)
# Configures, and makes programs.
cat >"$bin/cmake" <<END
#!/usr/bin/env bash
build="$work/repo/build/gpu"
if [[ "\$1" == -S ]]; then
  echo "\$*" >"$work/configured"
  mkdir -p "\$build/programs"
  printf "\$build/programs/%s\n" ${programs[*]} >"\$build/gpu_programs.txt"
  exit
fi
[[ ! -e "$work/behave/compile_\${!#}" ]] || { echo "unit.cu(7): error: no"; exit 1; }
to="\$build/programs/\${!#}"
[[ -x "\$to" ]] || cp "$work/program" "\$to"
[[ ! -e "$work/behave/large" ]] || { rm "\$to"; cp "$work/program" "\$to"; head -c 8000000 /dev/zero >>"\$to"; }
END
cat >"$bin/strip" <<'END'
#!/usr/bin/env bash
cp "$4" "$3"
END
cat >"$bin/ldd" <<END
#!/usr/bin/env bash
printf '\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => $work/libraries/libc.so.6 (0x1)\n'
printf '\tlibbenchmark.so.1 => $work/libraries/libbenchmark.so.1 (0x1)\n\tlibstdc++.so.6 => $work/libraries/libstdc++.so.6 (0x1)\n'
IFS=: read -ra folders <<<"\$LD_LIBRARY_PATH"
for f in "\${folders[@]}"; do [[ ! -e "\$f/libgreat.so.7" ]] || exit 0; done
[[ "\$1" != *gemm* ]] || printf '\tlibgreat.so.7 => not found\n'
END
cat >"$work/toolkit/bin/nvcc" <<'END'
#!/usr/bin/env bash
echo "Cuda compilation tools, release 99.1, V99.1"
END
touch "$work/libraries/"{libc.so.6,libbenchmark.so.1,libstdc++.so.6} "$work/elsewhere/libgreat.so.7"
cat >"$bin/nvidia-smi" <<'END'
#!/usr/bin/env bash
[[ ! -e "$STUB/behave/no_card" ]] || exit 9
case "$*" in
  *-lms*) while echo "1755, 3201, 40, 300"; do sleep 0.05; done ;;
  *=name*) echo "Card 1" ;;
  *compute_cap*) if [[ -e "$STUB/behave/old_card" ]]; then echo 8.0; else echo 9.0; fi ;;
  *) echo "580.1" ;;
esac
END
cat >"$work/compute-sanitizer" <<'END'
#!/usr/bin/env bash
echo "sanitizer $*"
while [[ "$1" == --* ]]; do shift 2; done
exec "$@"
END
cat >"$work/ncu" <<'END'
#!/usr/bin/env bash
[[ "$1" != --import ]] || { echo "details of $2"; exit; }
while (($#)); do
  if [[ "$1" == --export ]]; then out="$2"; fi
  shift
done
[[ -e "$STUB/behave/no_report" ]] || echo report >"$out"
exit 15
END
chmod +x "$work/toolkit/bin/nvcc" "$bin"/{cmake,strip,ldd,nvidia-smi} "$work"/{compute-sanitizer,ncu}

repo="$work/repo"
mkdir -p "$repo/scripts" "$repo/tests/embedding" "$repo/tests/memory" "$repo/benchmarks"
cp -R "$scripts/gpu.sh" "$scripts/gpu" "$scripts/common.sh" "$repo/scripts/"
touch "$repo"/tests/{embedding/device_test.cu,embedding/two_units_test.cu,memory/cuda_memory_test.cu}
echo '[]' >"$repo/benchmarks/claims.json"
card="$repo/build/card" out="$work/out"

# gpu CODE [ARGUMENT...]: runs the script, which has to end with CODE.
gpu() {
  local wanted="$1" code=0
  shift
  env -i STUB="$work" PATH="$bin" HOME="$work" TMPDIR="$work" NVCC="$work/toolkit/bin/nvcc" CUDA_PATH="$work/toolkit" OUT="$out" \
    DEEPREC_LIBRARY_FOLDERS="$work/nowhere:$work/elsewhere" "${settings[@]}" \
    timeout --signal=KILL 60 bash "$repo/scripts/gpu.sh" "$@" >"$work/said" 2>&1 || code=$?
  ((code == wanted)) || complain "ends with $code, not $wanted"
}
complain() {
  echo "FAILED: $scenario: $*"
  cat "$work/said"
  failed=1
}
says() {
  local line
  for line; do grep -qE -- "$line" "$work/said" || complain "does not say: $line"; done
}
never_says() { ! grep -qE -- "$1" "$work/said" || complain "says: $1"; }
# The most processes of these names that ran at one time.
at_once() {
  local file moments=()
  for file in "$work"/ran/$1.*; do moments+=("$(cat "$file") ${file##*.}"); done
  printf '%s\n' "${moments[@]}" | sort -n |
    awk '{ n += $2 == "begin" ? 1 : -1; if (n > most) most = n } END { print most + 0 }'
}
# What a file of the archive has.
archived() { tar -xzOf "$out/results.tar.gz" "./$1" 2>/dev/null; }
settings=(NOTHING=)

scenario="usage"
gpu 2
says 'scripts/gpu.sh build \[FOLDER\]'
gpu 2 build --arch
gpu 2 run
gpu 2 run dance
gpu 2 run --from "$work/nowhere" test
says 'scripts/gpu.sh build makes them'

scenario="everything is built, without a card"
touch "$work/behave/no_card"
gpu 0 build --arch 90
says 'NOT RECORDED: registers and occupancy: no cuobjdump here' 'test_embedding_cuda: [0-9]+ KiB' 'of 65536 KiB' 'DEEPREC_CUEMBED: the claims against cuEmbed will be ABSENT' 'done: green'
never_says 'GPU here'
grep -q -- '-DDEEPREC_CUDA_ARCHITECTURES=90 *$' "$work/configured" || complain "not configured for sm_90"
for file in bin/bench_gpu_gemm bin/claims lib/libbenchmark.so.1 lib/cxx/libstdc++.so.6 claims.json programs.txt kernels.txt; do
  [[ -e "$card/$file" ]] || complain "FOLDER lacks $file"
done
[[ ! -e "$card/lib/libc.so.6" ]] || complain "FOLDER has the C library"
[[ "$(cat "$card/units.txt")" == "device_test test_embedding_cuda unknown
two_units_test test_embedding_cuda unknown
cuda_memory_test test_memory_cuda unknown" ]] || complain "units: $(cat "$card/units.txt")"
grep -qx 'toolkit=99.1' "$card/build.txt" || complain "build.txt: $(cat "$card/build.txt")"
gpu 0 build
says 'test_embedding_cuda is up to date'
never_says 'KiB$.*test_embedding_cuda: '

scenario="a program does not compile, and is not carried from an earlier time"
touch "$work/behave/compile_bench_gpu_update"
gpu 1 build "$card"
says 'FAILED: bench_gpu_update is not built' 'unit.cu\(7\): error: no' 'bench_gpu_gemm is up to date' 'done: 1 FAILED'
[[ ! -e "$card/bin/bench_gpu_update" ]] || complain "an old program is carried"
rm "$work"/behave/compile_*

scenario="too much to carry, and no compiler"
touch "$work/behave/large"
gpu 1 build "$work/large"
says 'FAILED: more than can be carried'
rm "$work/behave/large"
rm -r "$repo/build/gpu/programs"
settings=(NVCC="$work/nowhere")
gpu 2 build "$card"
says 'no nvcc'
settings=(NOTHING=)
gpu 0 build "$card"

scenario="no card"
gpu 77 run test
says 'ABSENT: no GPU here'
[[ ! -e "$out/results.tar.gz" ]] || complain "results of nothing"
rm "$work/behave/no_card"

scenario="all is well"
cp "$work"/{compute-sanitizer,ncu} "$work/toolkit/bin/"
before="$(cd "$card" && find . -type f -printf '%p %s %T@\n' | sort)"
gpu 0 run smoke test bench tune ncu sanitize
says "libgreat.so.7: $work/elsewhere" 'ok: start test_embedding_cuda' 'ok: start bench_gpu_gemm' 'ok: gpu/ceilings/copy' \
  'ok: device_test ' 'ok: two_units_test ' 'ok: cuda_memory_test' 'ok: example_thrust_table' 'ok: gpu/lookup/one/more' '^ +GB/s=4000 share=0.75' \
  'SM clock 1755 MHz \(1755 to 1755\)' 'ok: gpu/tune/one' 'ok: gpu/tune/update' 'ok: ncu update' 'ok: memcheck of device_test' \
  'ok: racecheck of two_units_test' 'ok: initcheck of example_thrust_table' 'ok: synccheck of example_linear_regression_streams' \
  'ok: racecheck of example_linear_regression_streams' 'ok: claims' 'done: green'
never_says 'FAILED|share=0.5|share=0.01|racecheck of example_thrust_table'
[[ "$(tail -n 1 "$out/summary.txt")" == *"claims says hello"* ]] || complain "the claims are not last in summary.txt"
cmp -s "$work/said" "$out/summary.txt" || complain "summary.txt is not what was printed"
[[ "$(cd "$out" && echo *)" == "gather.ncu-rep lookup.ncu-rep results.tar.gz summary.txt table_group.ncu-rep update.ncu-rep" ]] ||
  complain "OUT has $(cd "$out" && echo *)"
archived logs/memcheck_of_device_test.txt | grep -q -- '--report-api-errors no' || complain "memcheck counts refused allocations"
! archived logs/racecheck_of_device_test.txt | grep -q -- '--report-api' || complain "racecheck gets an option of memcheck"
archived logs/claims.txt | grep -q 'json/lookup_one.json.*json/tune_one.json' || complain "claims are judged by other reports"
archived logs/gpu_lookup_one.txt | grep -q 'run with card=Card 1,driver=580.1,toolkit=99.1,sm=90,commit=unknown,dirty=unknown,run_date=' ||
  complain "the report does not say where it was made"
archived json/lookup_one_more.json | grep -q '"share"' || complain "no report in the archive"
archived clocks.txt | grep -q '^1755, 3201' || complain "no clocks in the archive"
archived update.ncu.txt | grep -q 'details of' || complain "no page of the profile in the archive"
archived build.txt | grep -q '^arch=90' || complain "no build.txt in the archive"
[[ "$before" == "$(cd "$card" && find . -type f -printf '%p %s %T@\n' | sort)" ]] || complain "run changed the builds"

scenario="tests run side by side, benchmarks by themselves"
rm -f "$work"/ran/*
gpu 0 run --once test sanitize:device_test bench:lookup
says 'ok: gpu/lookup/one ' 'ok: racecheck of device_test'
never_says 'gpu/update/one|of two_units_test'
archived logs/gpu_lookup_one.txt | grep -q ' once$' || complain "--once is not passed on"
rm -f "$work"/ran/*
gpu 0 run test
(($(at_once '*') > 1)) || complain "tests run one after the other"
rm -f "$work"/ran/*
gpu 0 run bench
(($(at_once 'bench_*') == 1)) || complain "benchmarks run side by side"
rm -f "$work"/ran/*
gpu 0 run sanitize
(($(at_once '*') > 2)) || complain "sanitizers run one after the other"

scenario="much is wrong, and the rest goes on"
rm "$work"/toolkit/bin/{compute-sanitizer,ncu} "$work/elsewhere/libgreat.so.7"
mv "$card/bin/example_thrust_table" "$work/"
echo hang >"$work/behave/device_test"
echo empty >"$work/behave/two_units_test"
echo fail >"$work/behave/cuda_memory_test"
echo wrong >"$work/behave/bench_gpu_lookup"
echo crash >"$work/behave/bench_gpu_update"
echo claims_fail >"$work/behave/claims"
gpu 1 run --each 4 smoke test bench ncu sanitize
says 'FAILED: libgreat.so.7 is nowhere' 'FAILED: example_thrust_table was not carried' 'ABSENT: no compute-sanitizer' 'ABSENT: no ncu' \
  'FAILED: device_test: cut off after [0-9]+ s' 'FAILED: two_units_test: it has no such tests' 'FAILED: cuda_memory_test: exit code 3' \
  '^ +it is row 7' 'ok: example_linear_regression_streams' 'FAILED: gpu/lookup/one: .*wrong answer: row 3' \
  'FAILED: gpu/update/one: exit code 139' 'ok: gpu/gemm/one' 'FAILED: ABSENT: no ncu' 'FAILED: ABSENT: no compute-sanitizer' \
  'FAILED: claims: exit code 1' 'done: 11 FAILED'
never_says 'ok: (gpu/lookup/one|two_units_test|claims)'
grep -q 'done: 11 FAILED' "$out/summary.txt" || complain "summary.txt lacks the failures"
archived logs/cuda_memory_test.txt | grep -q 'it is row 7' || complain "no log in the archive"
[[ -z "$(archived json/update_one.json)" ]] || complain "a report of what crashed"
rm "$work"/behave/*
mv "$work/example_thrust_table" "$card/bin/"
touch "$work/elsewhere/libgreat.so.7"

scenario="another card, no reports, no such names"
cp "$work"/{compute-sanitizer,ncu} "$work/toolkit/bin/"
touch "$work"/behave/{old_card,no_report}
gpu 1 run ncu bench:dance sanitize:dance
says 'FAILED: built for sm_90, but the card is 8.0' 'FAILED: ncu lookup: no report' 'FAILED: no benchmarks of the family dance' \
  'FAILED: no test unit dance'
rm "$work"/behave/*

scenario="too little time"
echo hang >"$work/behave/device_test"
gpu 1 run --seconds 3 test bench
says 'FAILED: device_test: cut off' 'FAILED: gpu/gemm/one: no time left' 'done: [0-9]+ FAILED'
[[ -s "$out/results.tar.gz" ]] || complain "no archive"
exit "$failed"

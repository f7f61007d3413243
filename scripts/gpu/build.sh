# Implements scripts/gpu.sh build; see there.

folder="" arch=90
while (($#)); do
  case "$1" in
    --arch) (($# > 1)) && [[ "$2" =~ ^[0-9]+[af]?$ ]] || usage && arch="$2" && shift ;;
    -*) usage ;;
    *) [[ -z "$folder" ]] || usage && folder="$1" ;;
  esac
  shift
done
folder="$(realpath -m "${folder:-$root/build/card}")"
most=$((64 << 20))

source "$root/scripts/common.sh"
set +e
say() { printf '== %4ds  %s\n' $((SECONDS - started)) "$*"; }
nvcc="${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}"
[[ -x "$nvcc" ]] || { say "no nvcc" && exit 2; }
install_packages
fetch_cuobjdump
PATH="$PATH:$(dirname "$nvcc")$(printf ':%s' "$root"/build/tools/cuobjdump/nvidia/*/bin)"

# --- building ------------------------------------------------------------------------------------

build="$root/build/gpu"
mkdir -p "$build" "$folder/bin" "$folder/lib/cxx" || exit 2
generator=()
if [[ ! -f "$build/CMakeCache.txt" ]] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
say "configuring in build/gpu, for sm_$arch"
CUDACXX="$nvcc" cmake -S "$root" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DDEEPREC_CUDA=ON \
  -DDEEPREC_GPU_PROGRAMS=ON -DDEEPREC_CUDA_ARCHITECTURES="$arch" ${DEEPREC_CUEMBED:+"-DDEEPREC_CUEMBED=$DEEPREC_CUEMBED"} \
  >"$build/configure.log" 2>&1 || { cat "$build/configure.log" && exit 2; }
mapfile -t programs <"$build/gpu_programs.txt"
for wanted in test_dense_cuda bench_gpu_gemm bench_gpu_linear_regression; do
  [[ " ${programs[*]} " == *"/$wanted "* ]] || fail "$wanted: the toolkit has no cuBLASLt"
done
[[ " ${programs[*]} " == *"/bench_gpu_cuembed "* ]] || say "no DEEPREC_CUEMBED: the claims against cuEmbed will be ABSENT"

# Libraries that a driver and a C library bring, and the largest one, which run looks for.
at_home='^(linux-vdso|ld-linux|libc|libm|libdl|librt|libpthread|libcuda|libcublasLt)[.-]'
names=()
for program in "${programs[@]}"; do
  name="$(basename "$program")"
  to="$folder/bin/$name"
  if ! cmake --build "$build" --parallel "$jobs" --target "$name" >"$build/$name.log" 2>&1; then
    fail "$name is not built"
    grep -m 8 -iE 'error|fatal' "$build/$name.log"
    continue
  fi
  names+=("$name")
  if [[ "$to" -nt "$program" ]]; then
    say "$name is up to date"
  else
    strip -s -o "$to.new" "$program" && mv "$to.new" "$to" || fail "$name is not stripped"
    say "$name: $(($(stat -c %s "$to") >> 10)) KiB"
  fi
  while read -r library _ path _; do
    [[ -n "$path" && -e "$path" && ! "$library" =~ $at_home ]] || continue
    case "$library" in
      libstdc++.* | libgcc_s.*) cp -uL "$path" "$folder/lib/cxx/$library" ;;
      *) cp -uL "$path" "$folder/lib/$library" ;;
    esac
  done < <(ldd "$program" 2>/dev/null)
done
for file in "$folder"/bin/*; do
  [[ " ${names[*]} " == *" $(basename "$file") "* ]] || rm -f "$file" # built by another commit
done

# --- what run reads ------------------------------------------------------------------------------

printf '%s\n' "${names[@]}" >"$folder/programs.txt"
cp "$root/benchmarks/claims.json" "$folder/"
# unit, program, whether its kernels share memory: yes, no, or unknown without cuobjdump.
for source in "$root"/tests/*/*_test.cu; do
  layer="$(basename "$(dirname "$source")")" unit="$(basename "$source" .cu)"
  object="$build/tests/CMakeFiles/test_${layer}_cuda.dir/$layer/$unit.cu.o"
  [[ -x "$folder/bin/test_${layer}_cuda" ]] || continue
  shared=unknown
  if usage="$(cuobjdump -res-usage "$object" 2>/dev/null)"; then
    shared="$(grep -q 'SHARED:[1-9]' <<<"$usage" && echo yes || echo no)"
  fi
  echo "$unit test_${layer}_cuda $shared"
done >"$folder/units.txt"
benchmarks=()
for name in "${names[@]}"; do [[ "$name" != bench_gpu_* ]] || benchmarks+=("$folder/bin/$name"); done
recorded="$folder/kernels.txt"
if [[ "$arch" != 90* ]]; then
  echo "NOT RECORDED: registers and occupancy, for sm_90 only" | tee "$recorded"
elif grep -qs '^registers' "$recorded" && [[ -z "$(find "${benchmarks[@]}" -newer "$recorded")" ]]; then
  say "kernels.txt is up to date"
elif ! "$root/scripts/gpu/kernels.sh" "${benchmarks[@]}" >"$recorded" 2>&1; then
  sed -i 's/^/NOT RECORDED: registers and occupancy: /' "$recorded"
  tail -n 1 "$recorded"
fi
{
  echo "commit=$(git rev-parse --verify --quiet HEAD 2>/dev/null || echo unknown)"
  echo "dirty=$(changes="$(git status --porcelain 2>/dev/null)" && { [[ -z "$changes" ]] && echo false || echo true; } || echo unknown)"
  echo "arch=$arch"
  echo "toolkit=$("$nvcc" --version | grep -oE 'release [0-9.]+' | cut -d' ' -f2)"
  echo "date=$(date -u +%Y-%m-%dT%H:%M:%SZ)"
} >"$folder/build.txt"

bytes="$(du -sb "$folder" | cut -f1)"
tree="$(git ls-files -z 2>/dev/null | du -cb --files0-from=- 2>/dev/null | tail -n 1 | cut -f1)"
say "$folder: $((bytes >> 10)) KiB; with the files of the checkout $(((bytes + ${tree:-0}) >> 10)) of $((most >> 10)) KiB"
((bytes + ${tree:-0} < most)) || fail "more than can be carried"
judged
exit $?

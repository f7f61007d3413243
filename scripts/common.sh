# Sourced by the other scripts: finds the repository, installs missing packages, configures and builds.

set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
jobs="$(nproc 2>/dev/null || echo 2)"
installed=no
# Where tests and benchmarks look for the sample data sets.
if [[ -z "${DEEPREC_DATA_DIR:-}" && -d ../shared/data ]]; then
  DEEPREC_DATA_DIR="$(realpath ../shared/data)"
fi
export DEEPREC_DATA_DIR="${DEEPREC_DATA_DIR:-}"

say() { printf '== %s\n' "$*"; }

# install_packages [PACKAGE...]: on Debian and Ubuntu, where we may: installs what is missing of the
# packages that every lane needs, and of these. Elsewhere CMake fetches the libraries, and the compiler,
# CMake and git have to be there.
install_packages() {
  local wanted=(cmake g++ ninja-build ccache libeigen3-dev libxsimd-dev libdnnl-dev
    libbenchmark-dev doctest-dev nlohmann-json3-dev libcli11-dev libtbb-dev libdlpack-dev relacy-dev
    zlib1g-dev libzstd-dev libfarmhash-dev libopenmpi-dev openmpi-bin iproute2 "$@")
  local missing=() package as_root=()
  command -v apt-get >/dev/null && command -v dpkg-query >/dev/null || return 0
  local present
  present="$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null || true)"
  for package in "${wanted[@]}"; do
    grep -qx "$package installed" <<<"$present" || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  if [[ "$(id -u)" != 0 ]]; then
    if sudo -n true 2>/dev/null; then
      as_root=(sudo -n)
    else
      say "not installed, and no rights to install: ${missing[*]} (CMake fetches what it can)"
      return 0
    fi
  fi
  say "installing ${missing[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq update >/dev/null || true
  if "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null </dev/null; then
    installed=yes
  else
    say "apt-get could not install them (CMake fetches what it can)"
  fi
}

# configure PRESET: only when there is something to do; the build itself notices changed CMake files.
configure() {
  local build="$root/build/$1" ready generator=()
  if [[ -f "$build/CMakeCache.txt" ]] &&
    ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$build/CMakeCache.txt"; then
    say "$1: the checkout has moved, building anew"
    rm -rf "$build"
  fi
  ready="$build/build.ninja"
  [[ -f "$ready" ]] || ready="$build/Makefile"
  if [[ "$installed" == no && -f "$ready" && "$ready" -nt CMakePresets.json ]]; then return; fi
  if [[ ! -f "$build/CMakeCache.txt" ]] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
  if [[ -z "${CUDACXX:-}" && -x /usr/local/cuda/bin/nvcc ]] && ! command -v nvcc >/dev/null; then
    export CUDACXX=/usr/local/cuda/bin/nvcc
  fi
  say "$1: configuring in build/$1"
  mkdir -p "$build"
  if ! cmake --preset "$1" "${generator[@]}" >"$build/configure.log" 2>&1; then
    cat "$build/configure.log"
    return 1
  fi
  grep -E '^-- deeprec:|Warning' "$build/configure.log" || true
}

# build PRESET [TARGET...]
build() {
  local preset="$1"
  shift
  say "$preset: building ${*:-everything}"
  cmake --build "build/$preset" --parallel "$jobs" ${1:+--target "$@"}
}

# fetch_cuobjdump: where nvcc is and cuobjdump or nvdisasm, which it calls, is not: both by pip into build/tools/cuobjdump, once; of
# nvcc's version if there is one, else the newest of its major version. Tests that want them do without where that fails.
fetch_cuobjdump() {
  local nvcc release to="$root/build/tools/cuobjdump" tool missing=() wanted
  nvcc="$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)"
  [[ -x "$nvcc" ]] || return 0
  for tool in cuobjdump nvdisasm; do
    command -v "$tool" >/dev/null || [[ -x "$(dirname "$nvcc")/$tool" ]] || compgen -G "$to/nvidia/*/bin/$tool" >/dev/null ||
      missing+=("$tool")
  done
  ((${#missing[@]})) || return 0
  python3 -m pip --version >/dev/null 2>&1 || return 0
  release="$("$nvcc" --version | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p')"
  for wanted in "$release" "${release%%.*}"; do
    rm -rf "$to"
    if timeout 120 python3 -m pip install --quiet --disable-pip-version-check --no-input --no-deps --no-cache-dir --target "$to" \
      "nvidia-cuda-cuobjdump==$wanted.*" "nvidia-cuda-nvdisasm==$wanted.*" >/dev/null 2>&1; then
      chmod +x "$to"/nvidia/*/bin/* 2>/dev/null || true
      say "fetched cuobjdump and nvdisasm $wanted into build/tools"
      return 0
    fi
  done
  rm -rf "$to"
  say "no ${missing[*]} here: the machine code of kernels is NOT looked at"
}

# fetch_pyarrow: Arrow's C++ library, as Python's package has it, by pip into build/tools, once. The tests of Parquet do without where
# that fails.
fetch_pyarrow() {
  local to="$root/build/tools/pyarrow"
  [[ ! -d "$to/pyarrow" ]] || return 0
  python3 -m pip --version >/dev/null 2>&1 || return 0
  say "fetching Arrow by pip into build/tools"
  if ! timeout 300 python3 -m pip install --quiet --disable-pip-version-check --no-input --no-deps --no-cache-dir --only-binary :all: \
    --target "$to" "pyarrow==26.*" >/dev/null 2>&1; then
    rm -rf "$to"
    say "could not fetch Arrow: the reader of Parquet is NOT tested"
  fi
}

clang_format_version=19.1.7
# clang_format: prints the program of that version; 1 where there is none.
clang_format() {
  local tool
  for tool in "$root/build/tools/clang-format/clang_format/data/bin/clang-format" clang-format-19 clang-format; do
    if command -v "$tool" >/dev/null && [[ "$("$tool" --version 2>/dev/null)" == *"version $clang_format_version"* ]]; then
      echo "$tool"
      return 0
    fi
  done
  return 1
}

# fetch_clang_format: by pip into build/tools, once, where it is not there. Says so where it can't.
fetch_clang_format() {
  local to="$root/build/tools/clang-format" why="there is no pip"
  clang_format >/dev/null && return 0
  if python3 -m pip --version >/dev/null 2>&1; then
    say "fetching clang-format $clang_format_version by pip into build/tools"
    rm -rf "$to"
    why="$(timeout 120 python3 -m pip install --quiet --disable-pip-version-check --no-input --no-deps --no-cache-dir \
      --retries 1 --timeout 10 --target "$to" "clang-format==$clang_format_version" 2>&1)" || rm -rf "$to"
    clang_format >/dev/null && return 0
    why="pip can't fetch it${why:+: ${why##*$'\n'}}"
  fi
  say "NO clang-format $clang_format_version HERE ($why): the format is NOT CHECKED"
}

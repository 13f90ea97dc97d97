#!/usr/bin/env bash
# Builds athanor: configures with CMake, builds with Ninja, through ccache where it is installed.
#
# usage: scripts/build.sh [flags]          the program is then build/athanor
#   --debug            no optimisation, assertions of the standard library   (default folder build-debug)
#   --asan             address and undefined-behaviour sanitizers            (default folder build-asan)
#   --tsan             thread sanitizer                                      (default folder build-tsan)
#   --tests            also the test programs (with --target tests: only these)
#   --fuzzers          only the libFuzzer targets, with clang                (default folder build-fuzz)
#   --build-dir DIR    where to build
#   --cuda-arch LIST   GPU architectures, comma separated: 80,86,89,90a,100,120, all of these and PTX for later ones,
#                      native, or off for no CUDA backend (default: native where a GPU is, else 80,90a,100; there is
#                      none without nvcc)
#   --libc DIR         links with the C library in DIR, the root folder of an older distribution (see docs/gpu.md)
#   --unity            a new folder compiles up to 24 sources as one: a shorter clean build, longer rebuilds
#   --jobs N           compilers at once (default: one per core)
#   --target NAME      one target of CMake instead of the program; may repeat
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

variant='' tests='' unity='' dir='' jobs='' architectures='' libc='' targets=()
set_variant() {
  [ -z "$variant" ] || { printf 'error: --%s and --%s exclude each other\n' "$variant" "$1" >&2; exit 2; }
  variant=$1
}
while [ $# -gt 0 ]; do
  case $1 in
    --debug | --asan | --tsan | --fuzzers) set_variant "${1#--}" ;;
    --tests) tests=1 ;;
    --unity) unity=ON ;;
    --build-dir) dir=$(path_of "$@"); shift ;;
    --jobs) jobs=$(value_of "$@"); shift ;;
    --target) target=$(value_of "$@"); targets+=("$target"); shift ;;
    --libc) libc=$(path_of "$@"); shift ;;
    --cuda-arch) architectures=$(value_of "$@"); shift ;;
    -h | --help) usage "$0"; exit 0 ;;
    *) bad_flag "$1" ;;
  esac
  shift
done
[[ -z $jobs || $jobs =~ ^[1-9][0-9]*$ ]] || { printf 'error: --jobs %s: expected a number\n' "$jobs" >&2; exit 2; }

type=Release sanitize='' fuzzers=OFF compiler=()
case $variant in
  debug) type=Debug ;;
  asan) sanitize=address,undefined ;;
  tsan) sanitize=thread ;;
  fuzzers) sanitize=address,undefined fuzzers=ON compiler=(-DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++) ;;
esac
short=${variant%ers}
dir=${dir:-build${short:+-$short}}

for tool in cmake ninja; do
  command -v "$tool" >/dev/null || fail "$tool is not installed: run scripts/setup.sh first"
done
cache=()
if command -v ccache >/dev/null; then
  cache=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 # another clone finds what this one compiled
fi
cuda=(-DATHANOR_CUDA=AUTO)
[ "$architectures" != all ] || architectures=80,86,89,90a,100,120 # CMake adds PTX of a last one without a letter
if [ -z "$architectures" ] && nvidia-smi -L >/dev/null 2>&1; then architectures=native; fi
case $architectures in
  '') ;;
  off) cuda=(-DATHANOR_CUDA=OFF) ;;
  *)
    [[ $architectures =~ ^(native|[0-9]+[af]?(,[0-9]+[af]?)*)$ ]] ||
      { printf 'error: --cuda-arch %s: expected a list such as 80,90a, or all, native, off\n' "$architectures" >&2; exit 2; }
    cuda=(-DATHANOR_CUDA=ON "-DATHANOR_CUDA_ARCHITECTURES=${architectures//,/;}")
    ;;
esac

# A folder that has tests keeps them: CMake deletes the objects of targets that go away.
tests_flag=OFF
if [ -n "$tests" ] || grep -qs '^ATHANOR_TESTS:BOOL=ON' "$dir/CMakeCache.txt"; then tests_flag=ON; fi
# A folder keeps its way of compiling, too.
[ ! -f "$dir/CMakeCache.txt" ] || unity=$(sed -n 's/^ATHANOR_UNITY:BOOL=//p' "$dir/CMakeCache.txt")
if [ "${#targets[@]}" = 0 ]; then
  targets=(athanor)
  [ -z "$tests" ] || targets+=(tests)
  [ "$fuzzers" = OFF ] || targets=(fuzzers)
fi

run_step "configuring $dir ($type${sanitize:+, $sanitize})" cmake -S "$root" -B "$dir" -G Ninja \
  -DCMAKE_BUILD_TYPE="$type" -DATHANOR_SANITIZE="$sanitize" -DATHANOR_FUZZERS="$fuzzers" \
  -DATHANOR_TESTS="$tests_flag" -DATHANOR_UNITY="${unity:-OFF}" -DATHANOR_LIBC="$libc" "${cuda[@]}" "${cache[@]}" "${compiler[@]}"
run_step "building ${targets[*]} with ${jobs:-$(cores)} jobs" ninja -C "$dir" -j "${jobs:-$(cores)}" "${targets[@]}"
if [ -x "$dir/athanor" ] && [[ " ${targets[*]} " == *' athanor '* ]]; then
  say "${green}$dir/athanor${reset}"
  lacking=$(sed -n 's/^ATHANOR_NO_CUDA:INTERNAL=//p' "$dir/CMakeCache.txt")
  # Not built on purpose: off, or with sanitizers.
  if [ -n "$lacking" ] && [ "$architectures" != off ] && [ -z "$sanitize" ]; then
    warn "the program was built without the CUDA backend: $lacking is missing"
  fi
fi

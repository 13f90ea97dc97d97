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
#   --no-cuda          nothing of CUDA even where it is installed            (default folder build-no-cuda)
#   --cuda-arch LIST   GPU architectures; refused as long as this version has no CUDA backend
#   --jobs N           compilers at once (default: one per core)
#   --target NAME      one target of CMake instead of the program; may repeat
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

variant='' tests='' dir='' jobs='' targets=()
set_variant() {
  [ -z "$variant" ] || { printf 'error: --%s and --%s exclude each other\n' "$variant" "$1" >&2; exit 2; }
  variant=$1
}
while [ $# -gt 0 ]; do
  case $1 in
    --debug | --asan | --tsan | --fuzzers | --no-cuda) set_variant "${1#--}" ;;
    --tests) tests=1 ;;
    --build-dir) dir=$(value_of "$@"); shift ;;
    --jobs) jobs=$(value_of "$@"); shift ;;
    --target) targets+=("$(value_of "$@")"); shift ;;
    --cuda-arch)
      printf 'error: --cuda-arch %s: this version of athanor has no CUDA backend; build without the flag for CPUs\n' \
        "$(value_of "$@")" >&2
      exit 2
      ;;
    -h | --help) usage "$0"; exit 0 ;;
    *) bad_flag "$1" ;;
  esac
  shift
done
[[ -z $jobs || $jobs =~ ^[1-9][0-9]*$ ]] || { printf 'error: --jobs %s: expected a number\n' "$jobs" >&2; exit 2; }

type=Release sanitize='' fuzzers=OFF cuda=AUTO compiler=()
case $variant in
  debug) type=Debug ;;
  asan) sanitize=address,undefined ;;
  tsan) sanitize=thread ;;
  no-cuda) cuda=OFF ;;
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
if nvidia-smi -L >/dev/null 2>&1; then
  say "a GPU is present, but this version of athanor has no CUDA backend yet: building for CPUs"
fi

# A folder that has tests keeps them: CMake deletes the objects of targets that go away.
tests_flag=OFF
if [ -n "$tests" ] || grep -qs '^ATHANOR_TESTS:BOOL=ON' "$dir/CMakeCache.txt"; then tests_flag=ON; fi
if [ "${#targets[@]}" = 0 ]; then
  targets=(program)
  [ -z "$tests" ] || targets+=(tests)
  [ "$fuzzers" = OFF ] || targets=(fuzzers)
fi

run_step "configuring $dir ($type${sanitize:+, $sanitize})" cmake -S "$root" -B "$dir" -G Ninja \
  -DCMAKE_BUILD_TYPE="$type" -DATHANOR_SANITIZE="$sanitize" -DATHANOR_FUZZERS="$fuzzers" \
  -DATHANOR_TESTS="$tests_flag" -DATHANOR_CUDA="$cuda" "${cache[@]}" "${compiler[@]}"
run_step "building ${targets[*]} with ${jobs:-$(cores)} jobs" ninja -C "$dir" -j "${jobs:-$(cores)}" "${targets[@]}"
if [ -x "$dir/athanor" ] && [[ " ${targets[*]} " == *' program '* ]]; then say "${green}$dir/athanor${reset}"; fi

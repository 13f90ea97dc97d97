#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests; the last line says how many passed, failed and were skipped.
#
# usage: scripts/test.sh [flags]
#   (nothing)        build, unit tests and the essential system tests; no CUDA where no GPU is
#   --ci             also CUDA kernels and the emulated GPU, lint, sanitizers, fuzzing, all system tests, ranks, quick start
#   --fast           format, layers, build and unit tests only
#   --all            as --ci, with long fuzzing, planted mistakes, full matrices and more random stops
#   --record         keeps the minutes of each group in scripts/bench/results/tests.json
#   --only A,B       only these groups (--list names them)
#   --jobs N         compilers and checks at once (default: one per core)
#   --build-dir DIR  folder of the plain build (default build); sanitizers and fuzzers build in DIR-asan and so on
#   --list           lists the groups
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

arguments=() setup=1
while [ $# -gt 0 ]; do
  case $1 in
    --fast | --ci | --all | --record) arguments+=("$1") ;;
    --list) arguments+=("$1") setup='' ;;
    --only | --jobs) value=$(value_of "$@"); arguments+=("$1" "$value"); shift ;;
    --build-dir) value=$(path_of "$@"); arguments+=("$1" "$value"); shift ;;
    -h | --help) usage "$0"; exit 0 ;;
    *) bad_flag "$1" ;;
  esac
  shift
done
if [ -n "$setup" ]; then # before anything is installed; without python3 the names are checked afterwards
  ! command -v python3 >/dev/null || python3 scripts/run_tests.py "${arguments[@]}" --check-names
  scripts/setup.sh --tests --quickstart
fi
exec python3 scripts/run_tests.py "${arguments[@]}"

#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests; the last line says how many passed, failed and were skipped.
#
# usage: scripts/test.sh [flags]
#   (nothing)        what CI runs: format, layers, build, unit tests, lint, sanitizers, fuzzing, system tests, quick start
#   --fast           format, layers, build and unit tests only
#   --all            CI's with long fuzzing, planted mistakes, full matrices, more random stops; writes bench/results/tests-all.json
#   --only A,B       only these groups (--list names them)
#   --jobs N         compilers and checks at once (default: one per core)
#   --build-dir DIR  folder of the plain build (default build); sanitizers and fuzzers build in DIR-asan and so on
#   --list           lists the groups
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

arguments=() setup=1
while [ $# -gt 0 ]; do
  case $1 in
    --fast | --all) arguments+=("$1") ;;
    --list) arguments+=("$1") setup='' ;;
    --only | --jobs | --build-dir) arguments+=("$1" "$(value_of "$@")"); shift ;;
    -h | --help) usage "$0"; exit 0 ;;
    *) bad_flag "$1" ;;
  esac
  shift
done
[ -z "$setup" ] || scripts/setup.sh --tests --quickstart
exec python3 scripts/run_tests.py "${arguments[@]}"

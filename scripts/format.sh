#!/usr/bin/env bash
# Formats C++ and CUDA files as .clang-format says, or checks that they are.
#
# usage: scripts/format.sh [--check] [FILE...]      (default: all of src and tests)
# Uses version 14 of clang-format, which scripts/setup.sh --tests installs: other versions lay code out differently.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

check='' files=()
for argument in "$@"; do
  case $argument in
    --check) check=1 ;;
    -h | --help) usage "$0"; exit 0 ;;
    -*) bad_flag "$argument" ;;
    *) files+=("$(from_caller "$argument")") ;;
  esac
done

find_formatter() {
  local candidate
  for candidate in "$root/.cache/python/bin/clang-format" clang-format-14 clang-format; do
    if "$candidate" --version 2>/dev/null | grep -q 'version 14\.'; then
      printf '%s' "$candidate"
      return
    fi
  done
}
formatter=$(find_formatter)
[ -n "$formatter" ] || fail "no clang-format of version 14: run scripts/setup.sh --tests"

if [ ${#files[@]} = 0 ]; then
  mapfile -t files < <(find src tests -name '*.cc' -o -name '*.cu' -o -name '*.h' -o -name '*.inl' | sort)
fi
if [ -n "$check" ]; then
  printf '%s\n' "${files[@]}" | xargs -P "$(cores)" -n 20 "$formatter" --dry-run -Werror
  say "${#files[@]} files are formatted"
else
  printf '%s\n' "${files[@]}" | xargs -P "$(cores)" -n 20 "$formatter" -i
fi

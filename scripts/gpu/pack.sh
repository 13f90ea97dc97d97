#!/usr/bin/env bash
# Packs what a machine with a GPU needs to run athanor and its tests: one folder and its .tar.xz, at most 40 MB. That
# machine needs a driver, the CUDA libraries (those of a PyTorch installation will do), python3 for the scripts, and
# nothing else.
#
# usage: scripts/gpu/pack.sh [flags]
#   --out DIR          the folder (default dist/athanor-gpu; DIR.tar.xz beside it)
#   --build-dir DIR    build folder (default build-gpu)
#   --cuda-arch LIST   GPU architectures of the program, as of scripts/build.sh (default 90a: H100 and H200)
#   --no-tests         only the program: no test programs, no references
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

out=dist/athanor-gpu dir=build-gpu architectures=90a tests=1
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$(path_of "$@"); shift ;;
    --build-dir) dir=$(path_of "$@"); shift ;;
    --cuda-arch) architectures=$(value_of "$@"); shift ;;
    --no-tests) tests='' ;;
    -h | --help) usage "$0"; exit 0 ;;
    *) bad_flag "$1" ;;
  esac
  shift
done
most_bytes=$((40 * 1000 * 1000))

targets=(--target athanor)
[ -z "$tests" ] || targets+=(--tests --target gpu_tests)
scripts/build.sh --build-dir "$dir" --cuda-arch "$architectures" "${targets[@]}"

say "${bold}packing $out${reset}"
rm -rf "$out"
mkdir -p "$out/scripts" "$out/data"
strip -o "$out/athanor" "$dir/athanor"
cp -r configs "$out/configs"
mkdir -p "$out/scripts/bench"
cp -r scripts/gpu "$out/scripts/gpu"
cp -r scripts/bench/gpu "$out/scripts/bench/gpu"
git rev-parse HEAD >"$out/COMMIT" 2>/dev/null || echo unknown >"$out/COMMIT"
if [ -n "$tests" ]; then
  for program in "$dir"/gpu/gpu_test_*; do strip -o "$out/$(basename "$program")" "$program"; done
  mkdir -p "$out/tests/cuda"
  cp -r tests/golden "$out/tests/golden"
  cp tests/cuda/*.txt "$out/tests/cuda/"
fi
# A little real text, as bytes: enough for some hundred steps.
text=$(mktemp)
trap 'rm -f "$text"' EXIT
python3 scripts/corpus.py "$text" >/dev/null 2>&1 || cat README.md src/README.md configs/*.md >"$text"
"$dir/athanor" tokenize --input "$text" --output-prefix "$out/data/text" >/dev/null

# The programs hold the same kernels: a window that is wider than a program stores them once.
find "$out" -name __pycache__ -prune -exec rm -rf {} +
python3 - "$out" <<'END'
import lzma, sys, tarfile
from pathlib import Path
out = Path(sys.argv[1])
window = [{"id": lzma.FILTER_LZMA2, "preset": 4, "dict_size": 128 << 20}]
with lzma.open(f"{out}.tar.xz", "wb", filters=window) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
    tar.add(out, out.name)
END
bytes=$(stat -c %s "$out.tar.xz")
say "  $out.tar.xz: $((bytes / 1000000)) MB"
[ "$bytes" -le "$most_bytes" ] || fail "$out.tar.xz has $bytes bytes, more than $most_bytes: pack fewer architectures"
name=$(basename "$out")
say "on the machine with a GPU: python3 -m tarfile -e $name.tar.xz . && $name/scripts/gpu/verify.sh"

#!/usr/bin/env bash
# Times athanor beside PyTorch, and beside llm.c and LLMQ where a folder with their programs is given, in one call on this
# machine's GPU. Runs from the folder that scripts/gpu/pack.sh makes; see scripts/bench/gpu/compare.py --help and README.md there.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
exec "${PYTHON:-python3}" "$root/scripts/bench/gpu/compare.py" "$@"

#!/usr/bin/env bash
# Compares the micro-batch that athanor chooses on this machine's GPU with sizes by hand. Runs from the folder that scripts/gpu/pack.sh makes; see scripts/bench/gpu/choices.py --help and README.md there.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
exec "${PYTHON:-python3}" "$root/scripts/bench/gpu/choices.py" "$@"

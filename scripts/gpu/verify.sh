#!/usr/bin/env bash
# Proves on this machine's GPU that athanor is right: every op, whole training steps against PyTorch, the laws, attention,
# memory. Runs from the folder that scripts/gpu/pack.sh makes; see verify.py --help. Needs python3; PyTorch for some parts.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec "${PYTHON:-python3}" "$here/verify.py" "$@"

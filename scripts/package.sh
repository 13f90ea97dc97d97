#!/usr/bin/env bash
# Packs what a machine without the compilers needs to run athanor, and needs no root there: program, configs, and
# the files that start many ranks, in one folder and its .tar.gz. The folder may lie anywhere; nothing is installed.
#
# usage: scripts/package.sh [flags]
#   --out DIR          where to write (default dist)
#   --build-dir DIR    build folder (default build)
#   --cuda-arch LIST   as of scripts/build.sh
#   --libc DIR         as of scripts/build.sh: the package then runs on distributions as old as that in DIR
#   --no-build         packs what the build folder has
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

out=dist dir=build build=1 flags=()
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$(path_of "$@"); shift ;;
    --build-dir) dir=$(path_of "$@"); shift ;;
    --libc) libc=$(path_of "$@"); flags+=(--libc "$libc"); shift ;;
    --cuda-arch) architectures=$(value_of "$@"); flags+=(--cuda-arch "$architectures"); shift ;;
    --no-build) build='' ;;
    -h | --help) usage "$0"; exit 0 ;;
    *) bad_flag "$1" ;;
  esac
  shift
done
[ -z "$build" ] || scripts/build.sh --build-dir "$dir" "${flags[@]}"
[ -x "$dir/athanor" ] || fail "$dir has no program: run scripts/build.sh, or leave --no-build out"

version=$("$dir/athanor" --version | sed -n '1s/^[^0-9]*\([0-9][0-9.]*\).*/\1/p')
name=athanor-$version-linux-$(uname -m)
folder=$out/$name
rm -rf "$folder"
mkdir -p "$folder/launch"
strip -o "$folder/athanor" "$dir/athanor"
cp -r configs "$folder/configs"
cp scripts/launch/* "$folder/launch/"

# The newest version of glibc of which the program uses a function.
glibc=$(objdump -T "$folder/athanor" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -n 1)
[ -n "$glibc" ] || fail "objdump shows no required glibc version for $folder/athanor"
others=$(objdump -p "$folder/athanor" | sed -n 's/^ *NEEDED *//p' | grep -vE '^(libc|libm|libdl|libpthread|librt|ld-linux.*)\.so' || true)
[ -z "$others" ] || fail "the program needs libraries that another machine may lack: ${others//$'\n'/, }"
cat >"$folder/README" <<END
athanor $version for Linux on $(uname -m), glibc $glibc or later. Nothing needs to be installed:

    PATH=\$PWD:\$PATH           # of this folder, wherever it is
    athanor --help
    athanor train CONFIG.json  # configs/ has some, with configs/README.md
    launch/                    # how to start many ranks, with Slurm or mpirun

On a GPU it opens NVIDIA's libraries when it starts: \`athanor devices\` says which it finds, and what brings the others.
END
# From another folder, without this one's environment.
said=$(cd / && env -i "$(cd "$root" && realpath "$folder")/athanor" --version | head -n 1) ||
  fail "$folder/athanor does not start without this environment"
tar -C "$out" -czf "$folder.tar.gz" "$name"
say "$said"
say "${green}$folder.tar.gz${reset}: $(($(stat -c %s "$folder.tar.gz") / 1000000)) MB, needs glibc $glibc or later"

# Sourced by the scripts of this folder: where things are, messages, steps that show the end of their log when they fail.
# Needs bash and the tools of a bare system. Sets root, and makes it the working directory.
set -euo pipefail
caller=$PWD
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
logs=${ATHANOR_LOGS:-$root/.cache/logs}

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
  bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' green=$'\e[32m' reset=$'\e[0m'
else
  bold='' dim='' red='' green='' reset=''
fi

say() { printf '%s\n' "$*"; }
warn() { printf '%s%s%s\n' "$red" "warning: $*" "$reset" >&2; }
fail() {
  printf '%s%s%s\n' "$red" "error: $*" "$reset" >&2
  exit 1
}

# usage TEXT_FILE: the comment at the head of a script, as its help.
usage() { sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$1"; }

# value_of FLAG VALUE...: the value, or an error naming the flag.
value_of() {
  [ $# -ge 2 ] && [ -n "$2" ] || { printf 'error: %s needs a value\n' "$1" >&2; exit 2; }
  printf '%s' "$2"
}

# A relative path of the command line begins where the script was called, not at root.
from_caller() {
  if [ "$caller" = "$root" ] || [[ $1 = /* ]]; then printf '%s' "$1"; else printf '%s' "$caller/$1"; fi
}
path_of() { # as value_of, for a path
  local path
  path=$(value_of "$@") || exit 2
  from_caller "$path"
}

bad_flag() {
  printf 'error: unknown argument %s; --help lists all arguments\n' "$1" >&2
  exit 2
}

cores() { nproc 2>/dev/null || echo 2; }

seconds() { # seconds T: "7 s" or "3 min 05 s"
  if [ "$1" -lt 60 ]; then printf '%d s' "$1"; else printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); fi
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "packages are missing and need root: run as root, or install sudo"
  fi
}

# progress LINE SECONDS: of a line of ninja, "[54/134] ...", how far it is and what is left, by the time so far; others as
# they are.
progress() {
  local done all
  if [[ $1 =~ ^\[([0-9]+)/([0-9]+)\]\ (.*) ]]; then
    done=${BASH_REMATCH[1]} all=${BASH_REMATCH[2]}
    printf '%d of %d, %d %%, %s' "$done" "$all" $((100 * done / all)) "$(seconds "$2")"
    [ "$done" -lt 5 ] || [ "$done" -ge "$all" ] || printf ', about %s left' "$(seconds $(($2 * (all - done) / done)))"
    printf ': %s' "${BASH_REMATCH[3]##*/}"
  else
    printf '%s' "$1"
  fi
}

# Shows the last line of a growing log on a terminal until the process ends.
follow() { # PID LOG
  local width line start=$SECONDS
  width=$(tput cols 2>/dev/null || echo 80)
  while kill -0 "$1" 2>/dev/null; do
    line=$(tail -n 1 "$2" 2>/dev/null | tr -d '\r')
    line=$(progress "$line" $((SECONDS - start)) | cut -c "1-$((width - 5))")
    printf '\r\e[K  %s%s%s' "$dim" "$line" "$reset"
    sleep 0.3
  done
  printf '\r\e[K'
}

# run_step TITLE COMMAND...: says what it does, keeps the output in a log, shows the log's tail if the command fails.
run_step() {
  local title=$1 log status=0 start=$SECONDS pid
  shift
  mkdir -p "$logs"
  log=$logs/$(printf '%s' "$title" | tr -c 'A-Za-z0-9' '-' | cut -c 1-60).log
  say "${bold}$title${reset}"
  if [ -t 1 ]; then
    "$@" >"$log" 2>&1 </dev/null &
    pid=$!
    trap 'kill "$pid" 2>/dev/null; exit 130' INT TERM
    follow "$pid" "$log"
    wait "$pid" || status=$?
    trap - INT TERM
  else
    "$@" >"$log" 2>&1 </dev/null || status=$?
  fi
  if [ "$status" != 0 ]; then
    say "${red}failed (exit status $status) after $(seconds $((SECONDS - start))); the end of $log:${reset}"
    tail -n 40 "$log" | sed 's/^/    /'
    return "$status"
  fi
  say "  ${dim}$(seconds $((SECONDS - start)))${reset}"
}

# Names of the given Debian packages that are not installed.
missing_packages() {
  local state
  state=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
  local name
  for name in "$@"; do
    grep -qx "$name installed" <<<"$state" || printf '%s\n' "$name"
  done
}

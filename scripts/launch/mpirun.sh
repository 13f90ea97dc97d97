#!/bin/bash
# Starts ranks by mpirun; with HOSTS, on several machines that ssh reaches without a password.
#   mpirun.sh RANKS CONFIG.json [flags of `athanor train`]
#   HOSTS=node1:8,node2:8 mpirun.sh 16 CONFIG.json
# mpirun only starts the ranks, which talk over TCP. To stop a run send SIGUSR1 to mpirun, which passes it on: after SIGTERM it gives the ranks about a second, which need not suffice for a checkpoint.
set -u
athanor=${ATHANOR:-athanor}
ranks=${1:?number of ranks}
shift

options=(-n "$ranks")
if mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
  # Ranks may take any core of their machine: the program shares cores out itself, and mpirun would pin each rank to one.
  options+=(--bind-to none)
  # More ranks than cores are no mistake; as root, only where a container has no other user.
  options+=(--oversubscribe)
  [ "$(id -u)" != 0 ] || options+=(--allow-run-as-root)
fi

if [ -n "${HOSTS:-}" ]; then
  first=${HOSTS%%,*}
  # Where ranks meet, and the secret by which they know each other. It travels through mpirun's own channel (ssh) and is seen
  # by nobody else; -x passes a variable on.
  export MASTER_ADDR=${MASTER_ADDR:-${first%%:*}} MASTER_PORT=${MASTER_PORT:-29500}
  ATHANOR_SECRET=${ATHANOR_SECRET:-$(head -c 32 /dev/urandom | base64)}
  export ATHANOR_SECRET
  options+=(--host "$HOSTS" -x ATHANOR_SECRET -x MASTER_ADDR -x MASTER_PORT)
fi
exec mpirun "${options[@]}" "$athanor" train "$@"

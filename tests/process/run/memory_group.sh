#!/bin/bash
# Runs a command in a memory cgroup of its own, v1 or v2, of MEMORY_GROUP_BYTES (default 1 GiB), and ends with its status.
#
#   memory_group.sh COMMAND...
#
# Status 99, with the reason on stderr: this machine has no memory controller to give, or we may make no group. Status 98: it has one
# and we are root, but no group could be made.

lacking() {
  echo "no memory cgroup: $*" >&2
  exit 99
}

# enter TOP LIMIT-FILE: a group below TOP whose memory is limited, with this shell in it.
enter() {
  local group=$1/trainyard-test-$$
  mkdir "$group" 2>/dev/null || return 1
  # In v2 a group has limits where the one above hands the controller on.
  [ -e "$group/$2" ] || echo +memory >"$1/cgroup.subtree_control"
  # Swapping would put the end off.
  if [ -e "$group/memory.swap.max" ]; then echo 0 >"$group/memory.swap.max"; fi
  if echo "${MEMORY_GROUP_BYTES:-1G}" >"$group/$2" && echo $$ >"$group/cgroup.procs"; then
    entered=$group
    return 0
  fi
  rmdir "$group"
  return 1
} 2>/dev/null

# Of every hierarchy that has the controller: our own group and those above it, up to the mount.
hierarchy=
while read -r _ mount type options _; do
  case "$type:,$options," in
    cgroup2:*) grep -qw memory "$mount/cgroup.controllers" && file=memory.max key=0:: hierarchy=$mount ;;
    cgroup:*,memory,*) file=memory.limit_in_bytes key='[0-9]*:[^:]*memory[^:]*:' hierarchy=$mount ;;
  esac
  [ -z "$hierarchy" ] || break
done </proc/mounts
[ -n "$hierarchy" ] || lacking "no mounted hierarchy has the memory controller (/proc/mounts, cgroup.controllers)"
awk -v mount="$hierarchy" '$2 == mount { exit $4 !~ /(^|,)rw(,|$)/ }' /proc/mounts || lacking "$hierarchy is mounted read-only"

entered=
at=$(sed -n "s|^$key||p" /proc/self/cgroup)
home=$hierarchy${at%/}
[ -d "$home" ] || home=$hierarchy # in a container the path may be the host's
while [ -z "$entered" ]; do
  at=${at%/}
  [ ! -d "$hierarchy$at" ] || enter "$hierarchy$at" "$file" || true
  [ -n "$at" ] || break
  at=${at%/*}
done
if [ -z "$entered" ]; then
  [ "$(id -u)" = 0 ] || lacking "none can be made by user $(id -u)"
  echo "no memory cgroup could be made below $hierarchy by root, though it has the controller" >&2
  exit 98
fi

"$@"
status=$?
echo $$ >"$home/cgroup.procs"
rmdir "$entered"
exit $status

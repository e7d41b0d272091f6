# shellcheck shell=bash
# Sourced by the scripts of this folder: what is pinned, where it lies, and how processes are held.
#
# A control plane lives in one folder, DIR:
#   admin.kubeconfig   what kubectl and tests use            addresses   the ports it has taken
#   audit.log          every request, one JSON a line        pki/        certificates and keys
#   log/NAME.log       one log a process                     pid/NAME    "pid start-time" of a process

kubernetes_version=1.34.2
etcd_version=3.6.8
kwok_version=0.7.0
helm_version=3.19.0
monitoring_version=0.85.0 # of prometheus-operator
jobset_version=0.10.1
prometheus_version=3.13.5 # its module is v0.313.5
go_version=1.26.6  # fetched where the machine has none, or one older than the sources ask for
go_oldest=1.24

cache=${TRAINYARD_CACHE:-${HOME:?}/.cache/trainyard}
kubernetes_bin="$cache/kubernetes-$kubernetes_version/bin"
etcd_bin="$cache/etcd-$etcd_version/bin"
kwok_bin="$cache/kwok-$kwok_version/bin"
helm_bin="$cache/helm-$helm_version/bin"
monitoring_folder="$cache/prometheus-operator-$monitoring_version"
jobset_folder="$cache/jobset-$jobset_version"
prometheus_bin="$cache/prometheus-$prometheus_version/bin"
kubernetes_programs=(kube-apiserver kube-controller-manager kube-scheduler kubectl)
monitoring_definitions=(podmonitors prometheusrules servicemonitors)

tool=$(basename "$0")
say() { echo "kubernetes/$tool: $*"; }
die() {
  echo "kubernetes/$tool: $*" >&2
  exit 1
}

# usage FILE: prints the comment at the head of FILE.
usage() { awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$1"; }

# started_at PID: start of the process in clock ticks since boot (proc(5), field 22); nothing when it is
# gone or a zombie that nobody has reaped yet.
started_at() {
  local stat
  read -r stat 2>/dev/null <"/proc/$1/stat" || return 0
  # The name in brackets may hold spaces: what follows it starts with the state.
  # shellcheck disable=SC2086
  set -- ${stat##*) }
  [ "$1" = Z ] || echo "${20}"
}

# alive NAME: true while the very process that launch() started runs.
alive() {
  local pid start
  read -r pid start 2>/dev/null <"$dir/pid/$1" && [ -n "${start:-}" ] && [ "$(started_at "$pid")" = "$start" ]
}

# launch NAME COMMAND...: starts it in a session of its own unless it runs.
launch() {
  local name=$1
  shift
  if alive "$name"; then return; fi
  # 9 is the lock of `up`: a process that kept it would lock DIR for its whole life.
  setsid "$@" >>"$dir/log/$name.log" 2>&1 </dev/null 9>&- &
  echo "$! $(started_at $!)" >"$dir/pid/$name"
}

# end NAME [SIGNAL]: ends it, by force after ten seconds; returns when it is gone.
end() {
  local name=$1 signal=${2:-TERM} pid _
  if alive "$name"; then
    read -r pid _ <"$dir/pid/$name"
    kill -s "$signal" "$pid" 2>/dev/null || true
    for _ in {1..200}; do
      alive "$name" || break
      sleep 0.05
    done
    if alive "$name"; then kill -s KILL "$pid" 2>/dev/null || true; fi
  fi
  rm -f "$dir/pid/$name"
}

# await SECONDS WHAT NAME COMMAND...: until COMMAND succeeds; ends the script when process NAME has died or
# the time is over.
await() {
  local deadline=$((SECONDS + $1)) seconds=$1 what=$2 name=$3
  shift 3
  until "$@" >/dev/null 2>&1; do
    alive "$name" || die "$name has ended, waited for $what; its last words in $dir/log/$name.log: $(tail -n 3 "$dir/log/$name.log")"
    [ $SECONDS -lt $deadline ] || die "waited $seconds s for $what; see $dir/log/$name.log"
    sleep 0.1
  done
}

# need FILE...: ends the script when a program has not been built.
need() {
  local program
  for program in "$@"; do
    [ -x "$program" ] || die "$program is not there: run tools/kubernetes/build first"
  done
}

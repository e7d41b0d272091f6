# shellcheck shell=bash
# Sourced by the scripts of this folder, and sources the control plane's: what is pinned and where it lies.
#
# shellcheck disable=SC2034 # what is set here is used there
#
# A cluster lives in one folder, DIR:
#   admin.kubeconfig   what kubectl and tests use            kubectl   the program
#   engine/            a Docker engine of its own, where the machine had none that answers
#   cluster            its name in kind                      pid/, log/   of the processes started here
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tools/kubernetes/lib.sh
. "$here/../kubernetes/lib.sh"
tool="kind/$(basename "$0")"
say() { echo "$tool: $*"; }
die() {
  echo "$tool: $*" >&2
  exit 1
}

kind_version=0.33.0
coredns_version=1.14.3
node_programs=(kubeadm kubelet kube-proxy)

kind_bin="$cache/kind-$kind_version/bin"
# A program of ours over CoreDNS's module.
coredns_bin="$cache/coredns-$coredns_version-$(sha256sum <"$here/coredns/main.go" | cut -c 1-12)/bin"

# The node image is named by all that it is made of: versions of programs, and files of this folder.
recipe() {
  (
    cd "$here" || exit
    printf '%s\n' "$kubernetes_version" "$etcd_version" "$coredns_version" "$kind_version"
    sha256sum image archive.sh node_image/* coredns/main.go
  ) | sha256sum | cut -c 1-12
}
node_tag="v$kubernetes_version-$(recipe)"
own_node_image="localhost/trainyard-node:$node_tag"
node_archive="$cache/kind-node/$node_tag.tar"
public_node_image="kindest/node:v$kubernetes_version"

# for_engine DIR: lets docker and kind speak to the engine that DIR's cluster lives in.
for_engine() {
  if [ -S "$1/engine/docker.sock" ]; then export DOCKER_HOST="unix://$1/engine/docker.sock" DOCKER_CONFIG="$1/engine/client"; fi
  export PATH="$kind_bin:$PATH"
}

# for_cluster ARGUMENT: takes DIR, where a cluster must be; sets dir and name.
for_cluster() {
  [ -s "$1/cluster" ] || die "$1 holds no cluster: run tools/kind/up $1 first"
  dir=$(cd "$1" && pwd)
  name=$(cat "$dir/cluster")
  for_engine "$dir"
}

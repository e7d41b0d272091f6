# shellcheck shell=bash
# Sourced: images made with tar alone, in the form that `docker load` and `kind load image-archive` take.

# pack_image FOLDER REFERENCE FILE [CONFIG]: one layer of everything in FOLDER, with root's, or as --keep-owners
# says the files' own, ids. CONFIG is the JSON of the image's `config`. The same files give the same bytes.
pack_image() {
  local folder=$1 reference=$2 file=$3 config=${4:-} owners=(--owner=0 --group=0) parts layer
  [ "${5:-}" != --keep-owners ] || owners=()
  parts=$(mktemp -d "$(dirname "$file")/pack.XXXXXX")
  tar -C "$folder" --sort=name --mtime=@0 --numeric-owner "${owners[@]}" -cf "$parts/layer.tar" .
  layer=$(sha256sum "$parts/layer.tar")
  printf '{"architecture":"amd64","os":"linux","config":%s,"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "${config:-{\}}" "${layer%% *}" >"$parts/config.json"
  printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$reference" >"$parts/manifest.json"
  tar -C "$parts" --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "$parts/image.tar" manifest.json config.json layer.tar
  mv "$parts/image.tar" "$file"
  rm -rf "$parts"
}

# libraries_of FILE...: the files that the dynamic loader takes for these programs and libraries, itself included.
libraries_of() { ldd "$@" 2>/dev/null | grep -oE '/[^ :]+\.so[^ :]*' | sort -u; }

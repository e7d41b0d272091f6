# shellcheck shell=bash
# Sourced by scripts that take something from Python's package index: a Python environment of our own in
# the cache, because a bare system's Python may lack pip and refuse installations of ours.

# python_environment CACHE: makes the environment where it is missing and prints its folder.
python_environment() {
  local environment="$1/python"
  if [ ! -x "$environment/bin/pip" ]; then
    rm -rf "$environment"
    python3 -m venv "$environment" || {
      echo "python3 -m venv $environment failed; install python3-venv (tools/setup does)" >&2
      return 1
    }
  fi
  echo "$environment"
}

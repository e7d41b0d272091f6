# shellcheck shell=bash
# Sourced by scripts that take something from Python's package index: a Python environment of our own in
# the cache, because a bare system's Python may lack pip and refuse installations of ours.

# python_environment CACHE: makes the environment where it is missing and prints its folder.
python_environment() {
  local environment="$1/python"
  ( # one at a time: callers hold locks of their own, of several kinds
    flock --timeout 600 8 || exit 1
    [ ! -x "$environment/bin/pip" ] || exit 0
    rm -rf "$environment"
    python3 -m venv "$environment" || {
      echo "python3 -m venv $environment failed; install python3-venv (tools/setup does)" >&2
      exit 1
    }
  ) 8>"$1/.python.lock" || return 1
  echo "$environment"
}

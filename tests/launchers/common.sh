# Shared by the launcher tests. Sourced with the build directory in $1.
set -eu
build=$1
probe=$build/tests/launchers/launcher_probe
lockstep=$build/bin/lockstep
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT LOCAL_RANK LOCAL_WORLD_SIZE

# ctest counts 77 as skipped, never as passed.
need() {
  command -v "$1" >/dev/null 2>&1 || { echo "skipped: $1 is not installed"; exit 77; }
}

# expect FILE LINE: some line of the file contains the text.
expect() {
  grep -qF -- "$2" "$1" && return
  echo "expected: $2" >&2
  echo "in the output:" >&2
  cat "$1" >&2
  exit 1
}

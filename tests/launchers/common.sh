# Functions for tests written in shell. Sourced with the build directory in $1.
set -eu
build=$1
probe=$build/tests/launchers/launcher_probe
lockstep=$build/bin/lockstep
work=$(mktemp -d)
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT LOCAL_RANK LOCAL_WORLD_SIZE
export USE_LIBUV=0 # for PyTorch's own stores: Debian's PyTorch 2 is built without libuv, but asks for it

# A test that creates something outside of $work redefines clean_up. Failures in it do not change the test's status.
clean_up() { :; }
trap 'status=$?; set +e; clean_up; rm -rf "$work"; exit $status' EXIT

# ctest reports status 77 as skipped, not as passed.
skip() {
  echo "skipped: $1"
  exit 77
}
need() {
  command -v "$1" >/dev/null 2>&1 || skip "$1 is not installed"
}
# need_python MODULE…: skips unless Debian's Python has the modules.
need_python() {
  need /usr/bin/python3
  for module in "$@"; do
    /usr/bin/python3 -c "import $module" 2>/dev/null || skip "$module for /usr/bin/python3 is not installed"
  done
}

# bounded COMMAND…: ends a command that hangs. The time is long enough for a machine whose cores are all busy.
patience_s=180
bounded() { timeout "$patience_s" "$@"; }

# await WHAT COMMAND…: repeats the command until it succeeds.
await() {
  what=$1
  shift
  deadline=$(($(date +%s) + patience_s))
  until "$@"; do
    [ "$(date +%s)" -lt "$deadline" ] || { echo "waited $patience_s s for: $what" >&2; return 1; }
    sleep 0.1
  done
}

# expect FILE TEXT: fails unless a line of the file contains the text.
expect() {
  grep -qF -- "$2" "$1" && return
  echo "expected: $2" >&2
  echo "in the output:" >&2
  cat "$1" >&2
  exit 1
}

need_network_namespaces() {
  why=$("$(dirname "$0")/../support/network-namespaces") || skip "$why"
}

#!/bin/sh
# Installs lockstep into a fresh directory, builds a foreign project against it, and runs that under the installed launcher.
#   package.sh SOURCE_DIRECTORY BUILD_DIRECTORY [COMPILER]
set -eu
source=$1
build=$2
compiler=${3:-c++}
torch=$(sed -n 's/^Torch_DIR:PATH=//p' "$build/CMakeCache.txt")
command -v "$compiler" >/dev/null || { echo "skipped: $compiler is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
# Moved, to see that nothing remembers where it was installed.
mv "$work/prefix" "$work/moved"
cmake -S "$source/tests/package/foreign" -B "$work/foreign" -G Ninja -DCMAKE_PREFIX_PATH="$work/moved" \
  -DCMAKE_CXX_COMPILER="$compiler" -DTorch_DIR="$torch" \
  >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake --build "$work/foreign" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }

expect() {
  printf '%s\n' "$2"
  printf '%s\n' "$2" | grep -qF "$1" || { echo "package.sh: expected: $1" >&2; exit 1; }
}
expect "rank 0 of 1: sum 1" "$("$work/foreign/foreign")"
two=$("$work/moved/bin/lockstep" run --nproc-per-node 2 "$work/foreign/foreign")
expect "[rank 0] rank 0 of 2: sum 3" "$two"
expect "[rank 1] rank 1 of 2: sum 3" "$two"
expect "LibTorch" "$("$work/moved/bin/lockstep" info)"
if grep -rlF "$source" "$work/moved/lib" "$work/moved/include" --include='*.cmake' --include='*.h'; then
  echo "package.sh: the installed files name the source directory" >&2
  exit 1
fi

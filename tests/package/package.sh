#!/bin/sh
# Installs lockstep to a new directory as `make install` does, builds a separate project with it, using CMake and pkg-config,
# and runs that project under the installed launcher.
#   package.sh SOURCE_DIRECTORY BUILD_DIRECTORY [COMPILER]
set -eu
source=$1
build=$2
compiler=${3:-c++}
torch=$(sed -n 's/^Torch_DIR:PATH=//p' "$build/CMakeCache.txt")
command -v "$compiler" >/dev/null || { echo "skipped: $compiler is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" --strip >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
# Moves it, to check that it does not depend on the path of the installation.
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

# The module for MPI is found next to the library.
if [ -e "$build/src/liblockstep_mpi.so" ] && command -v mpirun >/dev/null; then
  expect "with LOCKSTEP_LINK=mpi: " "$("$work/moved/bin/lockstep" info)"
  expect "rank 1 of 2: sum 3" "$(LOCKSTEP_LINK=mpi mpirun --allow-run-as-root --oversubscribe -np 2 \
    sh -c 'LOCKSTEP_MACHINE=$OMPI_COMM_WORLD_RANK exec "$0"' "$work/foreign/foreign")"
fi

# The installed files have no debug information; those in the build directory do.
for file in "$work"/moved/lib/liblockstep.so "$work"/moved/lib/*/liblockstep.so "$work/moved/bin/lockstep"; do
  [ -e "$file" ] || continue
  bytes=$(stat -L -c %s "$file")
  if readelf -S "$file" | grep -qF .debug_info || [ "$bytes" -gt 12000000 ]; then
    echo "package.sh: $file is not stripped: $bytes bytes" >&2
    exit 1
  fi
done
make -C "$source" -n install BUILD="$build" PREFIX="$work/never" 2>/dev/null | grep -q -e "--install.*--strip" ||
  { echo "package.sh: make install does not strip" >&2; exit 1; }

if command -v pkg-config >/dev/null; then
  PKG_CONFIG_PATH=$(dirname "$(find "$work/moved" -name lockstep.pc)")
  export PKG_CONFIG_PATH
  expect "$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")" "$(pkg-config --modversion lockstep)"
  # clang needs an option that only the CMake package sets.
  case $compiler in clang*) set -- -include ATen/core/ivalue.h ;; *) set -- ;; esac
  # shellcheck disable=SC2046 # several words each
  "$compiler" "$@" $(pkg-config --cflags lockstep) "$source/tests/package/foreign/main.cc" -o "$work/by_hand" \
    $(pkg-config --libs lockstep)
  LD_LIBRARY_PATH=$(pkg-config --variable=libdir lockstep)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export LD_LIBRARY_PATH
  expect "[rank 1] rank 1 of 2: sum 3" "$("$work/moved/bin/lockstep" run -n 2 "$work/by_hand")"
else
  echo "pkg-config is not installed: lockstep.pc was not tested"
fi

if grep -rlE "$source/(src|include|build)" "$work/moved/lib" "$work/moved/include" --include='*.cmake' --include='*.h' --include='*.pc'; then
  echo "package.sh: the installed files name the source directory" >&2
  exit 1
fi

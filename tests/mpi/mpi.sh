# Functions for the tests of MPI between machines. Sourced with the build directory in $1, after ../multinode/machines.sh
# if that is needed.
[ -n "${work-}" ] || . "$(dirname "$0")/../launchers/common.sh"
need mpirun
[ -e "$build/src/liblockstep_mpi.so" ] || skip "lockstep was built without MPI"
export LOCKSTEP_LINK=mpi LOCKSTEP_LOG=debug
# MPI allocates what it never frees.
export ASAN_OPTIONS=detect_leaks=0

# mpi N WORD…: an MPI job of N processes on this machine. Without ptrace, as in containers, its processes cannot read each
# other's memory, and say so.
mpi() {
  processes=$1
  shift
  bounded mpirun --allow-run-as-root --oversubscribe --bind-to none --mca btl_vader_single_copy_mechanism none \
    --mca mpi_yield_when_idle 1 -np "$processes" "$@"
}
# with_ranks ON N COMMAND…: the same on machines that are simulated: rank R is on the machine that is letter R of ON.
with_ranks() {
  letters=$1 count=$2
  shift 2
  mpi "$count" sh -c 'LOCKSTEP_MACHINE=$(echo "$0" | cut -c $((OMPI_COMM_WORLD_RANK + 1))) exec "$@"' "$letters" "$@"
}
# Not asked of mpirun, which starts a program that does not use MPI also with a component that it does not have.
has_ucx() { ompi_info 2>/dev/null | grep -q 'pml: ucx'; }
# succeeds COMMAND…: its output is in $work/out.
succeeds() {
  "$@" >"$work/out" 2>&1 || { echo "status $? of: $*"; cat "$work/out"; exit 1; }
}
fails() {
  if "$@" >"$work/out" 2>&1; then
    echo "status 0 of: $*"
    cat "$work/out"
    exit 1
  fi
}
refuse() {
  ! grep -F -- "$1" "$work/out" || { cat "$work/out"; exit 1; }
}

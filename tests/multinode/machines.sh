# Machines simulated by network namespaces, each connected to a switch by its interface link0. Sourced with the build
# directory in $1.
. "$(dirname "$0")/../launchers/common.sh"
need_network_namespaces
# What the ranks run; may be several words.
program=$build/tests/multinode/multinode_probe
prefix=lockstep-mn-$$
switch=$prefix-switch

clean_up() {
  remove_machines
}
remove_machines() {
  for namespace in $(ip netns list | cut -d' ' -f1 | grep "^$prefix-"); do ip netns del "$namespace"; done
}
machine() { echo "$prefix-$1"; }

# make_machines COUNT [RATE]: RATE in each direction of each link, such as 1gbit.
make_machines() {
  count=$1
  rate=${2-}
  ip netns add "$switch"
  ip -n "$switch" link add switch type bridge
  ip -n "$switch" link set switch up
  number=0
  while [ $number -lt "$count" ]; do
    namespace=$(machine $number)
    ip netns add "$namespace"
    ip -n "$namespace" link set lo up
    ip link add link0 netns "$namespace" type veth peer name port$number netns "$switch"
    ip -n "$switch" link set port$number master switch
    ip -n "$namespace" addr add 10.77.0.$((number + 1))/24 dev link0
    for end in "$namespace link0" "$switch port$number"; do
      set -- $end
      ip -n "$1" link set "$2" up
      [ -z "$rate" ] || ip netns exec "$1" tc qdisc add dev "$2" root tbf rate "$rate" burst 512kb latency 20ms
    done
    number=$((number + 1))
  done
}

# run_job "RANKS OF MACHINE 0" "RANKS OF MACHINE 1" … -- ARGUMENT…: a job, in the background. Its outputs
# are $work/node0 …; await_job waits for it.
run_job() {
  ranks=
  while [ "$1" != -- ]; do
    ranks="$ranks $1"
    shift
  done
  shift
  nodes=$(echo "$ranks" | wc -w)
  node=0
  pids=
  for local in $ranks; do
    bounded ip netns exec "$(machine $node)" "$lockstep" run --nnodes "$nodes" --node-rank $node \
      --master-addr 10.77.0.1 --master-port 29500 --nproc-per-node "$local" $program "$@" \
      >"$work/node$node" 2>&1 &
    pids="$pids $!"
    node=$((node + 1))
  done
}
# Fails with the outputs unless every node has ended with status 0.
await_job() {
  failed=
  for pid in $pids; do wait "$pid" || failed=1; done
  [ -z "$failed" ] || { cat "$work"/node*; exit 1; }
}
job() {
  run_job "$@"
  await_job
}

#!/usr/bin/env bash
# scripts/hosts.sh N RATE COMMAND...   runs COMMAND on the first of N hosts, which are network namespaces
#
#   host0  host1 ... on a bridge: 198.18.0.1, 198.18.0.2, ...    each link limited to RATE (200mbit; 0: no limit)
#
# Bridge and hosts lie in a network namespace of their own, so nothing leaves, and in a process namespace: all of it
# ends with COMMAND or with this process, whatever ends it. Open MPI's mpirun starts a rank on each host, in their order,
# by its environment and this script. Needs root.
# Exit code 77: the machine does not permit it; else that of COMMAND.
set -euo pipefail

# Called by mpirun: HOST COMMAND...
if [[ "${1:-}" == host* ]]; then
  # shellcheck disable=SC2016 # for the shell on the host
  exec ip netns exec "$1" unshare --uts sh -c 'hostname "$0" && eval "$1"' "$1" "${*:2}"
fi

# In the namespaces: the hosts.
if [[ "${1:-}" == --inside ]]; then
  n="$2" rate="$3"
  shift 3
  trap 'echo "hosts.sh: network namespaces are not permitted here" >&2; exit 77' ERR
  mount -t tmpfs hosts /run
  mkdir /run/netns
  ip link set lo up
  ip link add bridge0 type bridge
  ip link set bridge0 up
  for ((i = 0; i < n; ++i)); do
    echo "host$i slots=1" >>/run/hosts
    ip netns add "host$i"
    ip -n "host$i" link set lo up
    ip link add "port$i" type veth peer name eth0 netns "host$i"
    ip link set "port$i" master bridge0 up
    ip -n "host$i" addr add "198.18.0.$((i + 1))/24" dev eth0
    ip -n "host$i" link set eth0 up
    [[ "$rate" != 0 ]] || continue
    ip netns exec "host$i" tc qdisc add dev eth0 root tbf rate "$rate" burst 64kb latency 50ms
    tc qdisc add dev "port$i" root tbf rate "$rate" burst 64kb latency 50ms
  done
  trap - ERR
  ln -s "$0" /run/on_host # the parameter takes no path with a space
  export OMPI_MCA_plm_rsh_agent=/run/on_host OMPI_MCA_orte_default_hostfile=/run/hosts
  export OMPI_MCA_btl=tcp,self OMPI_MCA_pml=ob1 OMPI_MCA_mpi_yield_when_idle=1
  export OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0
  ip netns exec host0 unshare --uts sh -c 'hostname host0 && exec "$@"' sh "$@"
  exit
fi

(($# >= 3)) || {
  sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  exit 2
}
if ! { command -v ip && command -v tc && unshare --net --mount --pid --fork --mount-proc true; } >/dev/null 2>&1; then
  echo "hosts.sh: network namespaces need root, and ip and tc (Debian: iproute2)" >&2
  exit 77
fi
exec unshare --net --mount --pid --fork --kill-child --mount-proc "$(realpath "${BASH_SOURCE[0]}")" --inside "$@"

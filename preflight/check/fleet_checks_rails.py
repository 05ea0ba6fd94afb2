"""Findings of ``fleet merge`` and ``fleet rails`` about the NICs of several nodes."""

from __future__ import annotations

from checks.base.finding import Check, Consequence, Status

RAIL_CHECKS = (
    Check(
        id="fleet.path-mtu",
        asks="Do all connections between the nodes have one path MTU at both ends?",
        consequence=Consequence.DIES_LATER,
        why="Mooncake gives a queue pair the smaller of its own port's active MTU and MC_MTU "
        "(4096), and does not ask the peer. With 4096 on one node and 1024 on another the servers "
        "start, connect, and pass small requests; the first large transfer ends with 'remote "
        "invalid request error' or 'local length error', and reconnections follow, on the healthy "
        "nodes too. On RoCE the active MTU follows the interface's: 4096 needs one of 4200 B or "
        "more, and an interface that came up with 1500 B makes it 1024.",
        outcomes=(
            (Status.FAIL, "a node's path MTU, MC_MTU included, is not that of the others"),
            (Status.UNKNOWN, "the same, and a report does not say MC_MTU, which may make them one"),
        ),
        remedy="Set the interfaces' MTU alike (ip link set DEV mtu 4200), or MC_MTU to the "
        "smallest on all nodes: MC_MTU=1024.",
        source="Mooncake rdma_endpoint.cpp (path_mtu), config.cpp; #3868, #3878",
        topics=(),
    ),
    Check(
        id="fleet.address",
        asks="Has each machine addresses of its own on its RDMA ports?",
        consequence=Consequence.DIES_LATER,
        why="Two machines that answer to one address both look well on their own. Peers reach "
        "whichever their neighbour cache holds, and it changes: transfers to one come to the "
        "other, handshakes find a process that never heard of the segment, or end with 'Failed to "
        "modify QP to RTR, check mtu, gid, peer lid, peer qp num'. It follows from a cloned image "
        "or a node that was set up by its neighbour's script.",
        outcomes=(
            (
                Status.FAIL,
                "two machines (boot ids) have one address; loopback and link-local do not count",
            ),
        ),
        remedy="Give one of them another address; arping -D -I DEV ADDRESS shows who has it.",
        source="Linux neighbour tables; Mooncake rdma_endpoint.cpp",
        topics=(),
    ),
    Check(
        id="fleet.subnet",
        asks="Is each rail in the subnet of the same device of the other nodes, or routed to it?",
        consequence=Consequence.DIES_LATER,
        why="NICs that stand in different subnets need a route out of the very interface behind "
        "the GID. Without it the handshake over the management network still works, and the "
        "transfer ends with 'transport retry counter exceeded' or 'Failed to modify QP to RTR ... "
        "Network is unreachable'. All tables count, as ip rule has them asked for the GID's "
        "address; of a report that has no rules, the main table alone. `fleet rails` judges every "
        "pair of NICs.",
        outcomes=(
            (
                Status.UNKNOWN,
                "another subnet than the same device of most nodes, and no route of any table "
                "to theirs out of its interface; or the routes were not read",
            ),
        ),
        remedy="Compare ip addr and ip rule with those of a good node; show a way with: ip route "
        "get PEER from ADDRESS.",
        source="Mooncake rdma_endpoint.cpp; Linux /proc/net/route, /proc/net/ipv6_route",
        topics=(),
    ),
    Check(
        id="fleet.rail-apart",
        asks="Does any NIC of a node reach any NIC of the others?",
        consequence=Consequence.DIES_LATER,
        why="No pair of NICs that Mooncake would use has a way: InfiniBand on one side and "
        "Ethernet on the other, GIDs of RoCE v1 and of RoCE v2, IPv4 and IPv6, or networks "
        "without a route. The nodes start and join the pool, since that goes over TCP; each "
        "transfer between them ends with 'transport retry counter exceeded', after seconds in "
        "which requests wait.",
        outcomes=(
            (Status.FAIL, "no pair of NICs has a way, for a reason that no route can mend"),
            (
                Status.UNKNOWN,
                "no route leads there: both may lie on one link all the same",
            ),
        ),
        remedy="Make the GIDs alike (MC_GID_INDEX of RoCE v2 over IPv4 on all nodes), or add the "
        "routes; fleet pair-connect tries real transfers.",
        source="Mooncake rdma_endpoint.cpp; IB specification (GID types); Linux routes",
        topics=(),
    ),
    Check(
        id="fleet.rail-same",
        asks="Does each NIC reach the NIC of its name on the other nodes?",
        consequence=Consequence.DEGRADED,
        why="With MC_ENABLE_DEST_DEVICE_AFFINITY a transfer goes from mlx5_1 to the peer's "
        "mlx5_1; without it this is one of the pairs. Where that one has no way, its transfers "
        "wait until the retries are over ('transport retry counter exceeded') and then take "
        "another NIC: nothing stops, and a share of all reads takes seconds. One cable in the "
        "wrong port or one address from the wrong plan is enough.",
        outcomes=(
            (Status.WARN, "pairs of one name have no way, and others have"),
            (
                Status.UNKNOWN,
                "no route leads there: both may lie on one link all the same",
            ),
        ),
        remedy="Compare the named device's address, GID and link with those of a good node.",
        source="Mooncake topology.cpp (selectDevice), worker_pool.cpp (retries)",
        topics=(),
    ),
    Check(
        id="fleet.rail-cross",
        asks="Do NICs of different names reach each other, where Mooncake pairs them?",
        consequence=Consequence.DEGRADED,
        why="A fabric of rails is built so: mlx5_0 of all nodes in one network, mlx5_1 in the "
        "next, and no way between. Mooncake by default pairs any NIC with any, so on 8 rails 56 "
        "of 64 pairs never work: 'transport retry counter exceeded' between NICs of different "
        "numbers, pauses of seconds, and a throughput that is a fraction of the links'. "
        "MC_ENABLE_DEST_DEVICE_AFFINITY pairs equal names; any value switches it on, 0 too. "
        "Together with MC_ENABLE_HCA_PEER_AFFINITY both are off.",
        outcomes=((Status.WARN, "pairs of different names that Mooncake would use have no way"),),
        remedy="Set MC_ENABLE_DEST_DEVICE_AFFINITY=1 on all nodes, with the same device list, or "
        "route between the rails.",
        source="Mooncake config.cpp, topology.cpp (selectDevice); #2468, #3828, vLLM #44919",
        topics=(),
    ),
    Check(
        id="fleet.rail-unknown",
        asks="Is it known which NICs reach which?",
        consequence=Consequence.DIES_LATER,
        why="A fact that decides is missing: the GID that Mooncake takes or its type, the prefix "
        "of its address, the link layer; or prefixes overlap without being equal, or two "
        "InfiniBand subnets could have a router between them, which no file of a host shows. The "
        "reports then neither find these pairs good nor bad. A GID on an interface of another "
        "network namespace looks so from inside a container.",
        outcomes=(
            (Status.UNKNOWN, "pairs of NICs that Mooncake would use, or all NICs of a node"),
        ),
        remedy="Have fleet node read what is missing (its reason says what: as root, in the "
        "host's network namespace), or try it: fleet pair-connect.",
        source="Linux /sys/class/infiniband/*/ports/*/gids and gid_attrs; Mooncake "
        "rdma_context.cpp (findBestGidIndex)",
        topics=(),
    ),
    Check(
        id="fleet.rail-mtu",
        asks="Have all interfaces of one network one MTU?",
        consequence=Consequence.DIES_LATER,
        why="Within one network nothing negotiates the size of a frame: what is larger than the "
        "receiver's MTU is dropped on its way, without a word to the sender. Small requests and "
        "the handshake pass, and the first large transfer ends with 'transport retry counter "
        "exceeded'. ping passes too, unless it is told to be large: ping -M do -s 4072 PEER.",
        outcomes=((Status.WARN, "an interface's MTU is not that of most in its network"),),
        remedy="Set one MTU on all interfaces of the network and on its switches: ip link set DEV "
        "mtu 4200, or 9000.",
        source="Linux /sys/class/net/*/mtu; IEEE 802.3",
        topics=(),
    ),
)

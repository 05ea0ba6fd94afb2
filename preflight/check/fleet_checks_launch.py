"""Findings of ``fleet merge`` about what the nodes' launches have to agree on."""

from __future__ import annotations

from checks.base.finding import Check, Consequence, Status

FLEET_LAUNCH_CHECKS = (
    Check(
        id="fleet.master",
        asks="Do all nodes look for one master?",
        consequence=Consequence.DEGRADED,
        why="A master knows only the clients that came to it. Nodes that name two masters, or "
        "each its own 127.0.0.1, make as many pools as there are masters: every server starts, "
        "every log is clean, and what one node stores the others never find (is_exist says 0, the "
        "L3 hit rate is that of the node alone). Where nobody listens on such an address, the "
        "server ends instead: 'Client not available', 'Failed to create client', error code -600. "
        "One node may call itself localhost where all others call it by its name.",
        outcomes=(
            (
                Status.FAIL,
                "a loopback address on nodes that are not the master's, another port, or the name "
                "or address of another node of the fleet",
            ),
            (
                Status.UNKNOWN,
                "another name or address, which can be an alias of the same machine: no report "
                "says whose it is",
            ),
        ),
        remedy="Write one address into MOONCAKE_MASTER (or the extra config) of all nodes. "
        "Servers that are meant to have a master each are fleets of their own: merge them apart.",
        source="Mooncake master_client.cpp, master_service.cpp; seen with 0.3.13.post1",
        topics=(),
    ),
    Check(
        id="fleet.metadata",
        asks="Do all nodes use one metadata server?",
        consequence=Consequence.DIES_LATER,
        why="The master names the segment that holds an object; where that segment lies, its "
        "owner has written into its own metadata server. A node that asks another one gets "
        "'Failed to retrieve segment descriptor, name ...' (over HTTP 'GET ... http=404' before "
        "it), and the transfer fails: the key exists, and its data does not come. With "
        "P2PHANDSHAKE there is no such server, and no such finding.",
        outcomes=(
            (
                Status.FAIL,
                "a loopback address on several nodes, another port, or the name or address of "
                "another node of the fleet",
            ),
            (Status.UNKNOWN, "another name or address, which can be an alias of the same machine"),
        ),
        remedy="Write one address into MOONCAKE_TE_META_DATA_SERVER of all nodes, or P2PHANDSHAKE.",
        source="Mooncake transfer_metadata.cpp (getSegmentDesc), transfer_metadata_plugin.cpp",
        topics=(),
    ),
    Check(
        id="fleet.rendezvous",
        asks="Do the ranks of a server over several hosts look for rank 0 on its node?",
        consequence=Consequence.WILL_NOT_START,
        why="--dist-init-addr is where rank 0 listens and all others connect to. If it is a "
        "loopback address, each node looks for rank 0 on itself. All of them wait, by default for "
        "10 minutes, with the GPUs' memory hardly touched; then the first node says 'Timed out "
        "after 601 seconds waiting for clients. 1/2 clients joined', and the others 'The client "
        "socket has timed out after 600000ms while trying to connect to (127.0.0.1, ...)'.",
        outcomes=((Status.FAIL, "a server over several hosts, and a loopback address on a node"),),
        remedy="Give the address of the node of rank 0, from the network that the ranks share.",
        source="PyTorch TCPStore.cpp (waitForWorkers), socket.cpp; SGLang --dist-init-addr",
        topics=(),
    ),
    Check(
        id="fleet.advertised",
        asks="Does each machine register its segments under a name of its own?",
        consequence=Consequence.DIES_LATER,
        why="The name that a store gives itself (local_hostname) is where the others look for its "
        "segments. Two machines of one name come from one file copied to all nodes. Peers then "
        "ask one machine for the memory of both: reads come to a port at which nobody listens, or "
        "to another process's addresses. An HTTP metadata server refuses the second with "
        "'Duplicate rpc_meta key not allowed' where the ports are equal too.",
        outcomes=((Status.FAIL, "nodes of different boots register under one name or address"),),
        remedy="Leave local_hostname out, or set it on each node: "
        "MOONCAKE_LOCAL_HOSTNAME=$(hostname -I | cut -d' ' -f1), from the network of the pool.",
        source="Mooncake transfer_metadata.cpp, http_metadata_server.cpp; SGLang mooncake_store.py",
        topics=(),
    ),
    Check(
        id="fleet.mooncake-version",
        asks="Have all nodes that share a master its release of Mooncake?",
        consequence=Consequence.WILL_NOT_START,
        why="Releases differ in what master and client say to each other, and they do not tell: "
        "what the other side does not understand fails at the first call that changed. Of 0.3.8 "
        "to 0.3.14 these were seen to store and read together: 0.3.8 with its post1; 0.3.9 with "
        "0.3.10; 0.3.11 with its post1; 0.3.12 with its post1; 0.3.13 with a master 0.3.14. "
        "0.3.10.post2 stands alone, and no other pair that was tried worked. Either the setup "
        "ends ('RPC call failed: invalid rpc arg', 'Failed to mount segment: RPC_FAIL', error "
        "code -900), or it passes and nothing is stored: put says -900, and the server runs on "
        "without its L3, which is the worse of the two. 'Version mismatch: server=... client=...' "
        "compares another number, 2.0.0 in each of these releases: that it is not in a log says "
        "nothing.",
        outcomes=(
            (
                Status.FAIL,
                "not the release of the master's node, or, where no report is of that, of most "
                "nodes, and seen to fail with it; another flavour (cuda13, non-cuda) is none",
            ),
            (Status.WARN, "another release, and seen to work with it"),
            (Status.UNKNOWN, "another release that was not tried with it"),
        ),
        remedy="Install one release on all nodes, the master's first: pip install "
        "mooncake-transfer-engine==VERSION.",
        source="measured: clients of 0.3.8 to 0.3.13.post1 with masters of 0.3.8 to 0.3.14, over "
        "TCP; Mooncake master_client.cpp (Connect), version.h.in",
        topics=(),
    ),
    Check(
        id="fleet.protocol",
        asks="Do all stores speak one protocol?",
        consequence=Consequence.DEGRADED,
        why="A segment is reached over the protocol that its owner registered it with. A client "
        "that did not set that one up cannot reach it: the get ends with 'Failed to submit all "
        "transfers, error code is ...' and the object counts as a miss, time after time. A node "
        "with tcp among nodes with rdma is mostly one that was given another environment or extra "
        "config; its own objects are then read at the speed of TCP, by those that can.",
        outcomes=((Status.WARN, "a node's protocol is not that of most nodes, or there is a tie"),),
        remedy="Set MOONCAKE_PROTOCOL alike on all nodes that share a master.",
        source="Mooncake multi_transport.cpp (selectTransport), transfer_task.cpp",
        topics=(),
    ),
    Check(
        id="fleet.port",
        asks="Is the master's port free of other uses on the master's node?",
        consequence=Consequence.WILL_NOT_START,
        why="The nodes look for the master on a port that the launch on that node binds for "
        "something else (SGLang's --port, metrics, a bootstrap port). Who comes second ends. "
        "Where that is the master, its log does not say why: 'Master service started on port ...' "
        "stands there all the same, then 'Task cleanup thread stopped', and the exit code is 1. "
        "Clients of the wrong service say 'Client not available'.",
        outcomes=(
            (Status.FAIL, "the launch of the node that others name as master needs its port"),
        ),
        remedy="Give the master another port (mooncake_master --rpc_port), or the server "
        "(--port), and the same one to all nodes.",
        source="measured: two mooncake_master of 0.3.13.post1 on one port",
        topics=(),
    ),
    Check(
        id="fleet.segment",
        asks="Does each node add as much to the pool as the others?",
        consequence=Consequence.DEGRADED,
        why="The master picks segments at random, whatever their size (--allocation_strategy "
        "random, the default). The smaller ones are full first; from then on all new objects go "
        "to the larger ones, whose NICs serve the reads of all, and whose loss takes as much more "
        "of the pool. Mostly it is an environment that was not set on one node. A node without a "
        "segment is a client that only takes, which is a way to run, if it is meant.",
        outcomes=(
            (Status.WARN, "a quarter more or less than most nodes, or nothing where most add some"),
        ),
        remedy="Set MOONCAKE_GLOBAL_SEGMENT_SIZE alike, or leave it where the difference is meant.",
        source="Mooncake allocation_strategy.h (RandomAllocationStrategy), master.cpp",
        topics=(),
    ),
    Check(
        id="fleet.same-machine",
        asks="Is every node a machine of its own?",
        consequence=Consequence.DEGRADED,
        why="Two reports with different names and one boot id come of one kernel: containers on "
        "one machine, or a host that has two names. Each report counts the machine's memory, huge "
        "pages and NICs as its own, so each may pass where both together do not fit, and the pool "
        "that is printed is too large.",
        outcomes=((Status.WARN, "reports of several names have one boot id"),),
        remedy="Check what runs together on that machine as one launch, or drop the second name "
        "from the node set.",
        source="Linux /proc/sys/kernel/random/boot_id",
        topics=(),
    ),
)

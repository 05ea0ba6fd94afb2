"""Known lines of Mooncake's master and clients: who reaches whom, in which version, on which port.

Wording: Mooncake 0.3.8 to 0.3.14 (master_client.cpp, master.cpp, client_service.cpp,
transfer_metadata_plugin.cpp, tcp_transport.cpp); most lines were provoked with the real master and
clients.
"""

from __future__ import annotations

from preflight.logs.log_pattern import Groups, Layer, Pattern, Printer, Reading, Seen, Stage, mark

_VERSION = "install one version of Mooncake everywhere, the master's image included"


_line = Printer(Layer.MOONCAKE).line


def _read_connect(groups: Groups, seen: Seen) -> Reading:
    if groups.get("errno") == "99" or "assign requested" in groups.get("error", ""):
        return Reading(
            decided="errno 99: this host has no local port left (TIME_WAIT), the peer is well.",
            cause="every transfer opens a connection, and the ephemeral ports are used up",
            remedy="set MC_TCP_ENABLE_CONNECTION_POOL=1, widen net.ipv4.ip_local_port_range",
            checks=("network.port-range",),
        )
    says = {
        "111": "errno 111: the address answers, nothing listens there: the peer is gone, or it "
        "advertises an address of its own loopback.",
        "110": "errno 110: no answer: a firewall, or an address of another network.",
        "113": "errno 113: no route to that address from here.",
    }
    return Reading(decided=says.get(groups.get("errno", ""), ""))


def _read_http(groups: Groups, seen: Seen) -> Reading:
    code = groups.get("code", "")
    if code in ("502", "503", "504", "403", "407"):
        return Reading(decided=f"status {code} comes from a proxy more often than from Mooncake.")
    return Reading()


def _read_mount(groups: Groups, seen: Seen) -> Reading:
    if "mooncake.wire" in seen or "mooncake.version" in seen:
        return Reading(decided="the versions of client and master differ, see there.")
    error = groups.get("error", "")
    if "INVALID_PARAM" in error:
        return Reading(
            decided="INVALID_PARAMS: the master refuses the segment's size or address, and says in "
            "its own log why; with --memory_allocator=cachelib both are multiples of 16 MiB.",
            checks=("segment-not-slabs", "segment-base-unaligned", "software.version-skew"),
        )
    if "SEGMENT_ALREADY_EXISTS" in error:
        return Reading(decided="another client has that name and address.")
    return Reading()


def _read_ended(groups: Groups, seen: Seen) -> Reading:
    hit = seen.get("mark.master-started")
    if hit is None:
        return Reading()
    address, port = hit.last.get("address", ""), hit.last.get("port", "?")
    if address in ("", "0.0.0.0", "::"):
        return Reading(decided=f"it listens on every address: port {port} is taken.")
    return Reading(
        decided=f"it was to listen on {address}, port {port}: one of the two is not to be had.",
        checks=("network.port-taken", "network.advertised-address"),
    )


PATTERNS = (
    mark(
        "mark.master-started",
        Layer.MOONCAKE,
        "Master service started on port",
        r"Master service started on port (?P<port>\d+)"
        r"(?:[^\n]*? rpc_address=(?P<address>[^,\s]*))?",
    ),
    mark(
        "mark.master-stopped-by-signal",
        Layer.MOONCAKE,
        "Shutdown signal received",
        r"Shutdown signal received",
    ),
    _line(
        "mooncake.wire",
        Stage.CAUSE,
        "invalid rpc arg",
        r"RPC call failed: invalid rpc arg",
        ("software.version-skew", "software.mooncake-duplicate"),
        "master and client do not understand each other: their releases of Mooncake differ (seen "
        "with clients 0.3.8 to 0.3.10 and a master 0.3.13)",
        _VERSION,
        "mooncake_master of 0.3.14 prints its version at the start; pip show tells the client's",
    ),
    _line(
        "mooncake.version",
        Stage.CAUSE,
        "Version mismatch: server=",
        r"Version mismatch: server=(?P<server>\S{0,40}) client=(?P<client>\S{0,40})",
        ("software.version-skew", "software.mooncake-duplicate"),
        "the master is {server}, this client {client}; they have to be equal",
        _VERSION,
    ),
    _line(
        "mooncake.master-unreachable",
        Stage.CAUSE,
        "Client not available",
        r"master_client\.cpp:\d+\] Client not available|Client not available",
        ("service.reachable", "service.address"),
        "nothing answers at the master's address",
        "start mooncake_master first; see MOONCAKE_MASTER and the way to it from this container",
        "at the start: a wrong address or a master that never came up; later: one that died",
    ),
    _line(
        "mooncake.master-lost",
        Stage.CAUSE,
        "Failed to ping master",
        r"Failed to ping master(?: for (?P<times>\d+) times)?",
        ("service.reachable",),
        "the master stopped answering while the client ran",
        "see the master's own log and whether it was killed for memory (millions of small "
        "objects: raise --page-size)",
    ),
    _line(
        "mooncake.master-connect",
        Stage.SYMPTOM,
        "onnect to master",
        r"Failed to connect to master(?: (?P<name>[^\s:]{1,80}:\d+))?",
        ("service.reachable", "service.address"),
        "the master was not reached",
        "start mooncake_master first; see MOONCAKE_MASTER",
    ),
    _line(
        "mooncake.rpc-timeout",
        Stage.SYMPTOM,
        "RPC call timed out",
        r"RPC call timed out: ?(?P<error>[^\n]{0,80})",
        ("service.reachable", "proxy-in-the-way"),
        "the master did not answer in time",
        "see the master's load and the way to it",
    ),
    Pattern(
        "mooncake.rpc-failed",
        Layer.MOONCAKE,
        Stage.SYMPTOM,
        ("RPC call failed: ",),
        r"RPC call failed: (?!invalid rpc arg)(?P<error>[^\n]{1,80})",
        ("service.reachable", "software.version-skew"),
        "a call to the master failed ({error})",
        "see the master's own log of that time",
        unless=("mooncake.wire",),
    ),
    _line(
        "mooncake.mount",
        Stage.SYMPTOM,
        "mount_segment_to_master_failed",
        r"mount_segment_to_master_failed base=\S{1,24} size=(?P<size>\d+), error=(?P<error>\w+)",
        ("software.version-skew", "service.reachable"),
        "the master did not take the segment ({error})",
        "see the lines before it and the master's own log",
    )._replace(read=_read_mount),
    _line(
        "mooncake.mount-failed",
        Stage.CONSEQUENCE,
        "Failed to mount segment",
        r"Failed to mount segment: (?P<error>[^\n]{1,60})",
        ("software.version-skew", "service.reachable"),
        "the client ends without its segment ({error})",
        "see the lines before it",
    ),
    _line(
        "mooncake.metadata-curl",
        Stage.CAUSE,
        " curl: ",
        r"(?:GET|PUT|DELETE) (?P<name>https?://[^/\s?]{1,120})[^\s]{0,300} curl: "
        r"(?P<error>[^\n]{1,120}?)(?: err:|$)",
        ("service.reachable", "service.address", "proxy-in-the-way"),
        "the metadata server {name} was not reached ({error})",
        "start it (mooncake_master --enable_http_metadata_server), mend the address, or use "
        "P2PHANDSHAKE, which needs none",
        "curl -v the address from the same container; a proxy shows there",
    ),
    _line(
        "mooncake.metadata-http",
        Stage.CAUSE,
        " http=",
        r"(?:GET|PUT|DELETE) (?P<name>https?://[^/\s?]{1,120})[^\s]{0,300} http=(?P<code>[45]\d\d)",
        ("proxy-in-the-way", "service.reachable"),
        "the metadata server {name} answers with status {code}",
        "put the host literally into no_proxy (ranges are not understood everywhere), or mend the "
        "address",
        "404 to a GET is normal for a peer that is not there yet",
    )._replace(
        read=_read_http,
        regex=(
            r"(?:GET|PUT|DELETE) (?P<name>https?://[^/\s?]{1,120})[^\s]{0,300} "
            r"http=(?P<code>(?!404)[45]\d\d)"
        ),
    ),
    Pattern(
        "mooncake.metadata-store",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("StoragePlugin: unable to", "Error from etcd client", "Failed to initialize etcd client"),
        r"(?P<name>Etcd|Redis)StoragePlugin: unable to [^\n]{1,200}|Error from etcd client|"
        r"Failed to initialize etcd client",
        ("service.reachable", "proxy-in-the-way", "service.address"),
        "the metadata store (etcd or Redis) does not answer as it should",
        "see its address, and that no http_proxy or https_proxy stands between",
        "etcdctl endpoint health, or redis-cli ping, from the same container",
    ),
    _line(
        "mooncake.metadata-scheme",
        Stage.CAUSE,
        "Unable to find metadata storage plugin",
        r"Unable to find metadata storage plugin (?P<name>[^\n]{0,160})",
        ("service.address",),
        "the metadata server's address has a scheme that this build does not know",
        "write http://host:port/metadata, etcd://host:port, or P2PHANDSHAKE",
    ),
    _line(
        "mooncake.engine",
        Stage.CONSEQUENCE,
        "Failed to initialize transfer engine",
        r"Failed to initialize transfer engine(?:, rc=(?P<code>-?\d+))?",
        ("service.reachable", "rdma.no-device"),
        "the transfer engine did not come up",
        "see the lines before it",
    ),
    Pattern(
        "mooncake.engine-sglang",
        Layer.SGLANG,
        Stage.CONSEQUENCE,
        ("Mooncake Transfer Engine initialization failed",),
        r"Mooncake Transfer Engine initialization failed",
        ("rdma.no-device", "rdma.device-missing", "service.reachable"),
        "SGLang passes on that the transfer engine did not come up",
        "see Mooncake's own lines before it",
    ),
    _line(
        "mooncake.client",
        Stage.CONSEQUENCE,
        "Failed to create client",
        r"Failed to create client(?! on port)",
        ("service.reachable", "rdma.no-device"),
        "the store's client did not come up",
        "see the lines before it",
    ),
    _line(
        "mooncake.handshake-connect",
        Stage.CAUSE,
        "SocketHandShakePlugin: connect()",
        r"SocketHandShakePlugin: connect\(\) ?(?P<name>[^\s]{0,80}?)(?:: |$)"
        r"(?P<error>[^\n\[]{0,80})(?:\[(?P<errno>\d+)\])?",
        ("service.reachable", "network.advertised-address", "local-hostname-localhost"),
        "a peer does not answer at {name}, the address that it advertised; the master offers the "
        "segments of a client that died for some seconds more",
        "see that the peer runs and advertises an address that is reachable from here "
        "(MOONCAKE_LOCAL_HOSTNAME)",
        "127.0.0.1 or localhost on another node is the advertised name, not a firewall",
    )._replace(read=_read_connect),
    _line(
        "mooncake.connect-local-ports",
        Stage.CAUSE,
        "Cannot assign requested address",
        r"onnect[^\n]{0,120}(?P<error>Cannot assign requested address)",
        ("network.port-range",),
        "every transfer opens a connection, and the ephemeral ports are used up",
        "set MC_TCP_ENABLE_CONNECTION_POOL=1, widen net.ipv4.ip_local_port_range",
        "ss -s: tens of thousands in timewait",
    )._replace(unless=("mooncake.handshake-connect",)),
    _line(
        "mooncake.peer-name",
        Stage.CAUSE,
        "failed to get IP address of peer",
        r"failed to get IP address of peer server (?P<name>[^\s,]{1,120})",
        ("network.advertised-address", "service.address"),
        "the name {name} that a peer advertises does not resolve here",
        "advertise an IPv4 address in MOONCAKE_LOCAL_HOSTNAME, or mend DNS or /etc/hosts",
    ),
    _line(
        "mooncake.peer-stale",
        Stage.CONSEQUENCE,
        "Failed to open segment for endpoint",
        r"Failed to open segment for endpoint='(?P<name>[^'\n]{1,80})'",
        ("network.advertised-address",),
        "an object's segment at {name} cannot be reached: its client is gone, or advertises "
        "an address that is not reachable from here",
        "see the connection's own line before it",
    ),
    _line(
        "mooncake.tcp-connection",
        Stage.SYMPTOM,
        "failed to create connection to",
        r"failed to create connection to (?P<name>[^\s]{1,80}?)\. Error: (?P<error>[^\n]{1,80})",
        ("network.advertised-address", "service.reachable"),
        "the peer {name} was not reached over TCP ({error})",
        "see that it runs and advertises an address that is reachable from here",
    ),
    Pattern(
        "mooncake.port-taken",
        Layer.MOONCAKE,
        Stage.CAUSE,
        (
            "Failed to start master admin server on",
            "Failed to start HTTP metadata server on",
            "Failed to start HTTP server on port",
            "Failed to start client HTTP server on port",
            "Failed to start offload RPC server",
            "SocketHandShakePlugin: bind",
            "Failed to start embedded",
        ),
        r"Failed to start (?P<what>[\w ]{1,50}?)(?: on(?: port)? (?P<name>[\d.:\[\]a-f]{1,60}?))?"
        r"(?:: (?P<error>[^\n]{1,80}))?$|SocketHandShakePlugin: bind \(port (?P<port>\d+)\)",
        ("network.port-taken", "network.port-range", "service-port-taken"),
        "a port that Mooncake listens on is taken ({name})",
        "end the process that has it (ss -ltnp), or give Mooncake another port",
        "a port inside net.ipv4.ip_local_port_range is taken by chance: reserve it in "
        "ip_local_reserved_ports",
    ),
    _line(
        "mooncake.no-port",
        Stage.CAUSE,
        "o valid port found",
        r"[Nn]o valid port found for local|not valid port for serving local",
        ("network.port-range", "port-range-reset"),
        "no free port was found in Mooncake's range",
        "free ports, or widen the range (MC_MIN_PRC_PORT, MC_MAX_PRC_PORT)",
    ),
    _line(
        "mooncake.no-address",
        Stage.CAUSE,
        "not valid LAN address found",
        r"not valid LAN address found",
        ("network.advertised-address",),
        "no interface has an address that can be advertised",
        "set MOONCAKE_LOCAL_HOSTNAME to a routable address of this host",
    ),
    _line(
        "mooncake.client-retry",
        Stage.SYMPTOM,
        "Failed to create client on port",
        r"Failed to create client on port (?P<port>\d+), retry (?P<retry>\d+)/(?P<most>\d+)",
        ("service.reachable", "network.port-taken"),
        "the client tries other ports, whatever the reason was",
        "see the lines before the first retry: a free port helps only where a port was taken",
    ),
    Pattern(
        "mooncake.master-ended",
        Layer.MOONCAKE,
        Stage.SYMPTOM,
        ("Task cleanup thread stopped",),
        r"Task cleanup thread stopped",
        ("network.port-taken", "service.reachable"),
        "the master ended with no signal and no error: its RPC port is taken, or --rpc_address is "
        "no address of this host, which it does not say (seen with 0.3.13 and 0.3.14)",
        "find who has the port in 'Master service started on port ..' (ss -ltnp), and see that "
        "rpc_address= in the same line is an address of this host (ip addr)",
        "a regular end has 'Shutdown signal received' before it; the admin port's failure has "
        "a line of its own",
        _read_ended,
        ("mark.master-stopped-by-signal", "mooncake.port-taken"),
    ),
)

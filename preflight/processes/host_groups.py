"""Which processes of one launch run on hosts of their own: what a guide writes for several hosts.

Two are on different hosts if their node ranks differ, if ssh or srun names a host, if they bind
addresses that no host has both of, or if both want one port and neither runs beside the other. A
process of which nothing of this is known may run on any host, and is counted with each.
"""

import re
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import NamedTuple

from checks.framework.regex import regex
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from preflight.base.usage_error import UsageError
from preflight.engines.programs.mooncake_flags import value_of
from preflight.launches.container import Published
from preflight.launches.launchers import option_values, remote_words
from preflight.processes.containers import network_of, pod_of
from preflight.processes.ports import ports, split_address
from preflight.processes.processes import LaunchProcess, ProcessKind, keep_last

_NODE_OPTIONS = ("-w", "--nodelist", "-H", "--host")
_HOSTED = frozenset(("srun", "mpirun", "mpiexec"))
_HERE = ("localhost", "127.0.0.1", "::1")
_HET_GROUP = regex(r"(?:\S*/)?srun\s(?:.*\s)?--het-group[= ](\d+)(?:\s.*)?", re.DOTALL)
_VARIABLE = regex(r"\$(?:\w+|\{\w+(?:\[-?\d+\])?\})")
_LOCAL_ADDRESS = regex(r"\|-- (\d+\.\d+\.\d+\.\d+)\s+/32 host LOCAL")
# What says nothing of the host that it is on.
_ANYWHERE = (ProcessKind.OTHER, ProcessKind.BENCHMARK)
_SERVERS = (ProcessKind.SGLANG, ProcessKind.VLLM)
# Groups that a sentence names; read shows all.
MOST_NAMED = 4


class HostGroup(NamedTuple):
    """The processes of one host of a launch.

    Attributes:
        name: For --host-group.
        what: The launch's name for the host.
        only_here: Numbers of processes that run on no other host.
        shared: Numbers of processes that may run on each host.
        address: Of the host, or "".
        in_turn: If all groups run on one host, they run one after another.
        killed: The script kills each group and waits for its end, so that all groups are for one
            host.
    """

    name: str
    what: str
    only_here: frozenset[int]
    shared: frozenset[int]
    address: str = ""
    in_turn: bool = False
    killed: bool = False

    @property
    def numbers(self) -> frozenset[int]:
        """The processes that run on the host, as far as is known."""
        return self.only_here | self.shared


class GroupChoice(NamedTuple):
    """The host group that is checked on this host, why that one, and all groups of the launch."""

    group: HostGroup
    why: str
    groups: tuple[HostGroup, ...]

    @property
    def text(self) -> str:
        """Return the sentence that says which of several hosts is checked here, and why."""
        others = [
            f"{group.name} ({group.what})" for group in self.groups if group.name != self.group.name
        ]
        more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        if not others:
            return f"this launch runs on {self.group.what}: checked here as if this were that host"
        count, on = f"is for {len(self.groups)} hosts", "what runs on "
        if self.group.in_turn:
            turns = "servers on one port, one after another or on as many hosts"
            turns = "rounds, each killed before the next" if self.group.killed else turns
            count, on = f"starts {len(self.groups)} {turns}", ""
        return (
            f"this launch {count}; only {on}"
            f"{self.group.what} (group {self.group.name}) is checked here: {self.why}; "
            f"--host-group takes {', '.join(others[:MOST_NAMED])}{more}"
        )


@keep_last
def host_groups(processes: Sequence[LaunchProcess]) -> tuple[HostGroup, ...]:
    """Return the groups of processes that run on different hosts, or one after another on one host.

    A single group means that ssh takes every process to one other host. Groups are named "1", "2"
    and so on.

    Returns:
        () if the whole launch is for one host, this one.
    """
    hosts: dict[str, tuple[str, list[int]]] = {}  # by host: its address, and its processes
    shared = [process.number for process in processes if process.kind in _ANYWHERE]
    left: list[LaunchProcess] = []
    for process in processes:
        if process.kind in _ANYWHERE:
            continue
        what, address = _host_of(process)
        if what:
            hosts.setdefault(what, (address, []))[1].append(process.number)
        else:
            left.append(process)
    by_address: dict[str, str] = {}
    for what, (address, _) in hosts.items():
        by_address.setdefault(address, what)
    unplaced, left = left, []
    for process in unplaced:  # those that bind an address of one of them
        address = _bound_address(process)
        if address:
            what = by_address.setdefault(address, address)
            hosts.setdefault(what, (address, []))[1].append(process.number)
        else:
            left.append(process)
    placed = {number for _, numbers in hosts.values() for number in numbers}
    taken_ports = {_port(process) for process in processes if process.number in placed}
    for process in list(left) if len(hosts) == 1 else ():  # which wants what that host has given
        if _port(process) and _port(process) in taken_ports:
            hosts[f"what {process.command.origin} starts"] = ("", [process.number])
            left.remove(process)
    if not hosts and (apart := _never_together(processes, shared) or _rounds(processes, shared)):
        return apart
    wrappers = [each for process in processes for each in process.command.wrappers if each]
    by_ssh = (each for each in wrappers if each[0].rpartition("/")[2] == "ssh")
    far = any(_named_host(wrapper) not in ("", *_HERE) for wrapper in by_ssh)
    if len(hosts) == 1 and not left and far:
        ((what, (address, numbers)),) = hosts.items()
        return (HostGroup("1", what, frozenset(numbers), frozenset(shared), address),)
    if len(hosts) < 2:
        taken = {number for _, numbers in hosts.values() for number in numbers}
        return _alternatives([p for p in processes if p.kind not in _ANYWHERE], shared, bool(taken))
    placed_at = ((what, numbers, address) for what, (address, numbers) in hosts.items())
    return _numbered_groups(placed_at, (*shared, *(process.number for process in left)))


def _numbered_groups(
    hosts: Iterable[tuple[str, Iterable[int], str]], shared: Iterable[int], **ends: bool
) -> tuple[HostGroup, ...]:
    """Return a group for each (host, numbers of its processes, address), named "1", "2" and so on.

    Args:
        shared: Numbers of processes that may run on each host.
        ends: The fields in_turn and killed.
    """
    anywhere = frozenset(shared)
    return tuple(
        HostGroup(str(place), what, frozenset(numbers), anywhere, address, **ends)
        for place, (what, numbers, address) in enumerate(hosts, start=1)
    )


def _never_together(processes: Sequence[LaunchProcess], shared: list[int]) -> tuple[HostGroup, ...]:
    """Return groups of pods such that no two pods of one group ask for the same hostPort.

    The scheduler never puts two such pods on one node (its plugin NodePorts). A pod that clashes
    with no other may run on each host, as may processes of ``shared``.

    Returns:
        () if no two pods clash.
    """
    taken: dict[str, set[Published]] = {}
    for process in processes:
        for port in process.command.published:
            if port.pod and isinstance(port.port, int):
                taken.setdefault(port.pod, set()).add(port)
    hosts: list[list[str]] = []
    clashing = {a: [b for b in taken if b != a and _clash(taken[a], taken[b])] for a in taken}
    for pod in (pod for pod, others in clashing.items() if others):
        free = next((host for host in hosts if not set(host) & set(clashing[pod])), None)
        if free is None:
            hosts.append(free := [])
        free.append(pod)
    apart = {pod for host in hosts for pod in host}
    pods = {process.number: pod_of(process.command) for process in processes}
    numbers_by_host = [[number for number, pod in pods.items() if pod in host] for host in hosts]
    named = (f"pod {' and '.join(host)}" for host in hosts)
    rest = (number for number, pod in pods.items() if pod not in apart)
    return _numbered_groups(
        ((what, of, "") for what, of in zip(named, numbers_by_host, strict=True)), (*shared, *rest)
    )


def _rounds(processes: Sequence[LaunchProcess], shared: list[int]) -> tuple[HostGroup, ...]:
    """Return a group for each round of a script that kills its servers and waits for their end.

    Servers that start behind the last kill are a round too. Processes of ``shared``, or that the
    script does not end, may run beside each round.

    Returns:
        () for fewer than two rounds, or if a round has no server.
    """
    ended = [p for p in processes if p.command.ended and p.kind not in _ANYWHERE]
    last = max((process.command.turn for process in ended), default=0)
    behind = [p for p in processes if p.command.turn > last and p.kind in _SERVERS]
    rounds: dict[int, list[LaunchProcess]] = {}
    for process in (*ended, *behind):
        rounds.setdefault(min(process.command.turn, last + 1), []).append(process)
    served = (any(p.kind in _SERVERS for p in round_) for round_ in rounds.values())
    if len(rounds) < 2 or not all(served):
        return ()
    numbers = {process.number for round_ in rounds.values() for process in round_}
    rest = (*shared, *(p.number for p in processes if p.number not in numbers))
    each = (
        (f"what {round_[0].command.origin} starts, round {place}", [p.number for p in round_], "")
        for place, round_ in enumerate(rounds.values(), start=1)
    )
    return _numbered_groups(each, rest, in_turn=True, killed=True)


def _clash(some: set[Published], others: set[Published]) -> bool:
    """Return whether two pods ask for one port of their node, on addresses that meet."""
    pairs = ((port, other) for port in some for other in others if port.port == other.port)
    return any(a.address == b.address or not (a.address and b.address) for a, b in pairs)


def _port(process: LaunchProcess) -> int:
    """Return the first port that an SGLang or vLLM server binds on its host.

    Returns:
        0 for any other process, for a port that is not known, and in a network of a container.
    """
    fixed = next(iter(ports(process)), None) if process.kind in _SERVERS else None
    if fixed is None or fixed.network or not isinstance(fixed.port, int):
        return 0
    return fixed.port


def _alternatives(
    processes: Sequence[LaunchProcess], shared: list[int], hosted: bool
) -> tuple[HostGroup, ...]:
    """Return a group for each of several servers in the foreground that never run together, as they
    want one port: the first that is wanted twice.

    Args:
        shared: Processes that may run beside each group.

    Returns:
        () if no port is wanted twice, or if some processes have a host (``hosted``).
    """
    by_port: dict[int, list[LaunchProcess]] = {}
    for process in processes:
        if process.command.waited and (port := _port(process)):
            by_port.setdefault(port, []).append(process)
    several = next((same_port for same_port in by_port.values() if len(same_port) > 1), [])
    numbers = {process.number for process in several}
    if not several or hosted:
        return ()
    rest = (*shared, *(p.number for p in processes if p.number not in numbers))
    origins = [process.command.origin for process in several]
    turns = (f", turn {n}" * (origins.count(at) > 1) for n, at in enumerate(origins, start=1))
    each = (
        (f"what {process.command.origin} starts{turn}", [process.number], "")
        for process, turn in zip(several, turns, strict=True)
    )
    return _numbered_groups(each, rest, in_turn=True)


class ForegroundServer(NamedTuple):
    """A server that blocks its script.

    Attributes:
        later: What the script starts only once it has ended.
    """

    first: LaunchProcess
    later: tuple[LaunchProcess, ...]

    @property
    def text(self) -> str:
        more = f" and {len(self.later) - 1} more" if len(self.later) > 1 else ""
        return (
            f"{self.later[0].name}{more} {'start' if more else 'starts'} only once "
            f"{self.first.name}, which runs in the foreground, has ended"
        )

    @property
    def shared_resources(self) -> str:
        """Return the resources that ``first`` and the next engine both take, in words: "the same
        GPUs", "port N", or both joined by "and".

        Returns:
            "" if they share nothing, or are not two engines in equal containers.
        """
        engines = [p for p in (self.first, self.later[0]) if p.kind in _SERVERS]
        if len(engines) < 2 or engines[0].command.container != engines[1].command.container:
            return ""
        shown = [each.command.environment.get("CUDA_VISIBLE_DEVICES") for each in engines]
        visible = ["" if word is None else word.text for word in shown]
        first = [0 if p.server is None else p.server.value("base_gpu_id") for p in engines]
        known = not any(isinstance(each, Unknown) for each in first)
        alike = known and visible[0] == visible[1] and first[0] == first[1]
        taken = ["the same GPUs"] * alike
        port = _port(engines[0])
        return " and ".join(taken + [f"port {port}"] * (port > 0 and port == _port(engines[1])))


def foreground_server(processes: Sequence[LaunchProcess]) -> ForegroundServer | None:
    """Return the first known program that blocks its script, with what the script starts behind it.

    Returns:
        None without one, or if the launch is for several hosts or kills its servers in rounds.
    """
    known = [process for process in processes if process.kind not in _ANYWHERE]
    groups = host_groups(processes)
    if groups and not (groups[0].in_turn and not groups[0].killed):
        return None
    for place, process in enumerate(known[:-1], start=1):
        command = process.command
        apart = command.place is not None or any(w[0] in _HOSTED for w in command.wrappers if w)
        source = command.origin.source
        behind = (each for each in known[place:] if each.command.origin.source == source)
        later = tuple(each for each in behind if not each.command.doubts)
        if command.waited and later and not apart and not command.doubts:
            return ForegroundServer(process, later)
    return None


def choose_group(
    processes: Sequence[LaunchProcess], option: str | None, root: Root
) -> GroupChoice | None:
    """Choose the host group that is checked on the host at ``root``.

    Args:
        option: Of ``--host-group``, a group's name, host or address. None takes the groups with an
            address of this host as one, else the first group with HiCache, else the first.

    Returns:
        None if the launch has none.

    Raises:
        UsageError: If no group is called so.
    """
    groups = host_groups(processes)
    if option is not None:
        for group in groups:
            if option in (group.name, group.what, group.address):
                return GroupChoice(group, "--host-group says so", groups)
        names = ", ".join(f"{group.name} ({group.what})" for group in groups)
        none = "this launch has none"
        raise UsageError(f"--host-group {option!r} is not a group of the launch: {names or none}")
    if not groups:
        return None
    name, table = root.text("/proc/sys/kernel/hostname"), root.text("/proc/net/fib_trie")
    own_names = [] if isinstance(table, Unknown) else _LOCAL_ADDRESS.findall(table)
    own_names += [] if isinstance(name, Unknown) else [name.strip(), name.strip().partition(".")[0]]
    mine = [group for group in groups if group.address and group.address in own_names]
    if mine:  # a host has several addresses
        together = frozenset(number for group in mine for number in group.only_here)
        group = mine[0]._replace(only_here=together)
        return GroupChoice(group, f"{mine[0].address} is this host's", groups)
    caching = {p.number for p in processes if p.server is not None and p.server.hicache}
    first = next((group for group in groups if caching & group.numbers), groups[0])
    which = "first with HiCache" if first.numbers & caching else "first"
    return GroupChoice(first, f"nothing says which host this is, and it is the {which}", groups)


def _host_of(process: LaunchProcess) -> tuple[str, str]:
    """Return a name for the host that a process is for, and the host's address; "" for each that is
    not known.
    """
    place = process.command.place
    if place is not None and place.kind == "job":
        job, host_name = place.name
        return f"a {host_name} node of job {job}", ""
    for wrapper in process.command.wrappers:
        # Each part of a heterogeneous job has nodes of its own (Slurm's page on them).
        if group := _HET_GROUP.fullmatch(" ".join(wrapper)):
            return f"het group {group[1]} of the job", ""
        named = _named_host(wrapper)
        if named:
            return f"host {named}", "" if named.startswith("$") else named
    server, consumer = process.server, process.consumer
    if server is not None and server.value("nnodes") != 1:
        rank = server.value("node_rank")
        flags = ("--dist-init-addr", "--nccl-init-addr")
        arguments = option_values([word.text for word in process.arguments])
        first = next((value for name, value in arguments if name in flags), "")
    elif consumer is not None and consumer.node is not None:
        rank, first = consumer.node, consumer.leader
    else:
        return "", ""
    if pod := pod_of(process.command):
        return f"pod {pod}", ""
    first = first or "its engine"
    if split_address(first).host in _HERE:
        return "", ""  # one host plays them all
    if isinstance(rank, Unknown):
        return "", ""  # one text for every host, which $NODE_RANK tells apart
    address = split_address(first).host if rank == 0 else _bound_address(process)
    return f"node rank {rank} of {first}", address if _is_host(address) else ""


def _named_host(wrapper: Sequence[str]) -> str:
    """Return the one host that ``ssh -p 22 user@host`` or ``srun -w host`` names; "" if not one."""
    program = wrapper[0].rpartition("/")[2] if wrapper else ""
    if program == "ssh":
        remote = remote_words(wrapper)
        return remote.hosts if remote is not None else ""
    if program not in _HOSTED:
        return ""
    value = next((value for name, value in option_values(wrapper[1:]) if name in _NODE_OPTIONS), "")
    # ${nodes[0]} is one host, whatever it is called; node[1-4] and a,b are several.
    return value if _VARIABLE.fullmatch(value) or not re.search(r"[,\[]", value) else ""


def _bound_address(process: LaunchProcess) -> str:
    """Return the IP address of its host that a process binds, or registers by.

    Returns:
        "" if none is written, if the address is loopback or 0.0.0.0, or in a network of a
        container.
    """
    if network_of(process.command):
        return ""
    server = process.server
    values = [] if server is None else [server.value("host")]
    client = process.kind is ProcessKind.CLIENT
    if client and (word := value_of(process.arguments, "host")) is not None:
        values.append(word.text)
    stores = server is not None and server.store is not None
    if stores or process.kind is ProcessKind.STORE_SERVICE:
        word = process.command.environment.get("MOONCAKE_LOCAL_HOSTNAME")
        values.append("" if word is None or word.unresolved else word.text)
    hosts = (split_address(value).host for value in values if isinstance(value, str))
    return next(filter(_is_host, hosts), "")


def _is_host(text: str) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return not (address.is_unspecified or address.is_loopback)

"""Compares what runs with what was predicted: a finding for each amount, and what explains it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from checks.framework.finding import Finding, Status, Subject, command
from checks.framework.needs import ProcessNeeds
from checks.framework.pages import Spot
from checks.framework.root import Root
from checks.framework.units import Quantity, counted, format_bytes, format_page_size
from checks.framework.unknown import Unknown
from checks.running_processes.processes import HeldMemory, Traffic, pages_by_size, read_traffic
from preflight.live_servers.running_launch import OF_ANYBODY, RunningServer
from preflight.live_servers.served_metrics import Metrics, has_clients_here, is_local, tier_findings
from preflight.processes.processes import ProcessKind

PAGES, NODE, LOCKED = "observe.huge-pages", "observe.numa-node", "observe.locked-memory"
TRANSPORT, FILES, POOL = "observe.transport", "observe.open-files", "observe.store-pool"
RELEASE, REGISTERED = "observe.release", "observe.registered"
# Of a limit, what counts as nearly used up.
NEARLY = 0.9
_NONE = "no huge pages"
_LOCKED = "what it registers or locks next is refused (ENOMEM)"
_MORE = "Another library in the same process, or a release that is read otherwise."
_OPEN = "the next connection or file is refused (EMFILE)"
MOST_FILES = "1048576"  # fs.nr_open of a kernel that nobody set: no limit may be higher


def findings(
    servers: tuple[RunningServer, ...],
    served: Mapping[int, Metrics | Unknown] = MappingProxyType({}),
) -> Iterator[tuple[RunningServer, Finding]]:
    """Yield (program, finding) for each amount that a program holds, compared with the prediction.

    Args:
        served: Metrics by pid; without an entry, a program serves none. Kinds in ``OF_ANYBODY`` are
            left out, as nothing is predicted for these.
    """
    for server in servers:
        if server.program in OF_ANYBODY:
            continue  # nothing of it is predicted
        metrics = served.get(server.pid)
        tiers = () if metrics is None else tier_findings(server, metrics)
        for finding in (*_of_server(server), *_store_pool(server, servers, metrics), *tiers):
            yield server, finding


def _of_server(server: RunningServer) -> Iterator[Finding]:
    """Yield a program's findings; only an unknown one if the memory of a process is unreadable."""
    subject = Subject(server.name, "process")
    memories = []
    for holding in server.holdings:
        if isinstance(holding.memory, Unknown):
            unread = Finding(PAGES, Status.PASS, subject)
            why = f"pid {holding.pid}: {holding.memory.reason}"
            yield unread.undecided(why, advice="Ask as root, or as the user who runs it.")
            return
        memories.append(holding.memory)
    yield from _huge_pages(server, subject, tuple(memories))
    yield from _limits(server, subject)
    if server.replaced:
        text = f"{server.replaced[0]} was replaced after its start: it runs the one before"
        advice = "Its release is not the installed one, by which it is judged here: start it anew."
        yield Finding(RELEASE, Status.PASS, subject).warned(text, advice)
    if not isinstance(server.needs, Unknown) and server.needs.rdma_processes:
        yield from _transport(server, server.needs.rdma_processes, subject)


def _huge_pages(
    server: RunningServer, subject: Subject, memories: tuple[HeldMemory, ...]
) -> Iterator[Finding]:
    """Compare the huge pages that a program holds with those predicted: a finding for each page
    size, unknown if nothing can be predicted.

    If the counts agree, the NUMA nodes are judged.
    """
    predicted = server.predicted_pages
    mapped, on_node = pages_by_size(memories)
    if isinstance(predicted, Unknown):
        texts = [_pages(size, count) for size, count in sorted(mapped.items())]
        yield Finding(PAGES, Status.PASS, subject, ", ".join(texts) or _NONE).undecided(predicted)
        return
    wanted: Counter[int] = Counter()
    for spot, count in predicted.items():
        wanted[spot.page_size_bytes] += count
    if not mapped and not wanted:
        yield Finding(PAGES, Status.PASS, subject, _NONE, _NONE)
    for size in sorted({*mapped, *wanted}):
        have, need = mapped.get(size, 0), wanted[size]
        finding = Finding(PAGES, Status.PASS, subject, _pages(size, have), _pages(size, need))
        if have == need:
            yield finding
            yield from node_findings(subject, size, on_node, predicted)
        elif have > need:
            more = f"{format_bytes((have - need) * size)} more than its command line asks for"
            yield finding.warned(more, _MORE)
        else:
            missing = format_bytes((need - have) * size)
            regular = sum(memory.regular_bytes for memory in memories)
            instead = next((other for other in mapped if mapped[other] > wanted[other]), None)
            if instead is not None:
                text = f"{missing} of it lies on pages of {format_page_size(instead)}"
            elif regular >= (need - have) * size:
                text = (
                    f"{missing} are not on huge pages: it went on with regular ones, of which it "
                    f"holds {format_bytes(regular)}"
                )
            else:
                text = f"{missing} are not mapped: it has not set up all of it, or has given it up"
            text += _why_too_few(server, size, have, need)
            yield finding.warned(
                text, "Compare with check of the same launch; pages are taken at a start alone."
            )


def _why_too_few(server: RunningServer, size: int, have: int, need: int) -> str:
    """Return a clause on why the host cannot give ``need`` pages of ``size`` bytes; "" if it can by
    now, or if that is not known.

    Args:
        have: The pages that the program holds.
    """
    assert not isinstance(server.sizing, Unknown)
    shown = server.sizing.shown
    of_host = None if shown is None else shown.host.hugetlb.pool(size)
    if of_host is None or isinstance(of_host, Unknown):
        return ""
    others, total = of_host.held_pages - have, of_host.total_pages
    if total < need:
        return f"; the host has {total} such pages in all"
    return f"; others hold {others} of the host's {total}" if total - others < need else ""


def node_findings(
    subject: Subject,
    size: int,
    on_node: Mapping[tuple[int, int], int],
    predicted: Mapping[Spot, int],
) -> Iterator[Finding]:
    """Judge for each NUMA node whether more pages of one size lie on it than are bound to it.

    Args:
        size: Of a page, in bytes.
        on_node: The pages that were touched, by page size and node. Yields nothing if the
            prediction binds the pages to no node.
    """
    bound = {spot.node: n for spot, n in predicted.items() if spot.page_size_bytes == size}
    if None in bound or not bound:
        return  # any node may give them
    on_nodes = {number: count for (of_size, number), count in on_node.items() if of_size == size}
    for number, count in sorted(on_nodes.items()):
        need = bound.get(number, 0)
        at = Subject(f"{subject}, node {number}", "process")
        finding = Finding(NODE, Status.PASS, at, _pages(size, count), _pages(size, need))
        far = f"{format_bytes((count - need) * size)} lie on a node that it is not bound to"
        yield finding if count <= need else finding.warned(far, "See check: numa, topology.")


def _limits(server: RunningServer, subject: Subject) -> Iterator[Finding]:
    """Yield a warning for each process near (above 90 % of) its limit of locked memory or open
    files.

    A limit that is not near, or cannot be read, gives no finding.
    """
    for holding in server.holdings:
        whose = subject if holding.pid == server.pid else Subject(f"pid {holding.pid}", "process")
        memory, files = holding.memory, holding.files
        locked = memory if isinstance(memory, Unknown) else format_bytes(memory.charged_bytes)
        number = files if isinstance(files, Unknown) else _files(files.number)
        for check, have, limit, amount, option, most, text in (
            (LOCKED, locked, holding.memlock, format_bytes, "memlock", "unlimited", _LOCKED),
            (FILES, number, holding.open_files, _files, "nofile", MOST_FILES, _OPEN),
        ):
            if isinstance(have, Unknown) or isinstance(limit, Unknown):
                continue  # said of its huge pages
            if limit.soft is None or (have.value or 0) <= NEARLY * limit.soft:
                continue
            raised = limit.hard is None or limit.hard > limit.soft
            bound = str(limit.hard) if raised and limit.hard is not None else most
            prlimit = ("prlimit", f"--pid={holding.pid}", f"--{option}={bound}")
            finding = Finding(check, Status.PASS, whose, have, amount(limit.soft))
            advice = "Raise the limit of what runs, without a restart."
            yield finding.warned(text, advice, (command(*prlimit, as_root=not raised),))


def _transport(
    server: RunningServer, processes: Sequence[ProcessNeeds], subject: Subject
) -> Iterator[Finding]:
    """Judge whether a program that should use RDMA has RDMA devices open; if so, also its
    registered memory.

    Args:
        processes: Those of the launch that use RDMA.
    """
    opened: list[tuple[str, ...]] = []
    for holding in server.holdings:
        if isinstance(holding.files, Unknown):
            why = f"pid {holding.pid}: {holding.files.reason}"
            yield Finding(TRANSPORT, Status.PASS, subject).undecided(why)
            return
        opened.append(holding.files.verbs_devices)
    devices = ", ".join(sorted({device for files in opened for device in files}))
    finding = Finding(TRANSPORT, Status.PASS, subject, devices or "TCP", "RDMA")
    if devices:
        yield finding
        yield from _registered(server, processes, subject, max(map(len, opened)))
    else:
        text = "no process of it has an RDMA device open: everything goes over TCP"
        yield finding.warned(text, "See what check says of rdma for this launch.")


def _registered(
    server: RunningServer, processes: Sequence[ProcessNeeds], subject: Subject, devices: int
) -> Iterator[Finding]:
    """Compare the memory that a program has registered with what its processes need, by device.

    If the kernel does not tell registrations, pinned memory is compared. More than needed is a
    warning only for mooncake_client and the store service.

    Args:
        devices: The most of one process.
    """
    finding, seen = Finding(REGISTERED, Status.PASS, subject), server.registered
    if isinstance(seen, Unknown):
        memories = [holding.memory for holding in server.holdings]
        pinned = sum(m.pinned_bytes for m in memories if not isinstance(m, Unknown))
        rows = [("", pinned, devices, f"pinned on {devices} devices ({seen.reason})")]
    else:
        text = "in {0.regions} regions on {0.device}, {0.queue_pairs} queue pairs"
        rows = [(each.device, each.bytes, 1, text.format(each)) for each in seen]
    if not rows:
        yield finding.undecided("the kernel lists nothing that its processes hold of a device")
    # Engines register more than is counted here: GPU memory, the buffers of NCCL and NVSHMEM.
    alone = server.program in (ProcessKind.CLIENT, ProcessKind.STORE_SERVICE)
    for device, have, times, text in rows:
        sizes = [each.registered_bytes for each in processes if _uses(each, device)]
        if unknown := [size for size in sizes if isinstance(size, Unknown)]:
            yield finding.undecided(unknown[0])
            continue
        need = sum(size for size in sizes if not isinstance(size, Unknown)) * times
        row = finding._replace(have=format_bytes(have, f"{{}} {text}"), need=format_bytes(need))
        if have < need:
            text = f"{format_bytes(need - have)} of what it moves are not registered"
            row = row.warned(text, "See 'Failed to register memory' in its log, with the reason.")
        elif have > need and alone and device:
            text = f"{format_bytes(have - need)} more than its command line asks for"
            row = row.warned(text, _MORE)
        yield row


def _uses(process: ProcessNeeds, device: str) -> bool:
    """Tell whether a process registers with ``device`` ("": any).

    Returns:
        True if its launch names none.
    """
    names = () if process.rdma is None else process.rdma.devices
    return not device or isinstance(names, Unknown) or not names or device in names


def _store_pool(
    master: RunningServer, servers: tuple[RunningServer, ...], metrics: Metrics | Unknown | None
) -> Iterator[Finding]:
    """Judge whether a master has the segments of all clients that run here, under different names,
    and no other segments of this host.

    If none of the known programs is its client, a connection to it shows that another one is.
    Nothing for other programs.

    Returns:
        Unknown without its metrics, or if the size of a segment is unknown.
    """
    if master.program is not ProcessKind.MASTER or isinstance(master.needs, Unknown):
        return
    finding = Finding(POOL, Status.PASS, Subject(master.name, "process"))
    if metrics is None or isinstance(metrics, Unknown):
        yield finding.undecided("its metrics port is not known" if metrics is None else metrics)
        return
    rpc = next((port.port for port in master.needs.ports if port.what == "RPC port"), None)
    segments = metrics.segments
    joined = [server for server in servers if _joins(server, rpc)]
    sizes = [server.segment_bytes for server in joined]
    need, have = sum(size for size in sizes if isinstance(size, int)), sum(segments.values())
    finding = finding._replace(
        have=format_bytes(have, f"{{}} in {len(segments)} segments"),
        need=format_bytes(need, f"{{}} of {len(joined)} programs here"),
    )
    names = Counter(name for server in joined for name in _fixed_names(server))
    name, number = max(names.items(), key=lambda item: item[1], default=("", 0))
    local = [each for each in segments if is_local(each.rpartition(":")[0])]
    more = sum(segments[name] for name in local) - need
    if any(isinstance(size, Unknown) for size in sizes):
        finding = finding.undecided("the segment of one of its clients here is not known")
    elif number > 1:
        text = f"{number} programs here are {name}: peers find the one that joined last alone"
        finding = finding.warned(text, "Give each a local_hostname with a port of its own.")
    elif have < need:
        text = f"{format_bytes(need - have)} of what runs here are not in the pool"
        advice = "Read the log of the client that is missing: its mount failed."
        finding = finding.warned(text, advice)
    elif more > 0 and not joined and isinstance(clients := has_clients_here(rpc), Unknown):
        finding = finding.undecided(clients.of("whose segments of this host these are: "))
    elif more > 0 and (joined or not clients):
        text = (
            f"{format_bytes(more)} of this host's segments ({', '.join(local)}) "
            "belong to no program that is seen here: reading the keys of one that is gone fails"
        )
        advice = "The master drops it after client_ttl. "
        advice += "A client in a container is seen from the host alone."
        finding = finding.warned(text, advice)
    yield finding


def _joins(server: RunningServer, port: int | Unknown | None) -> bool:
    """Tell whether a program joins the master whose RPC port on this host is ``port``."""
    if isinstance(server.needs, Unknown):
        return False
    return any(
        service.kind == "master"
        and service.port == port
        and isinstance(service.host, str)
        and is_local(service.host)
        for service in server.needs.services
    )


def _fixed_names(server: RunningServer) -> Iterator[str]:
    """Yield the HOST:PORT under which each store of a program is known to a metadata server.

    A store has none with P2PHANDSHAKE, or without a port in its hostname.
    """
    processes = () if isinstance(server.sizing, Unknown) else server.sizing.inputs.processes
    for store in (store for process in processes for store in process.stores):
        named = isinstance(store.hostname, str) and ":" in store.hostname
        if named and store.metadata != "P2PHANDSHAKE":
            yield str(store.hostname)


def _pages(size: int, count: int) -> Quantity:
    return counted(count, "pages", f"{{}} of {format_page_size(size)}")


_files = partial(counted, unit="files")


GPU, TRAFFIC = "observe.gpu-memory", "observe.traffic"
GPUS = "/proc/driver/nvidia/gpus"


def gpu_findings(
    servers: Sequence[RunningServer], root: Root
) -> Iterator[tuple[RunningServer, Finding]]:
    """Compare the GPU memory that each server holds with its static share, on each GPU that it
    uses.

    Less is a warning if other processes explain it, else a skip (weights may still be loading);
    more is a pass. Servers without a known share are left out. Nothing without an NVIDIA driver.
    """
    driver = root.names(GPUS)
    if isinstance(driver, Unknown) and driver.absent:
        return
    shares = [(server, share) for server in servers if (share := _share(server)) is not None]
    gpus = root.call("gpus.held") if shares else ()
    for server, share in shares:
        finding = Finding(GPU, Status.PASS, Subject(server.name, "process"))
        if isinstance(gpus, Unknown):
            yield server, finding.undecided(gpus)
            continue
        pids = {str(holding.pid) for holding in server.holdings}
        for index, gpu in enumerate(gpus):
            sizes = [size for pid, size in gpu["processes"].items() if pid in pids]
            if not sizes:
                continue
            if None in gpu["processes"].values():
                yield server, finding.undecided(f"the driver does not tell who holds GPU {index}")
                continue
            size, need = sum(sizes), int(share * gpu["total_bytes"])
            others = sum(gpu["processes"].values()) - size
            have = format_bytes(size, f"{{}} of GPU {index}")
            row = finding._replace(have=have, need=format_bytes(need, f"{{}} ({share:g} of it)"))
            if size < need <= size + others:
                text = f"others hold {format_bytes(others)} of GPU {index}"
                row = row.warned(text, "nvidia-smi names them; its KV cache is smaller.")
            elif size < need:
                row = row.skipped("it has not taken all of its share, or not yet")
            yield server, row


def _share(server: RunningServer) -> float | None:
    """Return the fraction of each GPU that a server takes; None without a share, or if unknown."""
    if isinstance(server.needs, Unknown):
        return None
    shares = (process.gpu_share for process in server.needs.processes)
    return next((share.fraction for share in shares if share and share.fraction), None)


def traffic_findings(
    servers: Sequence[RunningServer], root: Root, seconds: float, wait: Callable[[float], None]
) -> Iterator[tuple[RunningServer, Finding]]:
    """Yield the bytes per second through each port that a program uses, over ``seconds``.

    Counters are of the port: of all programs that use it. An interface on which nothing moves is
    left out, a port of an RDMA device is not.

    Args:
        wait: Sleeps for a number of seconds.
    """
    earlier = [_traffic(server, root) for server in servers]
    wait(seconds)
    for server, before in zip(servers, earlier, strict=True):
        after = _traffic(server, root)
        finding = Finding(TRAFFIC, Status.PASS, Subject(server.name, "process"))
        if isinstance(before, Unknown) or isinstance(after, Unknown):
            why = before if isinstance(before, Unknown) else after
            yield server, finding.undecided(why if isinstance(why, Unknown) else "")
            continue
        for port, last in after.items():
            first = before.get(port)
            if isinstance(last, Unknown):
                yield server, finding.skipped(f"{port}: {last.reason}")
            elif isinstance(first, Traffic) and (last != first or port.startswith("rdma")):
                pairs = zip(first, last, strict=True)
                inward, outward = (int(max(0, now - then) / seconds) for then, now in pairs)
                text = f"{port}: {format_bytes(inward)}/s in, {format_bytes(outward)}/s out"
                have = Quantity(text, inward + outward, "bytes/s")
                yield server, finding._replace(have=have)


def _traffic(server: RunningServer, root: Root) -> dict[str, Traffic | Unknown] | Unknown:
    opened = [h.files for h in server.holdings if not isinstance(h.files, Unknown)]
    devices = sorted({device for files in opened for device in files.verbs_devices})
    return read_traffic(root, server.pid, devices)

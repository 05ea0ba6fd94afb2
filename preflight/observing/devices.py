"""What programs hold of GPUs, and what goes through the ports that they use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from checks.base.finding import Finding, Status, Subject
from checks.base.root import Root
from checks.base.units import Quantity, format_bytes
from checks.base.unknown import Unknown
from checks.running.processes import Traffic, read_traffic
from preflight.observing.running_launch import RunningServer

GPU, TRAFFIC = "observe.gpu-memory", "observe.traffic"
GPUS = "/proc/driver/nvidia/gpus"


def gpu_findings(
    servers: Sequence[RunningServer], root: Root
) -> Iterator[tuple[RunningServer, Finding]]:
    """Yield what each server holds of each GPU, beside its static share of it.

    The share is taken once weights and KV cache are there; what CUDA needs comes on top. Less is
    judged only if other processes of the GPU explain it.
    """
    driver = root.names(GPUS)
    if isinstance(driver, Unknown) and driver.absent:
        return
    shares = [(server, share) for server in servers if (share := _share(server)) is not None]
    gpus = root.call("gpus.held") if shares else ()
    for server, share in shares:
        finding = Finding(GPU, Status.PASS, Subject(server.name, "process"))
        if isinstance(gpus, Unknown):
            yield server, finding.unknown(gpus)
            continue
        pids = {str(holding.pid) for holding in server.holdings}
        for index, gpu in enumerate(gpus):
            sizes = [size for pid, size in gpu["processes"].items() if pid in pids]
            if not sizes:
                continue
            if None in gpu["processes"].values():
                yield server, finding.unknown(f"the driver does not tell who holds GPU {index}")
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
    """Return the part of each GPU that a server is told to take; None if it takes none."""
    if isinstance(server.needs, Unknown):
        return None
    shares = (process.gpu_share for process in server.needs.processes)
    return next((share.fraction for share in shares if share and share.fraction), None)


def traffic_findings(
    servers: Sequence[RunningServer], root: Root, seconds: float, wait: Callable[[float], None]
) -> Iterator[tuple[RunningServer, Finding]]:
    """Yield what goes through the ports that each program uses, in ``seconds``.

    Counters are of the port: of all programs that use it. An interface on which nothing moves is
    left out, a port of an RDMA device is not.
    """
    earlier = [_traffic(server, root) for server in servers]
    wait(seconds)
    for server, before in zip(servers, earlier, strict=True):
        after = _traffic(server, root)
        finding = Finding(TRAFFIC, Status.PASS, Subject(server.name, "process"))
        if isinstance(before, Unknown) or isinstance(after, Unknown):
            why = before if isinstance(before, Unknown) else after
            yield server, finding.unknown(why if isinstance(why, Unknown) else "")
            continue
        for port, counted in after.items():
            first = before.get(port)
            if isinstance(counted, Unknown):
                yield server, finding.skipped(f"{port}: {counted.reason}")
            elif isinstance(first, Traffic) and (counted != first or port.startswith("rdma")):
                pairs = zip(first, counted, strict=True)
                inward, outward = (int(max(0, now - then) / seconds) for then, now in pairs)
                text = f"{port}: {format_bytes(inward)}/s in, {format_bytes(outward)}/s out"
                have = Quantity(text, inward + outward, "bytes/s")
                yield server, finding._replace(have=have)


def _traffic(server: RunningServer, root: Root) -> dict[str, Traffic | Unknown] | Unknown:
    opened = [h.files for h in server.holdings if not isinstance(h.files, Unknown)]
    devices = sorted({device for files in opened for device in files.verbs_devices})
    return read_traffic(root, server.pid, devices)

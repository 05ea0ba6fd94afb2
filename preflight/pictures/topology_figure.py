"""A host's devices for a page: a box for each NUMA node, the nearest NICs, the whole matrix."""

from __future__ import annotations

from collections.abc import Sequence

from checks.base.units import format_bytes
from preflight.check.report import fold
from preflight.render.html_page import Html, element, join, table
from preflight.topology.answer import Topology, TopologyDevice

# As nvidia-smi topo -m calls them, the nearest first.
LEVELS = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the CPU's PCIe host bridge",
    "NODE": "several host bridges of one NUMA node",
    "SYS": "the link between NUMA nodes",
}
# One box, in its own units; it is shown as wide as a phone.
_WIDTH, _GPU, _NIC, _ROW, _BOX = 340, 146, 146, 46, 38
# A line of text in a box: so many characters fit.
_LETTERS = 22


def topology_figure(topology: Topology) -> Html:
    """Draw boxes, the key of the lines, the devices, and the matrix as a table."""
    groups: list[tuple[str, int | None]] = [(f"node {x.node}", x.node) for x in topology.nodes]
    if any(_box_of(topology, device) is None for device in (*topology.gpus, *topology.nics)):
        groups.append(("on no known node", None))
    boxes = [_node(topology, name, numa_node) for name, numa_node in groups]
    parts = [element("div", *boxes, class_="nodes"), _key(topology)]
    return join([*parts, _devices(topology), _matrix(topology)], "\n")


def _box_of(topology: Topology, device: TopologyDevice) -> int | None:
    """Return the node whose box a device stands in; None if that node is not shown."""
    shown = any(numa_node.node == device.node for numa_node in topology.nodes)
    return device.node if shown and isinstance(device.node, int) else None


def nearest(topology: Topology, gpu: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the nearest level of a GPU's paths, and the NICs at that level.

    None if no path is known.
    """
    paths = {nic: path for (its, nic), path in topology.paths.items() if its == gpu}
    known = [path for path in paths.values() if isinstance(path, str)]
    for level in (level for level in LEVELS if level in known):
        return level, tuple(nic for nic, path in paths.items() if path == level)
    return None


def _node(topology: Topology, name: str, numa_node: int | None) -> Html:
    """Draw the box of one NUMA node: its GPUs, its NICs, and lines to the nearest."""
    gpus = [gpu for gpu in topology.gpus if _box_of(topology, gpu) == numa_node]
    nics = [nic for nic in topology.nics if _box_of(topology, nic) == numa_node]
    about = [name]
    for each in topology.nodes:
        if each.node == numa_node:
            about += [f"CPUs {each.cpus}"] if each.cpus else []
            if isinstance(each.memory_bytes, int):
                about.append(format_bytes(each.memory_bytes))
    rows = max(len(gpus), len(nics))
    caption = element("figcaption", ", ".join(about))
    if not rows:
        return element("figure", caption, element("p", "No GPU and no NIC", class_="small"))
    shapes, sentences = _lines(topology, gpus, nics)
    for devices, left, width in ((gpus, 0, _GPU), (nics, _WIDTH - _NIC, _NIC)):
        for at, device in enumerate(devices):
            shapes.append(_device(device, left, _top(at, len(devices), rows), width))
    names = ", ".join(device.name for device in (*gpus, *nics))
    # The parser of HTML gives viewBox its capital back.
    size = {"viewBox": f"0 0 {_WIDTH} {rows * _ROW}", "width": "100%"}
    label = f"{name}: {names}. {'; '.join(sentences)}"
    return element("figure", caption, element("svg", *shapes, **size, role="img", aria_label=label))


def _top(at: int, count: int, rows: int) -> float:
    """Return the upper edge of a box, of devices that are spread evenly over more rows."""
    return (at + 0.5) * rows * _ROW / count - _BOX / 2


def _lines(
    topology: Topology, gpus: Sequence[TopologyDevice], nics: Sequence[TopologyDevice]
) -> tuple[list[Html], list[str]]:
    """Draw lines from each GPU to its nearest NICs in this box, and say the same in words."""
    rows = max(len(gpus), len(nics))
    lines, sentences = [], []
    for at, gpu in enumerate(gpus):
        best = nearest(topology, gpu.name)
        if best is None:
            continue
        level, names = best
        sentences.append(f"{gpu.name} to {', '.join(names)}: {level}")
        y1 = f"{_top(at, len(gpus), rows) + _BOX / 2:g}"
        for to, nic in enumerate(nics):
            if nic.name in names:
                y2 = f"{_top(to, len(nics), rows) + _BOX / 2:g}"
                kind = f"path {level.lower()}"
                lines.append(element("line", x1=_GPU, y1=y1, x2=_WIDTH - _NIC, y2=y2, class_=kind))
    return lines, sentences


def _device(device: TopologyDevice, left: float, top: float, width: int) -> Html:
    """Draw one device as a box with its name."""
    used = f", used by {fold(device.used_by)}" if device.used_by else ""
    address = f", {device.address}" if device.address else ""
    kind = f"device {device.kind}{' taken' if device.used_by else ''}"
    box = {"x": left + 1, "y": top, "width": width - 2, "height": _BOX, "rx": 5}
    return element(
        "g",
        element("title", f"{device.name}: {device.what}{address}{used}"),
        element("rect", **box, class_=kind),
        element("text", _short(device.name), x=left + 9, y=top + 16, class_="name"),
        element("text", _short(device.what), x=left + 9, y=top + 30, class_="what"),
    )


def _short(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"


def _key(topology: Topology) -> Html:
    """Explain the lines that are drawn, and name GPUs whose nearest NIC is in another box."""
    drawn, far = set(), []
    for gpu in topology.gpus:
        best = nearest(topology, gpu.name)
        if best is None:
            continue
        level, names = best
        drawn.add(level)
        here = [nic for nic in topology.nics if nic.name in names]
        if all(_box_of(topology, nic) != _box_of(topology, gpu) for nic in here):
            far.append(f"{gpu.name}: its nearest NIC ({', '.join(names)}) is not on its node")
    items = []
    for level in (level for level in LEVELS if level in drawn):
        line = element("line", x1="0", y1="6", x2="34", y2="6", class_=f"path {level.lower()}")
        size = {"width": "34", "height": "12", "aria_hidden": "true"}
        sample = element("svg", line, class_="sample", **size)
        items.append(element("li", sample, f" {level}: through {LEVELS[level]}"))
    if any(device.used_by for device in (*topology.gpus, *topology.nics)):
        items.append(element("li", "Thick border: used by the launch"))
    parts = [element("ul", *items, class_="key")] if items else []
    return join([*parts, *(element("p", text) for text in far)], "\n")


def _devices(topology: Topology) -> Html:
    """Return the table of all GPUs and NICs."""
    rows = [
        (
            device.name,
            device.what,
            device.address or "none",
            str(device.node) if isinstance(device.node, int) else "unknown",
            fold(device.used_by) if device.used_by else "",
        )
        for device in (*topology.gpus, *topology.nics)
    ]
    if not rows:
        return element("p", "No GPU and no RDMA device is seen here")
    heads = ["device", "what", "PCI address", "node", "used by"]
    whole = table(heads, rows, caption="GPUs and NICs")
    return element("details", element("summary", f"{len(rows)} GPUs and NICs"), whole)


def _matrix(topology: Topology) -> Html:
    """Return the table of the paths between each GPU and each NIC."""
    if not topology.gpus or not topology.nics:
        return Html("")
    rows = []
    for gpu in topology.gpus:
        paths = [topology.paths.get((gpu.name, nic.name)) for nic in topology.nics]
        rows.append([gpu.name, *(path if isinstance(path, str) else "unknown" for path in paths)])
    caption = "How each GPU reaches each NIC"
    whole = table(["GPU", *(nic.name for nic in topology.nics)], rows, caption=caption)
    return element("details", element("summary", caption), whole)

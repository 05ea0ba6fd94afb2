"""What processes have registered with RDMA devices, as the kernel's netlink lists it."""

from typing import NamedTuple

from checks.base.root import Root
from checks.base.unknown import Unknown, known, or_unknown


class Registered(NamedTuple):
    """What the processes of one program hold of one device."""

    device: str
    bytes: int
    regions: int
    queue_pairs: int


@or_unknown
def read_registered(root: Root, pids: tuple[int, ...]) -> tuple[Registered, ...] | Unknown:
    """Return the objects that ``pids`` together hold of each device, for devices with any.

    The kernel lists the processes of this program's own pid namespace alone: from the host those
    in a container are Unknown.
    """
    for pid in pids:
        status = known(root.text(f"/proc/{pid}/status"))
        numbers = next((x for x in status.splitlines() if x.startswith("NSpid:")), "").split()
        if len(numbers) > 2:
            return Unknown(f"pid {pid} is in a container: the kernel lists its regions in there")
    answer = known(root.call("rdma.held"))
    devices = []
    for device, processes in answer.items():
        held = [processes[str(pid)] for pid in pids if str(pid) in processes]
        if held:
            sums = (sum(each.get(name, 0) for each in held) for name in ("mr_bytes", "mr", "qp"))
            devices.append(Registered(device, *sums))
    return tuple(devices)

"""The process that registers: whatever ends it, the kernel takes back all that it held.

It is a fork of the command, dies with it, and sends events through a pipe. It touches nothing that
another process shares, and asks to be the first to be killed if memory runs out.

It finds how much can be registered with few registrations: sizes double, then the gap is halved.
What was registered stays registered, so a step costs one registration, and the sum grows as fast as
the sizes do. If N regions fit, log2(N) + 1 registrations reach the limit and log2(N) more find
it to the region; a length that one registration may not exceed adds what holding the sum takes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from checks.framework.root import Root
from checks.framework.units import MIB, format_bytes, format_page_size, round_up
from checks.framework.unknown import Unknown
from checks.numa.nodes import read_meminfo, read_process_sizes
from checks.rdma.device_table import BASE_PAGE_BYTES
from checks.rdma.libibverbs import open_device
from checks.rdma.verbs import read_cgroups
from preflight.benchmark.probes.limits import (
    SPEND,
    CgroupUse,
    LimitMet,
    RegistrationRefusal,
    limit_met,
    use_of,
)
from preflight.benchmark.rehearsal.child import prepare_process
from preflight.benchmark.rehearsal.run import MemoryWatch

# linux/memfd.h: MFD_HUGETLB, and where the page size's power of two stands.
_MFD_CLOEXEC, _MFD_HUGETLB, _SIZE_SHIFT = 1, 4, 26
_PROT_NONE, _PROT_READ_WRITE = 0, 3
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED = 1, 2, 0x10
_MAP_ANONYMOUS, _MAP_NORESERVE = 0x20, 0x4000
_FAILED = ctypes.c_void_p(-1).value

# struct scatterlist, one for each run of pages that do not lie together (mm.h: 32 bytes).
LIST_BYTES_PER_PAGE = 32
# What drivers keep for each page that they translate: rxe 16 bytes, erdma and others 8.
DRIVER_BYTES_PER_PAGE = 16
# A page table entry of the range itself.
TABLE_BYTES_PER_PAGE = 8
# vm.max_map_count is 65530 unless set: each showing of the buffer is a mapping.
MOST_SHOWINGS = 30_000
LARGEST_BUFFER_BYTES = 32 * MIB


class Layout(NamedTuple):
    """The address range that is registered, and the buffer behind it.

    Attributes:
        range_bytes: The length of the range, and so the longest registration.
        buffer_bytes: The memory that backs the range, mapped into it again and again.
    """

    page_bytes: int
    range_bytes: int
    buffer_bytes: int

    def spent_bytes(self, registered_bytes: int, soft: bool) -> int:
        """Return the host memory in bytes that ``registered_bytes``, over all devices, takes.

        That is the buffer, the range's page tables, and what the kernel and the driver keep.

        Args:
            soft: A device in software, which keeps a list of base pages whatever backs them.
        """
        driver_page = BASE_PAGE_BYTES if soft else self.page_bytes
        return (
            self.buffer_bytes
            + self.range_bytes // self.page_bytes * TABLE_BYTES_PER_PAGE
            + registered_bytes // self.page_bytes * LIST_BYTES_PER_PAGE
            + registered_bytes // driver_page * DRIVER_BYTES_PER_PAGE
        )


def plan_layout(page_bytes: int, region_bytes: int, longest_bytes: int, spend_bytes: int) -> Layout:
    """Plan the range to register, of ``longest_bytes``, and the buffer behind it.

    The range is shorter if its page tables would take over an eighth of ``spend_bytes``. A driver
    takes the largest page that fits a whole region. So memory that happens to lie together would be
    measured on pages larger than ``page_bytes``. The buffer is therefore an odd number of pages,
    mapped more than once into every region: a larger page does not fit.
    """
    buffer = round_up(min(LARGEST_BUFFER_BYTES, spend_bytes // 8, longest_bytes), page_bytes)
    buffer = min(buffer, max(page_bytes, region_bytes // 2 // page_bytes * page_bytes))
    tables = max(spend_bytes // 8, TABLE_BYTES_PER_PAGE)
    length = min(longest_bytes, tables // TABLE_BYTES_PER_PAGE * page_bytes)
    length = max(page_bytes, length - length % page_bytes)
    buffer = max(buffer, round_up(-(-length // MOST_SHOWINGS), page_bytes))
    pages = min(buffer, length) // page_bytes
    if pages % 2 == 0:
        # One page less is still enough showings, unless that is what the number came from.
        pages += 1 if length // page_bytes > (pages - 1) * MOST_SHOWINGS else -1
    return Layout(page_bytes, length, min(pages * page_bytes, length))


def map_range(layout: Layout) -> int:
    """Map the range, filled with the buffer over and over, and return its address.

    It stays mapped while the process lives.

    Raises:
        OSError: If memory or huge pages are missing.
    """
    descriptor = _buffer(layout)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    # Addresses alone, with room to begin on a page of any size.
    flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE
    start = _map(libc, None, layout.range_bytes + layout.page_bytes, _PROT_NONE, flags, -1)
    start = round_up(start, layout.page_bytes)
    for offset in range(0, layout.range_bytes, layout.buffer_bytes):
        length = min(layout.buffer_bytes, layout.range_bytes - offset)
        flags = _MAP_SHARED | _MAP_FIXED
        _map(libc, start + offset, length, _PROT_READ_WRITE, flags, descriptor)
    os.close(descriptor)
    return start


def _buffer(layout: Layout) -> int:
    """Create the buffer as a file in memory, with all its pages, and return the descriptor.

    Raises:
        OSError: If memory or huge pages are missing, so that no signal comes later.
    """
    page, flags = layout.page_bytes, _MFD_CLOEXEC
    huge = page > os.sysconf("SC_PAGE_SIZE")
    if huge:
        flags |= _MFD_HUGETLB | (page.bit_length() - 1) << _SIZE_SHIFT
    try:
        descriptor = os.memfd_create("mooncake-preflight", flags)
        os.ftruncate(descriptor, layout.buffer_bytes)
        os.posix_fallocate(descriptor, 0, layout.buffer_bytes)
    except OSError as error:
        pages = layout.buffer_bytes // page
        what = f"{pages} free page{'s' if pages > 1 else ''} of {format_page_size(page)}"
        if not huge:
            what = format_bytes(layout.buffer_bytes)
        raise OSError(error.errno, f"the buffer takes {what}: {error.strerror}") from None
    return descriptor


def _map(
    libc: ctypes.CDLL, address: int | None, length: int, protection: int, flags: int, file: int
) -> int:
    """Call mmap and return the address.

    Raises OSError.

    Args:
        file: A descriptor, or -1.
    """
    start = libc.mmap(address, length, protection, flags, file, 0)
    if start == _FAILED or start is None:
        number = ctypes.get_errno()
        raise OSError(number, f"mmap of {length} bytes: {os.strerror(number)}")
    return int(start)


def memory_available_bytes() -> int | None:
    """Return MemAvailable in bytes; None if it cannot be read."""
    table = read_meminfo(Root())
    value = table if isinstance(table, Unknown) else table.value("MemAvailable")
    return None if isinstance(value, Unknown) else value


Say = Callable[[dict[str, Any]], None]
_LOG_BYTES = 8192
_MOST_LOG_LINES = 200
BUDGET = "--budget"
# What hangs is broken off so long after it.
PATIENCE_SECONDS = 5.0


class ProbeOrder(NamedTuple):
    """What the child process measures, and when it ends.

    Attributes:
        drivers, most_keys: Of each device, in the order of ``devices``; most_keys is its bound on
            memory regions, 0 without one.
        soft: Some device is one in software.
        page_bytes: The page that backs the memory.
        region_bytes: The step in which is measured.
        longest_bytes: The longest registration wanted.
        up_to_bytes: The most to register with each device.
        spend_bytes: The most host memory to take.
        memlock_bytes: The soft memlock limit, None if unlimited or not known.
        lifted: CAP_IPC_LOCK is in effect.
        budget_seconds: After these no more is tried.
    """

    devices: tuple[str, ...]
    drivers: tuple[str, ...]
    most_keys: tuple[int, ...]
    soft: bool
    page_bytes: int
    region_bytes: int
    longest_bytes: int
    up_to_bytes: int
    spend_bytes: int
    memlock_bytes: int | None
    lifted: bool | None
    budget_seconds: float = 3600.0


class Measurement(NamedTuple):
    """The memory registered with each device at once (held), and what kept out one region more.

    Attributes:
        held_regions: Registrations that were held on each device.
        region_bytes: The step of the search.
        range_bytes: The longest registration.
        registrations: All that were tried.
        spent_bytes: The most host memory taken, computed.
        memory_drop_bytes: How far MemAvailable fell, None if it was not read.
        stopped: Why the search ended before a limit ("" if it met one, or held all that was asked).
        met: The limit, None if none was met.
        left: Regions that were not given back, None if not known.
    """

    held_bytes: int
    held_regions: int
    region_bytes: int
    range_bytes: int
    registrations: int
    spent_bytes: int
    memory_drop_bytes: int | None
    stopped: str
    refusal: RegistrationRefusal | None
    met: LimitMet | None
    left: int | None


def layout_of(order: ProbeOrder, largest_bytes: int) -> Layout:
    """Plan the range for ``order``, if a device takes at most ``largest_bytes`` in one region."""
    longest = max(order.region_bytes, min(order.longest_bytes, order.up_to_bytes))
    longest = min(longest, largest_bytes)
    return plan_layout(order.page_bytes, order.region_bytes, longest, order.spend_bytes)


def run_child(order: ProbeOrder, parent: int, say: Say) -> int:
    """Measure in the child process, release, and return its exit code: 0, or 1 after an OSError.

    Args:
        parent: The process id of the command, with which the child ends.
        say: Sends each event to the parent; an OSError becomes the event ``error``.
    """
    prepare_process({"parent": parent, "node": None})
    try:
        _measure(order, say)
    except OSError as error:
        call, device = getattr(error, "call", ""), getattr(error, "device", "")
        texts = (call, device and f"on {device}:", error.strerror or str(error))
        text, met = " ".join(word for word in texts if word), None
        if device in order.devices:  # the device could not be opened
            driver = order.drivers[order.devices.index(device)]
            refusal = RegistrationRefusal(device, driver, call, error.errno or 0, 0, 0)
            met = limit_met(refusal._replace(cgroups=_cgroups(device)))
        say({"event": "error", "error": text if met is None else met.text, "met": met})
        return 1
    return 0


def _measure(order: ProbeOrder, say: Say) -> None:
    """Register as much memory as all devices take at once, and release it.

    Sends the event ``found`` with the measurement, and after the release ``released``. Raises
    OSError.
    """
    log = KernelLog()
    devices = [OpenDevice(name) for name in order.devices]
    largest = min(device.largest_bytes for device in devices)
    layout = layout_of(order, largest)
    before = memory_available_bytes()
    run = _Registrar(order, devices, layout, log, say)
    region = min(order.region_bytes, layout.range_bytes)
    held_bytes = search(run.register, region, layout.range_bytes, order.up_to_bytes)
    after = memory_available_bytes()
    drop = None if before is None or after is None else max(0, before - after)
    refusal = run.tightest if isinstance(run.tightest, RegistrationRefusal) else None
    measured = Measurement(
        held_bytes=held_bytes,
        held_regions=devices[0].regions,
        region_bytes=region,
        range_bytes=layout.range_bytes,
        registrations=run.registrations,
        spent_bytes=run.spent(held_bytes),
        memory_drop_bytes=drop,
        stopped=run.tightest if isinstance(run.tightest, str) else "",
        refusal=refusal,
        met=None if refusal is None else limit_met(refusal),
        left=None,
    )
    say({"event": "found", "measured": measured})
    for device in devices:
        device.close()
    say({"event": "released", "left": sum(device.regions for device in devices)})


class _Registrar:
    """Registers each length on every device or on none, as Mooncake does."""

    def __init__(
        self, order: ProbeOrder, devices: list[OpenDevice], layout: Layout, log: KernelLog, say: Say
    ) -> None:
        """Begin with nothing held, and map the range.

        The time budget starts now.
        """
        self._order, self._devices, self._layout = order, devices, layout
        self._address, self._log, self._say = map_range(layout), log, say
        self._held = 0
        self._least_refused = -1
        self._until = time.monotonic() + order.budget_seconds
        self._watch = MemoryWatch(Root(), ())
        self.registrations = 0
        # What keeps one region more from being held: a refusal, or why none was tried.
        self.tightest: RegistrationRefusal | str | None = None

    def spent(self, held_bytes: int) -> int:
        """Return the most host memory that ``held_bytes`` registered on each device may take."""
        return self._layout.spent_bytes(held_bytes * len(self._devices), self._order.soft)

    def register(self, size: int) -> bool:
        """Register ``size`` bytes more on every device, and send the event ``held``.

        Returns:
            False if a limit, ``spend_bytes``, the host's memory or the time budget prevents that.
        """
        why: RegistrationRefusal | str = ""
        if self.spent(self._held + size) > self._order.spend_bytes:
            why = SPEND
        elif (room := self._watch.room()).bytes < 0:
            why = f"the host's limit ({room.source})"
        elif time.monotonic() > self._until:
            why = BUDGET
        why = why or self._register_all(size) or ""
        if not why:
            self._held += size
            self._say({"event": "held", "held_bytes": self._held, "tries": self.registrations})
        elif self._least_refused < 0 or self._held + size <= self._least_refused:
            self._least_refused, self.tightest = self._held + size, why
        return not why

    def _register_all(self, size: int) -> RegistrationRefusal | None:
        """Register ``size`` bytes on every device, or on none if one refuses.

        Returns None on success, else the refusal with the evidence at that moment.
        """
        self.registrations += 1
        order, number = self._order, 0
        try:
            for number in range(len(self._devices)):
                self._devices[number].register(self._address, size)
        except OSError as error:
            refusing = self._devices[number]
            name, driver, code = refusing.name, order.drivers[number], error.errno or 0
            refusal = RegistrationRefusal(name, driver, "ibv_reg_mr", code, self._held, size)
            refusal = refusal._replace(
                pinned_bytes=read_process_sizes(Root(), os.getpid()).get("VmPin"),
                memlock_bytes=order.memlock_bytes,
                lifted=order.lifted,
                cgroups=_cgroups(name),
                max_mr_size_bytes=refusing.largest_bytes,
                keys_used=_keys_in_use(name),
                most_keys=order.most_keys[number],
                log=self._log.new_lines(),
            )
            for device in self._devices[:number]:
                device.take_back()
            return refusal
        return None


class KernelLog:
    """Lines that the kernel writes from now on; None if this user may not read them."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._descriptor = -1
        with contextlib.suppress(OSError):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._descriptor, 0, os.SEEK_END)

    def new_lines(self) -> tuple[str, ...] | None:
        """Return the first line of each message since the last call, 200 at most.

        Returns:
            None if this user may not read the log.
        """
        if self._descriptor < 0:
            return None
        lines: list[str] = []
        for _ in range(_MOST_LOG_LINES):
            try:
                record = os.read(self._descriptor, _LOG_BYTES)
            except BlockingIOError:
                break
            except OSError:  # EPIPE: the kernel wrote over some; the next read has the rest
                continue
            text = record.decode(errors="replace").partition(";")[2]
            lines.append(text.splitlines()[0] if text else "")
        return tuple(lines)


def _cgroups(device: str) -> tuple[CgroupUse, ...] | None:
    """Return each rdma cgroup's limit and use of ``device``; None if they cannot be read."""
    groups = read_cgroups(Root())
    if isinstance(groups, Unknown):
        return None
    return tuple(CgroupUse(x.file, x.limit(device), use_of(x, device)) for x in groups)


def _keys_in_use(device: str) -> int | None:
    """Return the number of memory regions on ``device``; None if it cannot be read."""
    from checks.rdma.calls import kernel

    try:
        counts = kernel()["devices"].get(device, {}).get("resources", {})
    except OSError:
        return None
    count = counts.get("mr")
    return count if isinstance(count, int) else None


# Registers so many bytes more: True, they are held; False, a limit was met and nothing changed.
Register = Callable[[int], bool]


def search(register: Register, region_bytes: int, largest_bytes: int, up_to_bytes: int) -> int:
    """Register as many regions as ``register`` accepts, and return the bytes that are held.

    Steps double until one is refused, and then halve.

    Args:
        largest_bytes: The longest single registration.
        up_to_bytes: The most to hold.
    """
    most = max(1, largest_bytes // region_bytes)  # regions in one registration
    wanted = up_to_bytes // region_bytes
    count, step = 0, 1
    while count < wanted:
        asked = min(step, most, wanted - count)
        if not register(asked * region_bytes):
            break
        count += asked
        step *= 2
    else:
        return count * region_bytes
    gap = asked - 1  # between what fits and the most that may
    while gap:
        asked = (gap + 1) // 2
        fits = register(asked * region_bytes)
        count += asked * fits
        gap = gap - asked if fits else asked - 1
    return count * region_bytes


class OpenDevice:
    """A device with a protection domain, and the regions that are registered with the device."""

    def __init__(self, name: str) -> None:
        """Open the device.

        Raises VerbsError; OSError if libibverbs cannot be loaded.
        """
        self.name = name
        self._regions: list[Callable[[], None]] = []  # each takes itself back
        self._device = open_device(name)
        self._device.allocate()
        self.largest_bytes = int(self._device.query_device().max_mr_size)

    @property
    def regions(self) -> int:
        return len(self._regions)

    def register(self, address: int, size: int) -> None:
        """Register a range.

        Raises VerbsError, and then nothing is registered.
        """
        self._regions.append(self._device.register(address, size))

    def take_back(self) -> None:
        """Deregister the region that was registered last."""
        self._regions[-1]()
        self._regions.pop()

    def close(self) -> None:
        """Deregister all regions and close the device; the end of the process would do the same."""
        while self._regions:
            self.take_back()
        self._device.close()


class ProbeError(Exception):
    """Nothing was measured; the message is a sentence.

    Args:
        met: The limit that stopped it, if any.
    """

    def __init__(self, message: str, met: LimitMet | None = None) -> None:
        super().__init__(message)
        self.met = met


def measure(order: ProbeOrder, progress: Say) -> Measurement:
    """Measure in a child process, and return the result.

    If this process is interrupted, the child is killed first.

    Args:
        progress: Called with each event that the child reports.

    Raises:
        ProbeError: If nothing was measured; RuntimeError for a defect in the child.
    """
    reading, writing = Pipe(duplex=False)
    parent = os.getpid()
    process = os.fork()
    if not process:
        _become_child(order, parent, reading, writing)
    writing.close()
    status: int | None = None
    events: dict[str, dict[str, Any]] = {}
    try:
        # It ends where the process does, though that be in the middle of a word.
        with reading, contextlib.suppress(EOFError):
            while True:
                if not reading.poll(order.budget_seconds + PATIENCE_SECONDS):
                    raise ProbeError("a registration did not come to its end within --budget")
                event = reading.recv()
                events[event["event"]] = event
                progress(event)
        status = os.waitpid(process, 0)[1]
    finally:
        if status is None:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    failed = events.get("error")
    if failed is not None:
        if failed.get("defect"):
            raise RuntimeError(failed["error"])
        raise ProbeError(failed["error"], failed["met"])
    if "found" not in events:
        code = os.waitstatus_to_exitcode(status)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        raise ProbeError(f"the measuring process {how} before it had an answer")
    measured: Measurement = events["found"]["measured"]
    return measured._replace(left=events["released"]["left"] if "released" in events else None)


def _become_child(order: ProbeOrder, parent: int, reading: Connection, writing: Connection) -> None:
    """Run ``run_child`` in the forked process, and exit; never returns.

    A defect goes to the parent as an event, not to the terminal.
    """
    code = 70
    try:
        reading.close()
        # Its end says nothing on the terminal: what it has to say goes through the pipe.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        code = run_child(order, parent, writing.send)
    except BaseException as error:
        message = f"{type(error).__name__}: {error}"
        writing.send({"event": "error", "error": message, "defect": True})
    finally:
        os._exit(code)

"""The orders that a measuring process carries out, each a function of the player and its order.

Run in ``preflight/benchmark/rehearsal/child.py`` by the Python that has Mooncake: standard library
and ``mooncake`` alone. Each returns its result; a call that fails raises OSError with its name.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import time
from collections.abc import Callable
from typing import Any

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14
_EINVAL = 22
_HUGETLB, _SIZE_SHIFT = 0x40000, 26
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
# The first page of what is served says what is served.
HEAD_BYTES = 4096
HELLO = "mooncake-preflight measure"
_BLOCK_BYTES = 4096  # of O_DIRECT

Json = dict[str, Any]


def _libc() -> ctypes.CDLL:
    """Load libc and declare the types of mmap, munmap and madvise."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def _map(size: int, page_bytes: int) -> int:
    """Map memory without populating it; page_bytes 0: regular pages.

    Raises OSError.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if page_bytes:
        flags |= _HUGETLB | (page_bytes.bit_length() - 1) << _SIZE_SHIFT
    address = _libc().mmap(None, size, _READ_WRITE, flags, -1, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), f"mmap of {size} bytes")
    return int(address)


def _populate(address: int, size: int) -> None:
    """Have the kernel back ``size`` bytes at ``address`` with pages, now.

    Raises OSError.
    """
    if _libc().madvise(address, size, _POPULATE_WRITE):
        if ctypes.get_errno() != _EINVAL:
            raise OSError(ctypes.get_errno(), f"populating {size} bytes")
        ctypes.memset(address, 0, size)  # an older kernel: each page is written to


def _repeat(call: Callable[[int], int], seconds: float, most: int) -> Json:
    """Call ``call`` with 0, 1, 2 ... until ``seconds`` are over or ``most`` calls are made; at
    least once.

    ``call`` returns the bytes that it handled. Return their sum, the seconds in all, the number of
    calls, and p50 and p99 of the seconds of one call.
    """
    took: list[float] = []
    done = 0
    began = last = time.perf_counter()
    while len(took) < most and (last - began < seconds or not took):
        done += call(len(took))
        now = time.perf_counter()
        took.append(now - last)
        last = now
    took.sort()
    p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
    calls = {"calls": len(took), "p50_seconds": p50, "p99_seconds": p99}
    return {"bytes": done, "seconds": last - began, **calls}


def populate(_player: Any, order: Json) -> Json:
    """Measure how fast ``bytes`` of memory are populated, in pieces of ``chunk_bytes``.

    The memory is mapped anew, pass after pass, for ``seconds``: a short burst would look too fast.
    Returns the measurement of ``_repeat``. Raises OSError.
    """
    size, chunk = order["bytes"], order["chunk_bytes"]
    mapped: list[int] = []

    def piece(number: int) -> int:
        """Populate the next piece and return its bytes; each pass maps the memory anew."""
        place = number % (size // chunk) * chunk
        if not place:
            _unmap(mapped, size)
            mapped.append(_map(size, order["page_bytes"]))
        _populate(mapped[-1] + place, chunk)
        return int(chunk)

    try:
        return _repeat(piece, order["seconds"], 1 << 30)
    finally:
        _unmap(mapped, size)


def _unmap(mapped: list[int], size: int) -> None:
    while mapped:
        _libc().munmap(mapped.pop(), size)


def copy(_player: Any, order: Json) -> Json:
    """Measure how fast one thread copies ``bytes`` of populated memory to other memory."""
    size = order["bytes"]
    here = _map(2 * size, 0)
    try:
        _populate(here, 2 * size)

        def one(_number: int) -> int:
            ctypes.memmove(here + size, here, size)
            return int(size)

        return _repeat(one, order["seconds"], 100)
    finally:
        _libc().munmap(here, 2 * size)


def _cuda() -> Callable[..., None]:
    """Open the first GPU; return a function that calls CUDA's driver API by name.

    That function raises OSError if the call fails, as does this one.
    """
    library = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        code = getattr(library, name)(*arguments)
        if code:
            raise OSError(f"{name} returns {code}")

    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    return call


def _gpu_memory(cuda: Callable[..., None], size: int) -> int:
    """Allocate memory of the GPU and return its address.

    Raises OSError.
    """
    address = ctypes.c_uint64()
    cuda("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    return address.value


def copy_to_gpu(_player: Any, order: Json) -> Json:
    """Measure how fast ``bytes`` of page-locked memory (as in L2) are copied to the first GPU."""
    size, cuda = ctypes.c_size_t(order["bytes"]), _cuda()
    target, address = ctypes.c_uint64(_gpu_memory(cuda, size.value)), _map(size.value, 0)
    _populate(address, size.value)
    cuda("cuMemHostRegister_v2", ctypes.c_void_p(address), size, 0)

    def copy_once(_number: int) -> int:
        cuda("cuMemcpyHtoD_v2", target, ctypes.c_void_p(address), size)
        return size.value

    return _repeat(copy_once, order["seconds"], 100)


def engine(player: Any, order: Json) -> Json:
    """Start the player's transfer engine and register ``bytes`` of memory with it; return its port.

    gpu: True registers as much memory of the first GPU, too. Raises OSError.
    """
    from mooncake.engine import TransferEngine  # type: ignore[import-not-found]

    player.engine = TransferEngine()
    where = order["host"], "P2PHANDSHAKE", order["protocol"], order["devices"]
    code = player.engine.initialize(*where)
    if code:
        raise OSError(f"initialize with protocol {order['protocol']} returns {code}")
    player.size = order["bytes"]
    player.address = _map(player.size, 0)
    _populate(player.address, player.size)
    _register(player, player.address, player.size)
    if order.get("gpu"):
        player.gpu_address = _gpu_memory(_cuda(), player.size)
        _register(player, player.gpu_address, player.size)
    return {"port": player.engine.get_rpc_port()}


def _register(player: Any, address: int, size: int) -> float:
    """Register memory with the player's engine; return the seconds that it took.

    Raises OSError.
    """
    began = time.perf_counter()
    code = player.engine.register_memory(address, size)
    if code:
        raise OSError(f"register_memory of {size} bytes returns {code}")
    return time.perf_counter() - began


def register(player: Any, order: Json) -> Json:
    """Measure registering ``bytes`` of populated memory; then deregister them.

    Raises OSError.
    """
    size = order["bytes"]
    address = _map(size, order["page_bytes"])
    try:
        _populate(address, size)
        seconds = _register(player, address, size)
        player.engine.unregister_memory(address)
        return {"bytes": size, "seconds": seconds}
    finally:
        _libc().munmap(address, size)


def announce(player: Any, order: Json) -> Json:
    """Write a header on this side's memory, with the fields of ``about``, where the other side
    reads it first.

    own: HOST:PORT of this side.
    """
    about = {"hello": HELLO, "bytes": player.size, "address": player.address, **order["about"]}
    text = json.dumps(about).encode()[: HEAD_BYTES - 1]
    first = player.engine.get_first_buffer_address(order["own"]) or player.address
    ctypes.memset(first, 0, HEAD_BYTES)
    ctypes.memmove(first, text, len(text))
    return {}


def hello(player: Any, order: Json) -> Json:
    """Read the header that ``announce`` wrote at ``peer`` (HOST:PORT), and return the header.

    The player remembers where the peer's memory is.

    Raises:
        OSError: If nobody answers, or a program other than ``measure --serve``.
    """
    player.peer = order["peer"]
    first = player.engine.get_first_buffer_address(player.peer)
    if not first:
        raise OSError(f"no engine with memory answers at {player.peer}")
    code = player.engine.transfer_sync_read(player.peer, player.address, first, HEAD_BYTES)
    if code:
        raise OSError(f"transfer_sync_read from {player.peer} returns {code}")
    text = ctypes.string_at(player.address, HEAD_BYTES).rstrip(b"\0")
    try:
        about: Json = json.loads(text)
    except ValueError:
        about = {}
    if about.get("hello") != HELLO:
        raise OSError(f"{player.peer} is another engine, and not measure --serve: left alone")
    player.there, player.there_bytes = int(about["address"]), int(about["bytes"])
    return about


def transfer(player: Any, order: Json) -> Json:
    """Measure transfers of ``size`` bytes between this side and the other side's host memory, for
    ``seconds``, in ``most`` calls at most.

    op: write or read. gpu: True to use this side's GPU memory. Raises OSError.
    """
    size = order["size"]
    first = player.gpu_address if order.get("gpu") else player.address
    call = getattr(player.engine, f"transfer_sync_{order['op']}")
    places = (min(player.size, player.there_bytes) - HEAD_BYTES) // size
    if places < 1:
        raise OSError(f"the other side has no room for an object of {size} bytes")

    def one(number: int) -> int:
        offset = HEAD_BYTES + number % places * size
        code = call(player.peer, first + offset, player.there + offset, size)
        if code:
            raise OSError(f"transfer_sync_{order['op']} of {size} bytes returns {code}")
        return int(size)

    one(0)  # the connection is made
    return _repeat(one, order["seconds"], order["most"])


def store_buffer(player: Any, order: Json) -> Json:
    """Map a buffer of ``bytes`` and register it with the player's store, for ``objects`` to use."""
    player.size = order["bytes"]
    player.address = _map(player.size, 0)
    ctypes.memset(player.address, 0x5A, player.size)
    code = player._store.register_buffer(player.address, player.size)
    if code:
        raise OSError(f"register_buffer of {player.size} bytes returns {code}")
    return {}


def objects(player: Any, order: Json) -> Json:
    """Measure puts or gets (``op``) of objects of ``size`` bytes, ``together`` objects in each
    call, for ``seconds``, in ``most`` calls at most.

    stored: how many objects were put before; gets read these objects. Raises OSError.
    """
    size, together, op = order["size"], order["together"], order["op"]
    call = player._store.batch_put_from if op == "put" else player._store.batch_get_into
    fine = 0 if op == "put" else size
    places = [player.address + number * size for number in range(together)]

    def some(number: int) -> int:
        """Put or get one batch of objects and return its bytes.

        Raises OSError.
        """
        first = number * together + (order["stored"] if op == "put" else 0)
        if op == "get":
            first %= max(1, order["stored"] - together + 1)
        keys = [f"mooncake-preflight-{first + each}" for each in range(together)]
        codes = call(keys, places, [size] * together)
        if any(code != fine for code in codes):
            wrong = next(code for code in codes if code != fine)
            raise OSError(f"{op} of {size} bytes returns {wrong}")
        return int(size * together)

    return _repeat(some, order["seconds"], order["most"])


def files(_player: Any, order: Json) -> Json:
    """Measure writing files without a name to ``folder``, then reading them back; none is left.

    size: of one file, rounded up to 4 KiB; bytes: of all files at most. Writing and reading get
    half of ``seconds`` each. Returns both measurements, and whether O_DIRECT was used.
    """
    size = -(-order["size"] // _BLOCK_BYTES) * _BLOCK_BYTES
    room = mmap.mmap(-1, size)
    room.write(os.urandom(min(size, 1 << 20)) * (size // min(size, 1 << 20)))
    opened: list[int] = []
    direct = os.O_DIRECT

    def open_one() -> int:
        flags = os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC
        opened.append(os.open(order["folder"], flags | direct, 0o600))
        return opened[-1]

    def write(_number: int) -> int:
        file = open_one()
        if os.pwrite(file, room, 0) != size:
            raise OSError(f"a write of {size} bytes was cut short")
        os.fdatasync(file)
        return int(size)

    def read(number: int) -> int:
        return os.preadv(opened[number % len(opened)], [room], 0)

    try:
        try:
            open_one()
        except OSError as error:
            if error.errno != _EINVAL:
                raise
            direct = 0  # a file system without O_DIRECT
        seconds, most = order["seconds"] / 2, max(1, order["bytes"] // size)
        written = _repeat(write, seconds, most)
        opened[:] = opened[-written["calls"] :]
        if not direct:
            for file in opened:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        return {"write": written, "read": _repeat(read, seconds, 1 << 30), "direct": bool(direct)}
    finally:
        for file in opened:
            os.close(file)

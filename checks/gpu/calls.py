"""What only NVIDIA's libraries and this process's environment can tell of GPUs."""

from collections.abc import Callable
from typing import Any

# cuInit opens every GPU: seconds for eight of them without the persistence daemon.
CUDA_LIMIT_SECONDS = 8.0
# CUdevice_attribute (cuda.h).
GPU_DIRECT_RDMA_SUPPORTED = 116
DMA_BUF_SUPPORTED = 124


def visible_devices() -> str | None:
    """Return CUDA_VISIBLE_DEVICES of this process, None if it is not set."""
    import os

    return os.environ.get("CUDA_VISIBLE_DEVICES")


def nvml() -> dict[str, Any]:
    """Ask NVML for the driver, CUDA's version and all devices, as plain data.

    If NVML does not start: its ``error``, and ``code`` (nvmlReturn_t).
    """
    pynvml = _library()
    try:
        pynvml.nvmlInit()
        try:
            return {
                "driver": _text(_ask(pynvml.nvmlSystemGetDriverVersion)),
                "cuda": _ask(pynvml.nvmlSystemGetCudaDriverVersion_v2),
                "devices": [_device(index) for index in range(pynvml.nvmlDeviceGetCount())],
            }
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return {"error": str(error), "code": int(error.value)}


def held() -> list[dict[str, Any]]:
    """Return for each GPU ``total_bytes``, and ``processes``: the bytes that each compute process
    of this pid namespace holds, by id (None if NVML does not tell).

    Raises:
        OSError: Without NVML.
    """
    pynvml = _library()
    try:
        pynvml.nvmlInit()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [
            {
                "total_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                "processes": {
                    str(each.pid): each.usedGpuMemory
                    for each in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
                },
            }
            for handle in handles
        ]
    except pynvml.NVMLError as error:
        raise OSError(f"NVML: {error}") from None


def _device(index: int) -> dict[str, Any]:
    """Ask NVML for one GPU; None for each fact that it does not tell."""
    pynvml = _library()
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)

    def ask(name: str, *arguments: Any) -> Any:
        return _ask(getattr(pynvml, name, None), handle, *arguments)

    # The second version counts what the driver keeps for itself apart from what is used.
    memory = ask("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2) or ask("nvmlDeviceGetMemoryInfo")
    pci = ask("nvmlDeviceGetPciInfo")
    mig, ecc = ask("nvmlDeviceGetMigMode"), ask("nvmlDeviceGetEccMode")  # (current, pending)
    processes = ask("nvmlDeviceGetComputeRunningProcesses")
    return {
        "name": _text(ask("nvmlDeviceGetName")),
        "uuid": _text(ask("nvmlDeviceGetUUID")),
        "address": None if pci is None else _text(pci.busId),
        "memory_bytes": None if memory is None else int(memory.total),
        "used_bytes": None if memory is None else int(memory.used),
        "numa_node": ask("nvmlDeviceGetNumaNodeId"),
        "mig": None if mig is None else int(mig[0]),
        "compute_mode": ask("nvmlDeviceGetComputeMode"),
        "ecc": None if ecc is None else int(ecc[0]),
        "processes": None if processes is None else len(processes),
    }


def _library() -> Any:
    import pynvml  # type: ignore[import-untyped]

    return pynvml


def _ask(function: Callable[..., Any] | None, *arguments: Any) -> Any:
    """Call a function of NVML; None if ``function`` is None or NVML answers with an error."""
    pynvml = _library()
    try:
        return None if function is None else function(*arguments)
    except pynvml.NVMLError:
        return None


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def cuda_attributes() -> list[dict[str, int | None]]:
    """Ask CUDA in a child which GPUs NICs can reach: ``rdma`` and ``dma_buf`` of each, 1, 0 or
    None, in CUDA's order.

    Raises:
        OSError: If CUDA gives no answer.
    """
    import ctypes  # noqa: F401  # before the child is there: see memory_policy

    from checks.framework.root import in_child

    answer: list[dict[str, int | None]] = in_child(_cuda_attributes, CUDA_LIMIT_SECONDS)
    return answer


def _cuda_attributes() -> list[dict[str, int | None]]:
    """Ask CUDA in this process; see ``cuda_attributes``."""
    import ctypes

    library = ctypes.CDLL("libcuda.so.1")
    result = library.cuInit(0)
    if result:
        raise OSError(f"cuInit: error {result}")
    count, device, value = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))

    def attribute(number: int) -> int | None:
        failed = library.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        return None if failed else value.value

    gpus: list[dict[str, int | None]] = []
    for index in range(count.value):
        library.cuDeviceGet(ctypes.byref(device), index)
        rdma, dma_buf = map(attribute, (GPU_DIRECT_RDMA_SUPPORTED, DMA_BUF_SUPPORTED))
        gpus.append({"rdma": rdma, "dma_buf": dma_buf})
    return gpus

"""What a server runs on: the host's memory and its GPUs, from which its pools' sizes follow."""

from typing import NamedTuple

from checks.base.root import Root
from checks.base.unknown import Unknown, UnknownFactError, known, or_unknown
from checks.memory.facts import memory_headroom
from checks.numa.nodes import read_whole_meminfo
from checks.pci.facts import ACCELERATOR_VENDORS, read_accelerators
from checks.releases.mooncake import MooncakeRelease
from checks.releases.sglang import SglangRelease
from preflight.mooncake.placement import ClientNics
from preflight.processes.processes import LaunchOptions, SglangServer
from preflight.sglang.admission_gate import FreeMemory
from preflight.sglang.model import Models, server_drafts
from preflight.sglang.pool_request import GpuKind, Hardware


class SizedHost(NamedTuple):
    """What of the command line and the host every process shares."""

    options: LaunchOptions
    root: Root
    mooncake: MooncakeRelease
    sglang: SglangRelease
    nics: ClientNics
    models: Models


def hardware_of(server: SglangServer, host: SizedHost, memory: FreeMemory | Unknown) -> Hardware:
    """Return the model, its drafts, the GPU and the host's memory, as far as known."""
    elsewhere = host.options.available_bytes is not None
    gpu = gpu_memory(host.options.gpu_bytes, host.root, follows_gpu(server), elsewhere)
    root = None if elsewhere else host.root
    return server_hardware(server, host.models, host.sglang, gpu, memory, root)


# The upper half of an NVIDIA device's number stands for its architecture (pci.ids): from Maxwell to
# Hopper; and GB100 (B200), GB110 (B300). Cards for workstations have kernels of their own.
_BEFORE_BLACKWELL, _BLACKWELL = range(0x13, 0x29), (0x29, 0x31)


@or_unknown
def _gpu_kind(root: Root) -> GpuKind | None:
    """Return the kind of all GPUs of this host; None without one, or with several kinds."""
    kinds: set[GpuKind | None] = set()
    for gpu in known(read_accelerators(root)):
        maker = ACCELERATOR_VENDORS.get(known(gpu.vendor))
        number = int(known(gpu.device), 16) >> 8
        if maker == "NVIDIA" and number in _BEFORE_BLACKWELL:
            kinds.add(GpuKind.BEFORE_BLACKWELL)
        elif maker == "NVIDIA" and number in _BLACKWELL:
            kinds.add(GpuKind.BLACKWELL)
        else:
            kinds.add(GpuKind.AMD if maker == "AMD" else None)
    return kinds.pop() if len(kinds) == 1 else None


@or_unknown
def host_memory(options: LaunchOptions, root: Root) -> FreeMemory:
    """Return the memory that SGLang reads of this host, if the launch is to run here."""
    if options.available_bytes is not None:
        why = "another host is sized, whose memory is not known"
        raise UnknownFactError(Unknown(why))
    available = known(known(read_whole_meminfo(root)).value("MemAvailable"))
    headroom = memory_headroom(root)
    left = headroom if isinstance(headroom, Unknown | None) else headroom.left_bytes
    return FreeMemory(available, left)


ASK = "give --gpu-memory"
_NOT_READ = Unknown("the host's memory is not read")


def server_hardware(
    server: SglangServer,
    models: Models,
    release: SglangRelease,
    gpu_bytes: int | Unknown,
    memory: FreeMemory | Unknown = _NOT_READ,
    root: Root | None = None,
) -> Hardware:
    """Return the hardware that a server is sized for.

    gpu_bytes: of the smallest GPU. memory: for a pool whose size is left to SGLang. root: of the
    host that it runs on, None if that is another.
    """
    model = models.target(server.value("model_path"))
    geometry = model.geometry
    drafts = server_drafts(server, model, release, models)
    weights, least = model.weights_bytes, model.least_weights_bytes
    hardware = Hardware(geometry, gpu_bytes, weights, drafts, model.context_tokens, memory)
    hardware = hardware._replace(least_weights_bytes=least)
    if root is None or isinstance(geometry, Unknown) or not geometry.index_layers:
        return hardware
    kind = _gpu_kind(root)
    return hardware._replace(gpu=kind) if isinstance(kind, GpuKind) else hardware


def follows_gpu(server: SglangServer) -> bool:
    """Tell whether the server has an L2 pool: then NVML is worth asking. Its size may come of the
    GPU's memory; and it is made after L1, for which there may be no room."""
    return server.hicache or server.mode == "decode"


def gpu_memory(given_bytes: int | None, root: Root, asked: bool, elsewhere: bool) -> int | Unknown:
    """Return the bytes of each GPU's memory: as given, or by NVML if all agree. NVML is asked where
    ``asked`` is true. elsewhere: another host is sized."""
    if given_bytes is not None:
        return given_bytes
    sizes: set[int | None] = set()
    why = ""
    if not elsewhere and asked:
        from checks.gpu.facts import read_gpus

        nvml = read_gpus(root, None).nvml
        if isinstance(nvml, Unknown):
            why = nvml.reason
        elif nvml.error:
            why = nvml.error
        elif not nvml.gpus:
            why = "NVML shows no GPU"
        elif any(gpu.mig for gpu in nvml.gpus):
            why = "MIG divides it"
        else:
            sizes = {gpu.memory_bytes for gpu in nvml.gpus}
            why = "this host's GPUs differ"
    size = sizes.pop() if len(sizes) == 1 else None
    unknown = Unknown(f"the GPU's memory is not known: {f'{why}: ' if why else ''}{ASK}")
    return unknown if size is None else size

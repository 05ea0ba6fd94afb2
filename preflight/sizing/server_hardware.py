"""What a server's pools depend on beside its own words: model, drafts, GPU, the host's memory."""

from __future__ import annotations

from checks.base.root import Root
from checks.base.unknown import Unknown
from checks.releases.sglang import SglangRelease
from preflight.processes.processes import SglangServer
from preflight.sglang.admission_gate import HostMemory
from preflight.sglang.drafts import server_drafts
from preflight.sglang.model import Models
from preflight.sglang.pool_request import Hardware

ASK = "give --gpu-memory"
_NOT_READ = Unknown("the host's memory is not read")


def server_hardware(
    server: SglangServer,
    models: Models,
    release: SglangRelease,
    gpu_bytes: int | Unknown,
    memory: HostMemory | Unknown = _NOT_READ,
) -> Hardware:
    """gpu_bytes: of the smallest GPU. memory: for a pool whose size is left to SGLang."""
    model = models.target(server.value("model_path"))
    drafts = server_drafts(server, model, release, models)
    return Hardware(
        model.geometry, gpu_bytes, model.weights_bytes, drafts, model.context_tokens, memory
    )


def follows_gpu(server: SglangServer) -> bool:
    """Whether the L2 pool's size comes of the GPU's memory: then NVML is worth asking."""
    if not server.hicache and server.mode != "decode":
        return False
    size = server.value("hicache_size")
    return isinstance(size, Unknown) or size is None or size <= 0


def gpu_memory(given_bytes: int | None, root: Root, asked: bool, elsewhere: bool) -> int | Unknown:
    """The memory of each GPU: the one given, else what NVML says where ``asked`` and all agree.

    elsewhere: another host is sized.
    """
    if given_bytes is not None:
        return given_bytes
    if elsewhere or not asked:
        return Unknown(f"the GPU's memory is not known: {ASK}")
    from checks.gpu.facts import read_gpus

    nvml = read_gpus(root, None).nvml
    if isinstance(nvml, Unknown):
        return Unknown(f"the GPU's memory is not known: {nvml.reason}: {ASK}")
    sizes = {gpu.memory_bytes for gpu in nvml.gpus}
    if nvml.error or not sizes or any(gpu.mig for gpu in nvml.gpus):
        why = nvml.error or ("NVML shows no GPU" if not sizes else "MIG divides it")
        return Unknown(f"the GPU's memory is not known: {why}: {ASK}")
    size = sizes.pop()
    if sizes or size is None:
        return Unknown(f"the GPU's memory is not known: this host's GPUs differ: {ASK}")
    return size

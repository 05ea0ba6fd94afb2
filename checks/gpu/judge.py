"""Checks of the GPUs: the driver answers, and the GPUs are enough, whole (MIG) and free.

Also whether NVLink joins the GPUs if the launch asks for that, and how NICs reach GPU memory:
through peer memory or dma-buf.
"""

from collections.abc import Iterable, Mapping
from itertools import combinations

from checks.framework.finding import (
    Evidence,
    Finding,
    Kind,
    Setting,
    Status,
    Subject,
    UnjudgedError,
    command,
    or_unjudged,
    passed,
    skip,
    unknown_finding,
)
from checks.framework.fold import fold, fold_alike, fold_names
from checks.framework.needs import (
    GPU_RESOURCES,
    GivenGpus,
    LaunchNeeds,
    ProcessNeeds,
    running_with_last,
)
from checks.framework.problem import Problems
from checks.framework.units import GIB, Quantity, format_bytes
from checks.framework.unknown import Unknown, or_unknown, require
from checks.framework.written_numbers import leading_integer
from checks.gpu.facts import DRIVER_VERSION, IMEX_CHANNELS, MEMORY_PEERS, GpuFacts, NvmlGpu
from checks.gpu.hardware_use import (
    container_gpu_addresses,
    container_gpus,
    gpu_processes,
    lacks_resource,
    nics_of,
    physical_gpus,
    taken_gpu,
    visible_gpus,
    visible_setting,
)
from checks.rdma.facts import RdmaFacts
from checks.rdma.registration import through_peermem
from checks.system.facts import SystemFacts

CHECKS = Problems()

# nvmlReturn_t codes after which no CUDA program starts either (nvml.h).
DRIVER_NOT_LOADED, GPU_IS_LOST, VERSION_MISMATCH = 9, 15, 18
NVML_ERRORS = {
    DRIVER_NOT_LOADED: ("Driver Not Loaded", "load the driver: sudo modprobe nvidia"),
    GPU_IS_LOST: ("GPU is lost", "reset or power-cycle the GPU; see the Xid lines in dmesg"),
    VERSION_MISMATCH: (
        "Driver/library version mismatch",
        "reboot, or unload and load the nvidia modules, so that module and library are of one "
        "version",
    ),
}


@CHECKS("gpu.driver")
def driver(gpus: GpuFacts) -> Iterable[Finding]:
    """Judge whether NVIDIA's driver answers."""
    finding = passed("NVIDIA driver", need="an answer of NVML")
    if gpus.kernel_module == "" and not finding.require(gpus.nvidia):
        return [skip("no NVIDIA GPU is visible here")]
    nvml = finding.require(gpus.nvml)
    if not nvml.error:
        module_type = gpus.kernel_module if isinstance(gpus.kernel_module, str) else ""
        parts = [nvml.driver, f"{module_type} kernel module" if module_type else ""]
        return [finding._replace(have=", ".join(filter(None, parts)))]
    text, advice = NVML_ERRORS.get(nvml.code, (nvml.error, ""))
    evidence = [Evidence("nvmlInit", f"{nvml.code}: {nvml.error}")]
    if isinstance(gpus.kernel_module_version, str) and gpus.kernel_module_version:
        evidence.append(Evidence(DRIVER_VERSION, gpus.kernel_module_version))
    finding = finding._replace(have=text, evidence=tuple(evidence))
    if nvml.code not in NVML_ERRORS:
        return [
            finding.undecided(f"NVML gives no answer ({text}), so nothing is known of the GPUs")
        ]
    settings = (Setting(Kind.MODULE, "nvidia", ""),) if nvml.code == DRIVER_NOT_LOADED else ()
    return [finding.failed(f"no CUDA program starts: {text}", advice, settings)]


ADD_UP = (
    "give each its own GPUs (CUDA_VISIBLE_DEVICES), or shares that add up to less than 1: "
    "--gpu-memory-utilization, --mem-fraction-static"
)
# Shares that are written as decimals: 0.7 and 0.3 are one whole.
ROUNDING = 1e-6
_MOST_NAMES = 4  # of processes in one sentence


@CHECKS("gpu.count")
def count(needs: LaunchNeeds, gpus: GpuFacts) -> Iterable[Finding]:
    """Judge whether the host has all GPUs of the launch, and programs on one GPU fit together."""
    processes = gpu_processes(needs)
    # Ranks of other hosts have the same numbers.
    shared = [] if needs.hosts != 1 else list(_judge_shared_gpus(needs, gpus))
    shared += [*_judge_vllm(needs, gpus), *_judge_accelerators(needs)]
    if not processes:
        if shared:
            return shared
        if any(process.program == "vllm" for process in needs.processes):
            return [skip("how many GPUs vLLM takes here, or which are here, is not known")]
        return [passed("launch", "uses no GPU")]
    groups: dict[tuple[str | None, tuple[str, GivenGpus | None] | None], list[ProcessNeeds]] = {}
    for process in processes:
        setting, container = passed("launch").require(visible_setting(gpus, process)), None
        if (asked := container_gpus(process)) is not None or process.runtime in NOT_GIVEN:
            place = "" if process.container is None else process.container.origin
            container = place, asked if isinstance(asked, GivenGpus) else None
        groups.setdefault((setting, container), []).append(process)
    findings = []
    for (setting, container), group in groups.items():
        finding = _judge_group(group, setting, gpus)
        if container is not None and container[0] and len(groups) > 1:
            where = f" of {finding.subject}" if setting is not None else ""
            finding = finding._replace(subject=f"container at {container[0]}{where}")
        findings.append(finding)
    return [*findings, *shared]


def _judge_accelerators(needs: LaunchNeeds) -> Iterable[Finding]:
    """Yield an unknown finding for ranks on other accelerators (NPUs): no NPUs are counted here."""
    ranks: dict[str, list[str]] = {}
    for process in needs.processes:
        if process.accelerator:
            ranks.setdefault(process.accelerator, []).append(process.name)
    for device, names in ranks.items():
        why = f"how many {device.upper()}s are here is not read"
        yield unknown_finding(fold_names(names), why, need=f"{len(names)} {device.upper()}s")


def _judge_vllm(needs: LaunchNeeds, gpus: GpuFacts) -> Iterable[Finding]:
    """Judge whether each vLLM server has a GPU for each of its workers on this host.

    A server that sees no GPU is left out, as vLLM runs without GPUs too.
    """
    servers: dict[int, list[ProcessNeeds]] = {}
    for process in needs.processes:
        if process.gpu_share is not None and process.gpu_share.of_total:
            servers.setdefault(process.id.command, []).append(process)
    for workers in servers.values():
        shares = [worker.gpu_share for worker in workers if worker.gpu_share is not None]
        wanted = 1 + max((index for share in shares for index in share.indices), default=-1)
        visible = visible_gpus(gpus, workers[0])
        if isinstance(visible, Unknown) or not visible or not wanted:
            continue
        count, below = len(visible), shares[0].elsewhere_below
        names = [worker.name for worker in workers]
        finding = passed(
            fold_names(names) if len(names) > 1 else names[0],
            Quantity(f"{count} visible", count, "GPUs"),
            Quantity(f"{wanted} GPU{'s' * (wanted > 1)}", wanted, "GPUs"),
            "one for each worker on this host",
        )
        if count >= wanted:
            if workers[0].container is None or container_gpus(workers[0]) is not None:
                yield finding
        elif count < below:
            yield finding.warned(
                f"one engine has {below} workers: vLLM before 0.11.1 takes Ray then, and waits for "
                "other hosts of its cluster; newer ones end with an error",
                SPAN_HOSTS,
            )
        else:
            yield finding.failed(
                "vLLM ends: World size is larger than the number of available GPUs, or CUDA error: "
                "invalid device ordinal",
                SPAN_HOSTS,
            )


SPAN_HOSTS = (
    "let it have more GPUs, use fewer workers (--tensor-parallel-size, --pipeline-parallel-size, "
    "--data-parallel-size), or say how they are spread over hosts: --nnodes, or "
    "--distributed-executor-backend ray"
)


def _judge_shared_gpus(needs: LaunchNeeds, gpus: GpuFacts) -> Iterable[Finding]:
    """Judge each known GPU that several programs take at one time, if it has no room for all."""
    taken: dict[str, list[ProcessNeeds]] = {}
    for process in needs.processes:
        for index in process.gpu_share.indices if process.gpu_share is not None else ():
            place = taken_gpu(gpus, process, index)
            if not isinstance(place, Unknown) and place:
                taken.setdefault(place, []).append(process)
    findings = (_judge_shared_gpu(place, processes) for place, processes in taken.items())
    return fold(finding for finding in findings if finding is not None)


def _judge_shared_gpu(place: str, processes: list[ProcessNeeds]) -> Finding | None:
    """Judge the programs on one GPU, those of each turn of the launch together; None if all fit.

    An unknown finding if each turn fits but all turns together do not.

    Args:
        place: The GPU's name.
    """
    for turn in dict.fromkeys(process.turn for process in processes):
        finding = _judge_together(place, [process for process in processes if process.turn == turn])
        if finding is not None:
            return finding
    whole = _judge_together(place, processes)
    return whole and whole.undecided(
        "the launch ends processes between them: which of them take it at one time is not known"
    )


def _judge_together(place: str, processes: list[ProcessNeeds]) -> Finding | None:
    """Judge the programs that run on one GPU at the same time; None if it has room for all.

    Args:
        place: The GPU's name.
        processes: In the order of their start.
    """
    together = running_with_last(processes)
    shares = [each.gpu_share for each in together if each.gpu_share is not None]
    whole = sum(1.0 if share.fraction is None else share.fraction for share in shares)
    if len({each.id.command for each in together}) < 2 or whole <= 1 + ROUNDING:
        return None
    each = tuple(dict.fromkeys(each.name for each in together))  # of one line they have one name
    names = " and ".join(each) if len(each) <= _MOST_NAMES else fold_alike(each, _MOST_NAMES)
    finding = passed(Subject(place, "gpu"), f"{len(together)} processes ({names})", "1")
    if any(share.of_total for share in shares):
        parts = (
            f"{'its own' if share.fraction is None else f'{share.fraction:g}'} of {each.name}"
            for each, share in zip(together, shares, strict=True)
        )
        finding = finding._replace(have=f"shares of {' and '.join(parts)}", need="1 in all")
    if any(_refuses(each, other) for each, other in combinations(together, 2)):
        return finding.failed(
            "vLLM wants its share of the whole GPU free when it starts, and the later one ends: "
            "Free memory on device ... on startup is less than desired GPU memory utilization",
            ADD_UP,
        )
    if any(share.of_total for share in shares):
        return finding.warned(
            "vLLM wants its share of the whole GPU free when it starts, and may find less: then it "
            "ends, or another one's weights do not fit",
            ADD_UP,
        )
    return finding.warned(
        "each takes a share of what is free when it starts: a later one has that of "
        "the rest, and ends where its weights do not fit there",
        "give each its own GPUs: --base-gpu-id, or CUDA_VISIBLE_DEVICES",
    )


def _refuses(running: ProcessNeeds, other: ProcessNeeds) -> bool:
    """Tell whether vLLM refuses to start as ``other`` while ``running`` holds its GPU share."""
    if running.id.command == other.id.command:
        return False
    share, wanted = running.gpu_share, other.gpu_share
    if share is None or wanted is None or share.fraction is None or wanted.fraction is None:
        return False
    if share.fraction + wanted.fraction <= 1 + ROUNDING or not (share.fills and wanted.fills):
        return False
    # Compose starts its services in no order: vLLM that runs first leaves SGLang some memory.
    ordered = "compose" not in (running.runtime, other.runtime)
    return wanted.of_total and (share.of_total or ordered)


# How the one who describes a container gives it more GPUs.
GIVE_MORE = {
    "compose": "count or device_ids under deploy.resources.reservations.devices",
    "kubernetes": "{resource} under its resources.limits",
    "": "--gpus-per-node, or --gres=gpu:N, of sbatch or srun",
}
DOCKER_GPUS = "--gpus all, or names: --gpus '\"device=0,1\"'"
_DEFAULT_RUNTIME = "whether nvidia is {}'s default runtime, which gives them, is not known"
# Containers that have no GPU of their own where the launch gives them none.
NOT_GIVEN = {
    "docker": f"no --gpus: {_DEFAULT_RUNTIME.format('Docker')}",
    "podman": "no --device nvidia.com/gpu=...: whether a hook of Podman gives them is not known",
    "nerdctl": "no --gpus: whether anything else gives them is not known",
    "compose": f"no gpus, and no reservation: {_DEFAULT_RUNTIME.format('Docker')}",
    "kubernetes": "no nvidia.com/gpu: whether another resource, a claim or the node's default "
    "runtime gives them is not known",
}


def _give_more(runtime: str, resource: str = "") -> str:
    return GIVE_MORE.get(runtime, DOCKER_GPUS).format(resource=resource or "nvidia.com/gpu")


def _judge_group(processes: list[ProcessNeeds], setting: str | None, gpus: GpuFacts) -> Finding:
    """Judge whether a group of ranks sees enough GPUs for its highest GPU index.

    Args:
        setting: The CUDA_VISIBLE_DEVICES of all its ranks, None if it is not set.
    """
    highest = max(process.gpu for process in processes if process.gpu is not None)
    subject = "launch" if setting is None else f"CUDA_VISIBLE_DEVICES={setting}"
    finding = passed(
        subject,
        need=Quantity(f"{highest + 1} GPU{'s' if highest else ''}", highest + 1, "GPUs"),
        formula=f"highest GPU index {highest} + 1, of {len(processes)} ranks",
    )
    container = processes[0].container
    asked = container_gpus(processes[0])
    if isinstance(asked, GivenGpus) and (lacking := lacks_resource(gpus, asked)):
        return finding._replace(have=Quantity("none given", 0, "GPUs")).failed(
            f"its pod asks for {lacking}, which no GPU of this host has: it is not scheduled here",
            "ask for the resource of the host's GPUs alone, or run it where "
            f"{' and '.join(asked.resources)} {'are' if len(asked.resources) > 1 else 'is'}",
        )
    if isinstance(asked, GivenGpus):
        number = len(asked.names) or asked.number
        if number is not None and number <= highest:
            where = _give_more(processes[0].runtime, *asked.resources[:1])
            whose = "job of Slurm" if container is None else "container"
            place = "" if container is None else f" at {container.origin}"
            return finding.failed(
                f"its {whose} is given {number}, whatever the host has: ranks without a GPU end "
                "with CUDA error: invalid device ordinal",
                f"give it {highest + 1}{place}: {where}",
                have=Quantity(f"{number or 'none'} given", number, "GPUs"),
                evidence=(Evidence(f"GPUs of {whose}", str(number)),),
            )
    visible, here = visible_gpus(gpus, processes[0]), container_gpu_addresses(gpus, processes[0])
    if isinstance(visible, Unknown):
        return finding.undecided(visible.of("which GPUs are visible is not known: "))
    assert not isinstance(here, Unknown)
    seen = len(visible)
    finding = finding._replace(have=Quantity(f"{seen or 'none'} visible", seen, "GPUs"))
    if seen > highest:
        if container is None or asked is not None or container.runtime not in NOT_GIVEN:
            return finding
        advice = f"give it GPUs: {_give_more(container.runtime)}"
        why = f"the container at {container.origin} is given {NOT_GIVEN[container.runtime]}"
        return finding._replace(have="").undecided(Unknown(why, advice=advice))
    end = "ranks without a GPU end with CUDA error: invalid device ordinal"
    evidence = (Evidence("GPUs that this process may use", ", ".join(here) or "none"),)
    none = "no CUDA device is available to any rank"
    finding = finding.failed(end if seen else none, evidence=evidence)
    if setting is not None and len(here) > highest:
        wanted = ",".join(str(index) for index in range(highest + 1))
        inside = " of its container, which counts from 0" if container is not None else ""
        return finding._replace(
            advice=f"let CUDA_VISIBLE_DEVICES name {highest + 1} of the {len(here)} GPUs{inside}",
            settings=(Setting(Kind.ENVIRONMENT, "CUDA_VISIBLE_DEVICES", wanted, setting),),
        )
    if container is not None and isinstance(container.gpus, GivenGpus) and container.gpus.names:
        return finding._replace(advice=f"name GPUs that the host has at {container.origin}")
    advice = "use fewer ranks on this host, or a host with more GPUs"
    if len(gpus.on_pci) > max(len(here), highest):
        advice = f"give the container more of the host's {len(gpus.on_pci)} GPUs (docker --gpus)"
    elif not seen and not gpus.on_pci:
        advice = _ELSEWHERE
    return finding._replace(advice=advice)


_ELSEWHERE = (
    "run this check on the host that has the GPUs; or record that host there (mooncake-preflight "
    "capture host.tar.gz), and check here with --root host.tar.gz"
)


# What a GPU that nobody uses may hold: the driver keeps a few MiB, and up to some hundreds where
# NVML does not count its reserve apart. A CUDA context alone is about half of this.
IDLE_BYTES = GIB
MIG_ON = 1


def _gpus_in_use(gpus: GpuFacts, needs: LaunchNeeds | None) -> Mapping[str, NvmlGpu]:
    """Return the GPUs to judge, by NVML's address: the launch's, or all without a launch.

    Raises:
        UnjudgedError: If there are none, or they are not known.
    """
    finding = passed("GPUs")
    if not finding.require(gpus.nvidia) or physical_gpus(gpus) == ():
        raise UnjudgedError(skip("no NVIDIA GPU is visible here"))
    nvml = finding.require(gpus.nvml)
    finding.require(Unknown(f"NVML: {nvml.error}") if nvml.error else None)
    used = {gpu.address or f"GPU {n}": gpu for n, gpu in enumerate(nvml.gpus)}
    if needs is not None:
        shown = ((p.gpu, finding.require(visible_gpus(gpus, p))) for p in gpu_processes(needs))
        taken = [at[index] for index, at in shown if index is not None and index < len(at)]
        used = {address: used[address] for address in taken}
    if not used:
        raise UnjudgedError(skip("the launch uses no GPU of this host", "GPUs"))
    return used


@CHECKS("gpu.mig")
def mig(needs: LaunchNeeds | None, gpus: GpuFacts) -> Iterable[Finding]:
    """Judge whether MIG is off on each GPU in use."""
    evidence = (Evidence("nvmlDeviceGetMigMode", str(MIG_ON)),)
    return fold(
        passed(f"GPU {address}", "MIG off", "MIG off")
        if gpu.mig != MIG_ON
        else passed(f"GPU {address}", "MIG on", "MIG off", evidence=evidence).warned(
            "with MIG on, CUDA shows a process one instance of one GPU, and no second device",
            "turn MIG off for this GPU, once nothing runs on it",
            (command("nvidia-smi", "-i", address, "-mig", "0", as_root=True),),
        )
        for address, gpu in _gpus_in_use(gpus, needs).items()
    )


@CHECKS("gpu.memory-busy")
def memory_busy(needs: LaunchNeeds | None, gpus: GpuFacts) -> Iterable[Finding]:
    return fold(_busy(f"GPU {address}", gpu) for address, gpu in _gpus_in_use(gpus, needs).items())


def _busy(subject: str, gpu: NvmlGpu) -> Finding:
    """Judge whether processes run on a GPU, or more of its memory than IDLE_BYTES is used."""
    finding = passed(subject, need=format_bytes(IDLE_BYTES, "at most {} used"))
    if gpu.used_bytes is None or gpu.memory_bytes is None:
        return finding.undecided("NVML does not say what is used")
    have = f"{format_bytes(gpu.used_bytes)} of {format_bytes(gpu.memory_bytes)} used"
    running = gpu.processes or 0
    if running:
        have += f" by {running} process{'es' if running > 1 else ''}"
    finding = finding._replace(have=Quantity(have, gpu.used_bytes, "bytes"))
    if gpu.used_bytes <= IDLE_BYTES and not running:
        return finding
    return finding.warned(
        "SGLang makes a smaller KV pool, or runs out of GPU memory at its start",
        "see nvidia-smi for what runs there, and end it",
        evidence=(Evidence("nvmlDeviceGetMemoryInfo used", str(gpu.used_bytes)),),
    )


# Models whose racks join GPUs of several hosts over NVLink.
MULTI_NODE_NVLINK = ("GB200", "GB300")


@CHECKS("gpu.imex")
def imex(needs: LaunchNeeds, gpus: GpuFacts, rdma: RdmaFacts) -> Iterable[Finding]:
    """Judge whether a launch over NVLink between hosts has an IMEX channel."""
    forced = any("MC_FORCE_MNNVL" in process.environment for process in needs.processes)
    names = [] if isinstance(gpus.nvml, Unknown) else [gpu.name or "" for gpu in gpus.nvml.gpus]
    rack_scale = any(word in name for name in names for word in MULTI_NODE_NVLINK)
    silent = needs.rdma_processes and rack_scale and rdma.nics == ()
    if not forced and not silent:
        return [skip("the launch moves nothing over NVLink between hosts", "launch")]
    channels = gpus.imex_channels
    finding = passed("IMEX channels", need="1 channel")
    if isinstance(channels, Unknown):
        return [finding.undecided(channels)]
    if channels:
        return [finding._replace(have=", ".join(channels))]
    channel_file = f"{IMEX_CHANNELS}/channel0"
    text = "without an RDMA device Mooncake uses NVLink, which needs an IMEX channel"
    if forced:
        text = "MC_FORCE_MNNVL asks for NVLink, and without an IMEX channel no transfer succeeds"
    advice = "start nvidia-imex and map the channel into the container"
    settings = (Setting(Kind.DEVICE, channel_file, channel_file),)
    evidence = (Evidence(IMEX_CHANNELS, "absent or empty"),)
    return [finding.warned(text, advice, settings, have="none", evidence=evidence)]


# ibv_reg_dmabuf_mr needs the RDMA core of Linux 5.12.
DMA_BUF_KERNEL = (5, 12)
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@CHECKS("gpu.peer-memory")
def peer_memory(
    needs: LaunchNeeds, gpus: GpuFacts, system: SystemFacts, rdma: RdmaFacts
) -> Iterable[Finding]:
    """Judge whether a NIC can register GPU memory, if the launch asks for it."""
    # How much of it there is, is known once it runs.
    amounts = [(process, process.gpu_registered_bytes) for process in needs.processes]
    some = [process for process, size in amounts if isinstance(size, Unknown) or size > 0]
    processes = [process for process in some if process.rdma is not None]
    if not processes:
        return [passed("launch", "registers no GPU memory")]
    if not passed("launch").require(gpus.nvidia):
        if any(gpu.vendor == AMD for gpu in gpus.on_pci):
            return fold(_judge_reach_amd(process, gpus, rdma, needs) for process in processes)
        judged = "only NVIDIA's and AMD's GPUs are judged here"
        return [skip(judged if gpus.on_pci else "no GPU is visible here", "launch")]
    return fold(_judge_reach(process, system, gpus) for process in processes)


def _judge_reach(process: ProcessNeeds, system: SystemFacts, gpus: GpuFacts) -> Finding:
    """Judge whether NICs can register an NVIDIA GPU's memory for one process.

    If they can, warn of PyTorch's expandable segments, which may prevent the registration.
    """
    judge_way = _judge_peer_memory if through_peermem(process.environment) else _judge_dma_buf
    finding = judge_way(passed(process.name), system, gpus)
    variable = expandable_segments(process)
    if finding.status is not Status.PASS or not variable:
        return finding
    value = process.environment[variable]
    kept = ",".join(entry for entry in value.split(",") if "expandable_segments" not in entry)
    return finding.warned(
        "memory from expandable segments is made of many CUDA allocations: older PyTorch does "
        "not make them fit for RDMA, and EFA and older Mooncake (before #3538) refuse them",
        f"remove expandable_segments from {variable} for this process",
        (Setting(Kind.ENVIRONMENT, variable, kept, value),),
    )


def expandable_segments(process: ProcessNeeds) -> str:
    """Return the variable that turns PyTorch's expandable segments on, "" if none does."""
    for name in ALLOCATOR_VARIABLES:
        for entry in process.environment.get(name, "").split(","):
            key, _, value = entry.partition(":")
            if key.strip() == "expandable_segments" and value.strip().lower() in ("true", "1"):
                return name
    return ""


AMD = GPU_RESOURCES["amd.com/gpu"]
# The client of the peer-memory kernels that AMD's driver is, and what keeps Mooncake off dma-buf.
AMD_PEER, NO_HIP_DMA_BUF = "amdkfd", "MOONCAKE_DISABLE_HIP_DMABUF"
# Drivers without on-demand paging: a dma-buf that they import is pinned whole, and a second copy of
# it is held in GPU memory; others are asked. Source: AMD-AGI/Infera mooncake_mode.py.
WITHOUT_PAGING = ("ionic",)


@or_unjudged
def _judge_reach_amd(
    process: ProcessNeeds, gpus: GpuFacts, rdma: RdmaFacts, needs: LaunchNeeds
) -> Finding:
    """Judge how NICs reach an AMD GPU's memory: by dma-buf if Mooncake has that, else by peer
    memory.

    Warn if dma-buf would hold a second copy of the KV cache.
    """
    off = leading_integer(process.environment.get(NO_HIP_DMA_BUF, "0")) != 0
    finding = passed(process.name, need=f"{AMD_PEER} in {MEMORY_PEERS}, or dma-buf")
    peer = AMD_PEER in finding.require(gpus.memory_peers)
    finding = finding._replace(have=f"{AMD_PEER} {'is there' if peer else 'is not there'}")
    if peer and off:
        return finding
    names = finding.require(nics_of(rdma, needs, process))
    paging = {
        nic.name: nic.driver not in WITHOUT_PAGING and nic.verbs.pages_on_demand
        for nic in rdma.present
        if nic.name in names
    }
    pinning = [name for name, pages in paging.items() if pages is False]
    if not pinning:
        if peer:
            return finding
        why = "whether this Mooncake has dma-buf for AMD's GPUs"
        unsaid = [pages for pages in paging.values() if isinstance(pages, Unknown)]
        if unsaid:
            why += ", and the NICs page on demand (ibv_devinfo -v: ODP_SUPPORT),"
        advice = next((pages.advice for pages in unsaid), "")
        return finding.undecided(Unknown(f"{why} is not known", advice=advice))
    setting = Setting(Kind.ENVIRONMENT, NO_HIP_DMA_BUF, "1")
    text = (
        f"by dma-buf {', '.join(pinning)} pin the whole KV cache and hold a second copy of it in "
        "GPU memory: a large one ends with SIGSEGV or HIP error 209"
    )
    if peer:
        advice = f"set {NO_HIP_DMA_BUF}=1: peer memory takes the KV cache as it is, on every NIC"
        return finding.warned(text, advice, (setting,))
    if off:
        text = "without dma-buf and without peer memory ibv_reg_mr of GPU memory fails (EINVAL)"
    return finding.warned(
        text,
        "load a peer-memory module on the host, or name NICs with on-demand paging "
        "(--disaggregation-ib-device), or lower --mem-fraction-static until it fits twice",
    )


def _judge_peer_memory(finding: Finding, system: SystemFacts, gpus: GpuFacts) -> Finding:
    """Judge whether nvidia_peermem lets NICs register GPU memory.

    Args:
        finding: To be completed.
    """
    finding = finding._replace(need="nvidia_peermem loaded (WITH_NVIDIA_PEERMEM is on)")
    facts = gpus.peer_modules, gpus.memory_peers
    modules, clients = (() if isinstance(fact, Unknown) else fact for fact in facts)
    evidence = (
        Evidence("/proc/modules", ", ".join(modules) or "no nvidia_peermem"),
        Evidence(MEMORY_PEERS, ", ".join(clients) or "no client"),
    )
    finding = finding._replace(evidence=evidence)
    for name in (*modules, *clients):
        return finding._replace(have=f"{name} loaded")
    for fact in facts:
        if isinstance(fact, Unknown):
            return finding.undecided(fact)
    advice = "load nvidia_peermem on the host"
    if _dma_buf_problem(system, gpus) is None:
        advice += ", or set WITH_NVIDIA_PEERMEM=0: dma-buf works here"
    return finding.failed(
        "ibv_reg_mr of GPU memory fails with Bad address [14], and the server ends",
        advice,
        (Setting(Kind.MODULE, "nvidia_peermem", ""),),
        have="not loaded",
    )


def _judge_dma_buf(finding: Finding, system: SystemFacts, gpus: GpuFacts) -> Finding:
    """Judge whether dma-buf lets NICs register GPU memory.

    Args:
        finding: To be completed.
    """
    finding = finding._replace(
        need="dma-buf: open kernel module, Linux 5.12 (WITH_NVIDIA_PEERMEM=0)"
    )
    problem = _dma_buf_problem(system, gpus)
    have = f"{gpus.kernel_module} kernel module" if isinstance(gpus.kernel_module, str) else ""
    evidence = (Evidence(DRIVER_VERSION, str(gpus.kernel_module_version)),)
    finding = finding._replace(have=have, evidence=evidence)
    if problem is None:
        return finding._replace(have=f"{have}, attribute 124 = 1")
    if isinstance(problem, Unknown):
        return finding.undecided(problem.of("whether the GPUs can do dma-buf is not known: "))
    unset = Setting(Kind.ENVIRONMENT, "WITH_NVIDIA_PEERMEM", "", "0")
    return finding.failed(
        f"{problem}: no NIC can be opened for a GPU, and the server ends",
        "load nvidia_peermem, and leave WITH_NVIDIA_PEERMEM unset",
        (Setting(Kind.MODULE, "nvidia_peermem", ""), unset),
    )


@or_unknown
def _dma_buf_problem(system: SystemFacts, gpus: GpuFacts) -> str | Unknown | None:
    """Return why GPU memory cannot be exported as dma-buf; None if it can.

    Returns:
        Unknown if the kernel's release or CUDA's answer is not known.
    """
    # The proprietary module never has it, whatever the GPU (NVIDIA open-gpu-kernel-modules).
    if gpus.kernel_module == "proprietary":
        return "the proprietary kernel module exports no dma-buf"
    kernel = system.kernel
    if not isinstance(kernel, Unknown) and kernel < DMA_BUF_KERNEL:
        return f"Linux {kernel[0]}.{kernel[1]} registers no dma-buf"
    abilities = require(gpus.abilities)
    if any(ability.dma_buf is False for ability in abilities):
        return "CUDA says that a GPU has no dma-buf (attribute 124 = 0)"
    if not abilities or any(ability.dma_buf is None for ability in abilities):
        return Unknown("CUDA does not say (attribute 124)")
    return kernel if isinstance(kernel, Unknown) else None

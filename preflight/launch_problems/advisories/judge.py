"""Holds every record against a launch on a host, and says what affects it.

A record's conditions ask for named facts of one process. ``env.NAME`` is a variable of the process,
``flag.NAME`` a flag of its program (SGLang's argument by its name, a gflag of Mooncake's programs):
None if it is not given and has no default, Unknown if something that is not known may give it. All
others stand in ``FACTS``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from checks.framework.finding import Evidence, Finding, Status
from checks.framework.problem import Problems
from checks.framework.root import Root
from checks.framework.unknown import Unknown, UnknownFactError, UnreadTopicError, require
from checks.rdma.facts import Nic
from checks.rdma.use import forces_tcp
from checks.releases.sglang import sglang_release
from checks.run_checks.facts import Facts
from checks.software.facts import Environment
from checks.software.software_checks import OTHER_CONTAINER
from preflight.command_inputs.host_source import Sized
from preflight.engines.programs.mooncake_flags import as_integer, flags_of, is_on, value_of
from preflight.engines.programs.sglang_arguments import why_unresolved, word_value
from preflight.engines.sglang.launch import configured_segment
from preflight.engines.sglang.model import Models
from preflight.engines.sglang.model_geometry import LayerKind, ModelGeometry
from preflight.engines.sglang.pool_request import layout_in_use
from preflight.launch_problems.advisories.records import (
    PRODUCTS,
    SEVERITIES,
    Advisory,
    advisories,
    all_or_any,
    condition_text,
    holds,
    in_ranges,
    program_of,
    range_text,
)
from preflight.needs.sizing_inputs import Input
from preflight.processes.containers import network_of
from preflight.processes.mooncake_users import (
    engine_protocol,
    ssd_offload,
    store_clients,
    store_devices,
    store_protocol,
    uses_mooncake,
)
from preflight.processes.processes import GFLAGS_PROGRAMS, LaunchProcess, ProcessKind

_ID = "launch.advisories"
ADVISORIES = Problems("../../verdict/pages")
# What the records ask of the host; a host whose topics were not all read is unknown in those.
TOPICS = ("system", "memory", "pci", "gpus", "rdma", "software")


class Verdict(NamedTuple):
    """The answer whether one record affects one process.

    Attributes:
        version: Of the product, or why it is not known.
        holds: Whether the process runs an affected version and the record's conditions hold.
        unseen_settings: As of ``AdvisorySubject``.
    """

    advisory: Advisory
    process: LaunchProcess
    product: str
    version: str | Unknown
    holds: bool | Unknown
    unseen_settings: Unknown | None

    @property
    def depends_on_unseen_settings(self) -> bool:
        """Tell whether only settings that are not seen leave the answer open."""
        return self.unseen_settings is not None and self.holds is self.unseen_settings


def verdicts(sized: Sized, facts: Facts, root: Root) -> Iterator[Verdict]:
    """Judge every advisory for every process of the launch: one verdict a pair.

    A verdict does not hold if the process does not run the product.

    Args:
        root: Of the host, where models are read.
    """
    clients = clients_by_network(sized)
    subjects = [
        AdvisorySubject(process, sized, facts, root, unseen_settings(process), clients)
        for process in sized.sizing.inputs.processes
    ]
    for record in advisories():
        for subject in subjects:
            yield _verdict(record, subject)


def _verdict(record: Advisory, subject: AdvisorySubject) -> Verdict:
    """Judge one record for one process: its conditions first, then the release of each affected
    product until one is affected for certain.
    """
    value = partial(fact, subject)
    product, unasked = record.affected[0].product, Unknown("not asked")
    verdict = Verdict(record, subject.process, product, unasked, False, subject.unseen_settings)
    conditions = True if record.when is None else holds(record.when, value)
    if conditions is False:
        return verdict
    for each in record.affected:
        # Whose code does not run here is not asked for its release.
        product = program_of(each.product)
        asked = PRODUCTS[each.product][0] == "PyPI" and product != "nixl"
        user = value(f"uses.{product}") if asked else True
        if user is False:
            continue
        version = value(product)
        if version is None:
            continue
        within = version if isinstance(version, Unknown) else in_ranges(each, str(version))
        if within is False:
            continue
        if each.product != product:
            wheel = value("mooncake.wheel")
            ours = wheel if isinstance(wheel, Unknown) else each.product in wheel
            within = all_or_any((within, ours), True)
        release = version if isinstance(version, Unknown) else str(version)
        whole = all_or_any((user, within, conditions), True)
        verdict = verdict._replace(product=product, version=release, holds=whole)
        if verdict.holds is True:
            return verdict
    return verdict


@ADVISORIES(_ID)
def advisory_findings(sized: Sized, facts: Facts, root: Root) -> list[Finding]:
    """Judge every record for a launch on a host.

    A finding is made for each process that a record affects, or may affect. The other records are
    counted: those that affect no process in one that passes; in one that is skipped, those whose
    event may arise only while the launch runs; in one more that is skipped for each unknown release
    or word, those that depend on it. Records that another check covers are left out.
    """
    findings: list[Finding] = []
    open_: dict[tuple[str, str], set[str]] = {}
    judged: set[str] = set()
    later: set[str] = set()
    for verdict in verdicts(sized, facts, root):
        record = verdict.advisory
        if record.covered_by:
            continue
        judged.add(record.check)
        if verdict.holds is False:
            continue
        if _awaits_event(verdict):
            later.add(record.check)
        elif verdict.holds is True:
            status = Status.FAIL if record.grave else Status.WARN
            findings.append(_finding(verdict, status, f"What is seen: {record.seen}"))
        elif isinstance(verdict.version, Unknown):
            why = (verdict.version.reason, verdict.version.advice)
            open_.setdefault(why, set()).add(record.check)
        elif verdict.depends_on_unseen_settings and verdict.unseen_settings is not None:
            open_.setdefault((verdict.unseen_settings.reason, ""), set()).add(record.check)
        else:
            status, open_fact = Status.UNKNOWN if record.grave else Status.WARN, verdict.holds
            text = f"It is where {condition_text(record.when)}; not known: {open_fact.reason}"
            finding = _finding(verdict, status, text)
            findings.append(finding._replace(cause=open_fact.cause, code=open_fact.code))
    named = {each.check for each in findings}.union(later, *open_.values())
    if later:
        text = f"{_count(later)} may arise while it runs, which nothing here decides: "
        text += "mooncake-preflight explain --advisories LAUNCH"
        findings.append(Finding(_ID, Status.SKIP, "launch", text=text))
    for (reason, advice), ids in open_.items():
        text = f"what decides {_count(ids)}. {advice}".rstrip()
        findings.append(Finding(_ID, Status.SKIP, reason, text=text))
    if judged - named:
        have = f"{_count(judged - named)}, none of them here"
        findings.append(Finding(_ID, Status.PASS, "launch", have=have))
    return findings


def may_arise(sized: Sized, facts: Facts, root: Root) -> list[Verdict]:
    """Return the verdicts that only an event while the launch runs can still decide.

    Covered records are left out.
    """
    every = verdicts(sized, facts, root)
    return [v for v in every if not v.advisory.covered_by and _awaits_event(v)]


def _awaits_event(verdict: Verdict) -> bool:
    """Tell whether only an event while the launch runs still decides, as the release is known."""
    if not verdict.advisory.arises or verdict.holds is False:
        return False
    return verdict.holds is True or not isinstance(verdict.version, Unknown)


def _count(ids: set[str]) -> str:
    return f"{len(ids)} known problem{'s' * (len(ids) != 1)}"


def _finding(verdict: Verdict, status: Status, after: str) -> Finding:
    """Return the finding on one record and one process.

    Args:
        after: The last sentence of its text.
    """
    record = verdict.advisory
    ranges = "; ".join(map(range_text, record.affected))
    return Finding(
        record.check,
        status,
        verdict.process.name,
        text=f"{record.summary} ({verdict.product} {verdict.version}; affected: {ranges}). {after}",
        evidence=tuple(Evidence(url, reference.lower()) for reference, url in record.references),
        advice=record.remedy,
        consequence=SEVERITIES[record.severity],
    )


_NAMES = {"mooncake": "Mooncake", "sglang": "SGLang"}
_SGLANG = (ProcessKind.SGLANG, ProcessKind.DYNAMO_SGLANG)
_VLLM = (ProcessKind.VLLM, ProcessKind.DYNAMO_VLLM)


class AdvisorySubject(NamedTuple):
    """A process, its launch and its host.

    Attributes:
        unseen_settings: Why the process may have settings that are not seen (an unread file, an
            unknown word); None if all are seen.
        clients: The number of the store's clients, by network.
    """

    process: LaunchProcess
    sized: Sized
    facts: Facts
    root: Root
    unseen_settings: Unknown | None
    clients: Mapping[str, int | Unknown]


def fact(subject: AdvisorySubject, name: str) -> Any:
    """Return the value of a fact about a process: ``env.NAME``, ``flag.NAME`` or a name of FACTS.

    Returns:
        None if it has no value, Unknown if it is not known.

    Raises:
        KeyError: For any other name.
    """
    prefix, dot, rest = name.partition(".")
    try:
        if dot and prefix == "env":
            word = subject.process.command.environment.get(rest)
            return None if word is None else word_value(word)
        if dot and prefix == "flag":
            return _flag(subject, rest)
        return FACTS[name](subject)
    except (UnknownFactError, UnreadTopicError) as error:
        return error.fact


def _flag(subject: AdvisorySubject, name: str) -> Any:
    """Return the value of a flag of the process's program.

    A flag that is not given has its default if it is SGLang's or a boolean, else None.

    Returns:
        Unknown if settings that are not seen may give it.
    """
    process, program = subject.process, GFLAGS_PROGRAMS.get(subject.process.kind)
    unseen = subject.unseen_settings
    if process.server is not None:
        setting = process.server.arguments.settings.get(name)
        if setting is None or setting.given or unseen is None:
            return None if setting is None else setting.value
        return unseen
    if program is None:
        return None
    word = value_of(process.arguments, name)
    declared = flags_of(program).get(name)
    flag_type = "string" if declared is None else declared.type
    if flag_type == "bool":
        on = is_on(process.arguments, program, name)
        if on is None:
            return Unknown(f"--{name} follows from a variable")
        return unseen if word is None and unseen is not None else on
    if word is None:
        return unseen
    value = word_value(word)
    if flag_type == "string" or isinstance(value, Unknown):
        return value
    number = as_integer(flag_type, value)
    return value if number is None else number


def unseen_settings(process: LaunchProcess) -> Unknown | None:
    """Return why a process may have settings that are not seen; None if all are seen."""
    unread = process.server.arguments.unread if process.server else process.unread
    if unread is None and process.store and isinstance(process.store.client, Unknown):
        unread = process.store.client
    word = next(process.open_words, None)
    return unread if unread is not None or word is None else why_unresolved(word)


def _uses(subject: AdvisorySubject, product: str) -> bool:
    """Tell whether code of ``product`` (sglang, vllm, lmcache; else Mooncake) runs in the process.

    Returns:
        True for LMCache that may run in vLLM.

    Raises:
        UnknownFactError: If Mooncake's use is not known.
    """
    process = subject.process
    if product == "sglang":
        return process.kind in _SGLANG
    if product == "vllm":
        return process.kind in _VLLM
    if product == "lmcache":
        consumer = process.consumer
        # What is not counted of a vLLM may be LMCache.
        parts = () if consumer is None else (*consumer.parts, *consumer.uncounted)
        return process.kind is ProcessKind.LMCACHE or (process.kind in _VLLM and bool(parts))
    may_use = None if process.consumer is None else process.consumer.may_use
    if may_use is not None and not uses_mooncake(process):
        raise UnknownFactError(may_use)
    server = process.server
    by_engine = server is not None and server.store is None and engine_protocol(server) is not None
    if not uses_mooncake(process) or not by_engine:
        return uses_mooncake(process)
    # Only the engine would be Mooncake's, and may be another's.
    return require(_flag(subject, "disaggregation_transfer_backend")) is not None


def _words(subject: AdvisorySubject) -> str:
    environment = subject.process.command.environment
    texts = [word.text for word in subject.process.command.words]
    return " ".join((*texts, *(f"{name}={word.text}" for name, word in environment.items())))


def release_of(sized: Sized, product: str) -> Input:
    """Return the release that a launch is sized for.

    It is known even if the sizes are not.
    """
    return sized.sizing.inputs.releases[f"{product}_version"]


def _version(subject: AdvisorySubject, product: str) -> str | Unknown:
    """Return the release that the launch is sized for; Unknown if it is an assumption."""
    release, name = release_of(subject.sized, product), _NAMES[product]
    if release.assumed:
        return Unknown(f"the release of {name} is not known", advice=f"give --{product}-version")
    return str(release.value)


def _named_release(subject: AdvisorySubject, product: str) -> str | Unknown:
    consumer = subject.process.consumer
    named = None if consumer is None else consumer.named.get(product.lower())
    return Unknown(f"the release of {product} is not known") if named is None else named.release


def _environment(subject: AdvisorySubject) -> Environment:
    """Return the software of the environment that the process runs in.

    Raises:
        UnknownFactError: If the process runs in another container, or if neither SGLang nor
            Mooncake is installed here.
    """
    engine = require(_local_facts(subject).software.engine)
    if engine is None:
        raise UnknownFactError(Unknown("neither SGLang nor Mooncake is installed here"))
    return engine


def _local_facts(subject: AdvisorySubject) -> Facts:
    """Return this host's facts.

    Raises:
        UnknownFactError: For a process in another container.
    """
    inside = subject.facts.system.container.inside
    if subject.process.command.container is not None and not inside:
        raise UnknownFactError(Unknown(OTHER_CONTAINER))
    return subject.facts


def _nics(subject: AdvisorySubject) -> list[Nic]:
    """Return the NICs that the first rank of a process names, or all if it names none.

    Raises:
        UnknownFactError: If the names are not known.
    """
    use = store_devices(subject.process, 0)
    names = () if use is None else require(use.devices)
    nics = require(subject.facts.rdma.nics)
    return [nic for nic in nics if not names or nic.name in names]


def _object_bytes(subject: AdvisorySubject) -> int | Unknown:
    """Return the bytes of the largest object that SGLang servers of the launch put into the store.

    Returns:
        Unknown if no server uses the store, or a server's host pools are not known.

    Raises:
        UnknownFactError: If a page size is not known.
    """
    inputs, sizes = subject.sized.sizing.inputs, []
    for process in inputs.processes:
        if process.server is None or process.server.store is None:
            continue
        memory, page = inputs.memory.get(process.number), require(process.server.value("page_size"))
        pools = [host_pool for host_pool in memory.pools if host_pool.tokens] if memory else []
        if not pools:
            missing = None if memory is None else memory.missing
            return Unknown("the size of an object of the store") if missing is None else missing
        sizes.append(pools[0].object_bytes(page))
    return max(sizes) if sizes else Unknown("what the store holds is not in this launch")


def _segment_bytes(subject: AdvisorySubject) -> int | None:
    """Return the segment size that a process's store client sets, the largest of several clients;
    None without a client or a valid size.

    Of an SGLang server it is ``global_segment_size`` as written, which some releases divide among
    ranks.

    Raises:
        UnknownFactError: If it is not known.
    """
    server = subject.process.server
    if server is not None:
        require(_store_setting(subject, "global_segment_size"))
        return configured_segment(server)
    sizes = [require(store.client).segment_bytes for store in subject.process.stores]
    return max(sizes, default=None)


def _driver(subject: AdvisorySubject) -> str | None:
    """Return the version of NVIDIA's driver; None without an NVIDIA GPU, or without a driver.

    Raises:
        UnknownFactError: If the GPUs or the version are not known.
    """
    gpus = subject.facts.gpus
    if require(gpus.nvidia) is False:
        return None
    driver = None if isinstance(gpus.nvml, Unknown) else gpus.nvml.driver
    return driver or require(gpus.kernel_module_version) or None


def _model(subject: AdvisorySubject) -> ModelGeometry | None:
    server = subject.process.server
    if server is None:
        return None
    models = Models(subject.root, subject.sized.options.model_config)
    return require(models.target(server.value("model_path")).geometry)


def _protocol(subject: AdvisorySubject) -> str | None:
    protocol = store_protocol(subject.process)
    named = protocol is not None and require(protocol)
    return "tcp" if named == "rdma" and _is_forced(subject) else named or None


def _engine_protocol(subject: AdvisorySubject) -> str | Unknown | None:
    """Return the protocol of a process's transfer engine (rdma, tcp, ..); None without one."""
    process = subject.process
    if process.server is not None:
        protocol = engine_protocol(process.server)
        if protocol is not None:
            require(_flag(subject, "disaggregation_transfer_backend"))
        return protocol
    named = process.consumer.transfer_protocol if process.consumer else ""
    return "tcp" if named and "MC_FORCE_TCP" in process.command.environment else named or None


def _is_forced(subject: AdvisorySubject) -> bool:
    use = store_devices(subject.process, 0)
    variables = subject.process.command.environment
    if use is None or "MC_FORCE_TCP" not in variables:
        return False
    return forces_tcp(require(use.devices), {name: word.text for name, word in variables.items()})


def _uses_rdma(subject: AdvisorySubject) -> bool:
    if require(_engine_protocol(subject)) == "rdma":
        return True
    protocol = store_protocol(subject.process)
    return protocol is not None and require(protocol) == "rdma" and not _is_forced(subject)


def _metadata(subject: AdvisorySubject) -> Any:
    """Return the scheme of the metadata server's address, etcd if it has none, or P2PHANDSHAKE.

    Returns:
        None without an address.
    """
    process = subject.process
    if process.server is not None:
        address = _store_setting(subject, "metadata_server")
    else:
        address = None if process.store is None else process.store.metadata
    if not require(address) or address == "P2PHANDSHAKE":
        return address or None
    scheme, colon, _ = address.partition("://")
    return scheme if colon else "etcd"


def _master(subject: AdvisorySubject) -> Any:
    process = subject.process
    if process.server is not None:
        return _store_setting(subject, "master_server_address")
    return None if process.store is None else process.store.master


def _ranks_together(subject: AdvisorySubject) -> int | None:
    server = subject.process.server
    if server is None:
        return None
    return require(server.number("tp_size")) // max(1, require(server.attention_dp))


def clients_by_network(sized: Sized) -> dict[str, int | Unknown]:
    """Count the store's clients by the network of their containers: clients of one network share
    one address.

    Returns:
        Unknown if the number of a server's clients is not known.
    """
    sizing = sized.sizing
    users: dict[str, list[LaunchProcess]] = {}
    for process in sizing.inputs.processes:
        if store_clients(process):
            users.setdefault(network_of(process.command), []).append(process)
    shown = None if sizing.shown is None else sizing.shown.inputs.launch.processes
    shares = Counter[int]()
    for replayed in shown or ():
        shares[replayed.id.command] += len(replayed.clients)
    clients: dict[str, int | Unknown] = {}
    for network, members in users.items():
        if shown is not None:
            clients[network] = sum(shares[process.number] for process in members)
        elif all(process.store for process in members):  # a store service, a client: one each
            clients[network] = len(members)
        else:
            clients[network] = Unknown("how many clients of the store there are is not known")
    return clients


def _layout(subject: AdvisorySubject) -> Any:
    server = subject.process.server
    if server is None or not server.hicache:
        return None
    require(_flag(subject, "hicache_mem_layout"))
    return layout_in_use(server, sglang_release(require(_version(subject, "sglang"))))


def _store_setting(subject: AdvisorySubject, key: str) -> Any:
    server = subject.process.server
    return None if server is None or server.store is None else server.store.value(key)


Read = Callable[[AdvisorySubject], Any]
# Each fact that a record may name, and how it is read.
FACTS: Mapping[str, Read] = {
    "program": lambda s: s.process.kind.value,  # SGLang server, mooncake_master, ..
    "uses.mooncake": lambda s: _uses(s, "mooncake"),  # Mooncake runs in the process
    "uses.sglang": lambda s: _uses(s, "sglang"),
    "uses.vllm": lambda s: _uses(s, "vllm"),
    "uses.lmcache": lambda s: _uses(s, "lmcache"),  # or may, in vLLM
    "uses.store": lambda s: store_clients(s.process),
    "uses.rdma": _uses_rdma,  # it registers with NICs
    "uses.offload": lambda s: require(ssd_offload(s.process)) is True,
    "uses.hicache": lambda s: require(_flag(s, "enable_hierarchical_cache")) is True,
    "hicache.layout": _layout,  # of L2, after SGLang's own changes to it
    "words": _words,  # all words and variables of its command
    "mooncake": lambda s: _version(s, "mooncake"),
    "mooncake.wheel": lambda s: frozenset(wheel.name for wheel in _environment(s).mooncake),
    "mooncake.missing": lambda s: frozenset(  # libraries that its files need and do not find
        name for file in require(_local_facts(s).software.files) or () for name, _ in file.missing
    ),
    "sglang": lambda s: _version(s, "sglang"),
    "vllm": lambda s: _named_release(s, "vLLM"),  # by its image or pip, as LMCache's
    "lmcache": lambda s: _named_release(s, "LMCache"),
    "nixl": lambda s: Unknown("the release of NIXL is not known"),
    "gpu-operator": lambda s: Unknown("the release of NVIDIA's GPU operator is not known"),
    "store.protocol": _protocol,  # rdma, tcp, .. of the store's client
    "store.master": _master,
    "store.metadata": _metadata,  # etcd, http, redis, P2PHANDSHAKE
    "engine.protocol": _engine_protocol,  # of the engine between prefill and decode
    "store.standalone": lambda s: _store_setting(s, "standalone_storage"),  # in a mooncake_client
    # How many clients of the store have the process's address.
    "store.clients": lambda s: s.clients.get(network_of(s.process.command), 0),
    "store.object-bytes": _object_bytes,  # of the largest that the launch puts
    "store.segment-bytes": _segment_bytes,
    "ranks.together": _ranks_together,  # ranks of one server that hold the same requests
    "model.attention": lambda s: None if (m := _model(s)) is None else m.kind.value,  # mha, mla
    "model.indexer": lambda s: (m := _model(s)) is not None and bool(m.index_layers),
    "model.linear": lambda s: (m := _model(s)) is not None and m.count(LayerKind.LINEAR) > 0,
    "kernel": lambda s: s.facts.system.kernel_release,
    "kernel.arguments": lambda s: s.facts.pci.command_line,
    "glibc": lambda s: _local_facts(s).system.glibc,
    "architecture": lambda s: s.facts.system.architecture,  # x86_64, aarch64
    # Bytes that the kernel keeps for contiguous allocations.
    "memory.cma-total": lambda s: require(s.facts.memory.meminfo).values.get("CmaTotal"),
    "rdma-core": lambda s: str(require(_local_facts(s).rdma.libraries.version)),
    "nic.driver": lambda s: frozenset(
        str(require(nic.driven_by)) for nic in require(s.facts.rdma.nics)
    ),
    # On how many NUMA nodes those sit that the process takes, and how many they are.
    "nic.nodes": lambda s: len({require(nic.node) for nic in _nics(s)} - {None}),
    "nic.taken": lambda s: len(_nics(s)),
    "gpu.name": lambda s: frozenset(
        ()
        if require(s.facts.gpus.nvidia) is False
        else (gpu.name for gpu in require(s.facts.gpus.nvml).gpus if gpu.name is not None)
    ),
    "nvidia-driver": _driver,
}

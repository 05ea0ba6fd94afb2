"""Is Mooncake installed once, for the launch's interpreter, with its libraries and as meant?"""

from collections.abc import Iterator

from checks.framework.finding import (
    Consequence,
    Evidence,
    Finding,
    Kind,
    Setting,
    Status,
    UnjudgedError,
    command,
    or_unjudged,
    passed,
    skip,
    unknown_finding,
)
from checks.framework.fold import fold
from checks.framework.needs import LaunchNeeds, ProcessNeeds
from checks.framework.problem import Problems, the_launch
from checks.framework.unknown import Unknown, require, unread
from checks.framework.written_numbers import is_release
from checks.gpu.hardware_use import probes_numactl
from checks.rdma.facts import RdmaFacts
from checks.rdma.use import EFA
from checks.releases.mooncake import work_together
from checks.software.facts import (
    TRANSPORTS,
    AskedPart,
    CompiledFile,
    Environment,
    Master,
    Record,
    SoftwareFacts,
    asked_parts,
)
from checks.system.facts import SystemFacts

CHECKS = Problems()
_MISSING_TEXT = (
    "Please install mooncake by following the instructions at "
    "https://kvcache-ai.github.io/Mooncake/getting_started/build.html "
    "to run SGLang with MooncakeConnector."
)


OTHER_CONTAINER = "the launch runs in a container, and this is not it"
# The compiled files that each program loads or is, without their endings.
FILES_OF = {
    "sglang": ("engine", "store", "_store"),
    "store_service": ("store", "_store"),
    "mooncake_client": ("mooncake_client",),
    "mooncake_master": ("mooncake_master",),
    "vllm": ("engine", "store", "_store"),
}
# These use Mooncake where the launch says so.
_SERVERS = ("sglang", "vllm")


def elsewhere(system: SystemFacts, process: ProcessNeeds) -> bool:
    """Return whether the process runs in a container that this check does not run in."""
    return process.container is not None and not system.container.inside


def using_mooncake(needs: LaunchNeeds | None) -> list[ProcessNeeds]:
    """Return the processes of a launch that load or run Mooncake's compiled files.

    Raises:
        UnjudgedError: Without a launch, or if no process does.
    """
    launch = the_launch(needs)
    stored = any(service.kind in ("master", "client") for service in launch.services)
    processes = [
        process
        for process in launch.processes
        if process.program in FILES_OF
        and (process.program not in _SERVERS or stored or process.rdma is not None)
    ]
    if not processes:
        raise UnjudgedError(skip("no process of the launch uses Mooncake"))
    return processes


def pip_install(engine: Environment, *arguments: str) -> Setting:
    """Return the command that installs into the engine's environment."""
    name = f"install {' '.join(arguments)}"
    return command(engine.interpreter, "-m", "pip", "install", *arguments, name=name)


@CHECKS("software.mooncake-missing", processes=using_mooncake)
def mooncake_missing(
    processes: list[ProcessNeeds], software: SoftwareFacts, system: SystemFacts
) -> Iterator[Finding]:
    yield from fold(_judge_missing(system, software, process) for process in processes)


@or_unjudged
def _judge_missing(system: SystemFacts, software: SoftwareFacts, process: ProcessNeeds) -> Finding:
    """Judge whether Mooncake is installed for the first interpreter that has SGLang or Mooncake.

    Returns:
        Unknown if no interpreter has either.
    """
    if elsewhere(system, process):
        return skip(OTHER_CONTAINER, process.name)
    environments = unknown_finding(process.name, "").require(software.environments)
    engine = software.engine
    looked_at = ", ".join(environment.interpreter for environment in environments)
    need = "Mooncake installed"
    if not isinstance(engine, Environment):
        text = f"neither SGLang nor Mooncake is installed for {looked_at}"
        advice = "run this check with the interpreter that runs the launch"
        return passed(process.name, need=need).undecided(text, advice=advice)
    finding = passed(process.name, _have(engine), need)
    if engine.package is not None:
        return finding._replace(evidence=(Evidence(engine.package, _have(engine)),))
    seen = Evidence(", ".join(engine.folders), "no folder mooncake with engine.so in it")
    text = f'it ends with "ImportError: {_MISSING_TEXT}"'
    advice = f"install mooncake-transfer-engine for {engine.interpreter}"
    settings = (pip_install(engine, "mooncake-transfer-engine"),)
    return finding.failed(text, advice, settings, have="none", evidence=(seen,))


def _have(engine: Environment) -> str:
    if engine.mooncake:
        return " and ".join(f"{wheel.name} {wheel.version}" for wheel in engine.mooncake)
    return "Mooncake without a wheel" if engine.package is not None else "none"


@CHECKS("software.mooncake-duplicate")
def mooncake_duplicate(software: SoftwareFacts) -> Iterator[Finding]:
    """Judge whether only one Mooncake is installed, and whether its files are still those of its
    wheel: not changed, not overwritten by another wheel, not shadowed by another folder.

    Judge too whether the mooncake_master on PATH is of the same release.
    """
    engine = require(software.engine)
    if engine is None:
        yield skip("neither SGLang nor Mooncake is installed here")
        return
    files = software.files if isinstance(software.files, tuple) else ()
    records = software.records if isinstance(software.records, tuple) else ()
    master = software.master if isinstance(software.master, Master) else None
    seen = [(wheel.folder, f"{wheel.name} {wheel.version}") for wheel in engine.mooncake]
    seen += [
        (f"{engine.package}/{file.name}", f"release {' or '.join(file.releases)}")
        for file in files
        if file.releases
    ]
    for wheel, count, changed in records:
        listed = f"{count} files of Mooncake, {len(changed)} differ"
        source = f"RECORD of {wheel.name} {wheel.version}"
        seen.append((source, "there is none" if count is None else listed))
    if master is not None:
        release = " or ".join(master.releases) or "unknown"
        seen.append((master.path, f"release {release}: {master.source}"))
    evidence = tuple(Evidence(*pair) for pair in seen)
    finding = passed(engine.interpreter, _have(engine), evidence=evidence)
    finding = _judge_copies(finding, engine, files, records)
    # What PYTHONPATH puts in front of one interpreter's wheel, a script of another takes too.
    same = master is not None and (master.package == engine.package or _shadowed(engine))
    if master is not None and engine.package is not None and not (master.package and same):
        installed = tuple(each.version for each in engine.mooncake[:1])
        imported = _program_releases(files) if _shadowed(engine) else installed
        finding = _judge_master(finding, master, imported)
    for fact in (software.records, software.master):
        if isinstance(fact, Unknown) and finding.status is Status.PASS:
            finding = finding.undecided(fact)
    yield finding


def _shadowed(engine: Environment) -> bool:
    """Return whether an import takes a folder that came with none of the wheels."""
    folder = (engine.package or "").rpartition("/")[0]
    return engine.package is not None and folder not in [wheel.folder for wheel in engine.mooncake]


def _program_releases(files: tuple[CompiledFile, ...]) -> tuple[str, ...]:
    """Return the releases that a folder's programs may be of: those of the program with the fewest;
    () if none is known.
    """
    return min((file.releases for file in files if file.releases), key=len, default=())


def _judge_copies(
    finding: Finding,
    engine: Environment,
    files: tuple[CompiledFile, ...],
    records: tuple[Record, ...],
) -> Finding:
    """Warn if an interpreter has several wheels of Mooncake, or if an import takes a folder of no
    wheel although a wheel is installed.

    Warn too if files differ from those of the only wheel. Else ``finding`` is unchanged.
    """
    folders = [each.folder for each in engine.mooncake]
    if folders and _shadowed(engine):
        programs = " or ".join(_program_releases(files))
        release = f"programs are of release {programs}" if programs else "release is unknown"
        text = f"an import takes {engine.package}, which came with no wheel: its {release}"
        advice = "remove its folder from PYTHONPATH, or uninstall the wheel that it shadows"
        return finding.warned(text, advice, need="one of them")
    if len(folders) < 2:
        return _judge_files(finding, engine, files, records)
    whole = {f"{x.wheel.name} {x.wheel.version}" for x in records if x.listed and not x.changed}
    wheels = whole or {file.wheel for file in files if file.wheel}
    on_disk = f"; the files on disk are of {' and '.join(sorted(wheels))}" if wheels else ""
    text = f"they overwrite each other's files{on_disk}"
    if len(set(folders)) == len(folders):
        text = f"an import takes {engine.package or 'neither'}, which shadows the others"
    keep = engine.mooncake[0]
    uninstall = ("-m", "pip", "uninstall", "--yes", *dict.fromkeys(x.name for x in engine.mooncake))
    settings = (
        command(engine.interpreter, *uninstall, name="uninstall Mooncake"),
        pip_install(engine, f"{keep.name}=={keep.version.removesuffix('+editable')}"),
    )
    advice = "uninstall all of them and install the one that is meant"
    return finding.warned(text, advice, settings, need="one of them")


def _judge_files(
    finding: Finding,
    engine: Environment,
    files: tuple[CompiledFile, ...],
    records: tuple[Record, ...],
) -> Finding:
    """Warn if the installed files of Mooncake's only wheel are of another release than the wheel's,
    or differ from its RECORD.

    Else, and without a wheel, ``finding`` is unchanged.
    """
    if not engine.mooncake:
        return finding
    (wheel,) = engine.mooncake
    named = wheel.version.partition("+")[0]
    wrong = [
        f"{file.name} is of release {' or '.join(file.releases)}"
        for file in files
        if file.releases and is_release(wheel.version) and named not in file.releases
    ]
    for name, listed_bytes, have_bytes in (row for record in records for row in record.changed):
        have = "is absent" if have_bytes is None else f"has {have_bytes} bytes for {listed_bytes}"
        same = "has other content in as many bytes"
        wrong.append(f"{name} {same if have_bytes == listed_bytes else have}")
    if not wrong:
        return finding
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    text = f"the installed files are not those of {named}: {', '.join(wrong[:3])}{more}"
    advice = "install it again, unless somebody changed these files on purpose"
    again = pip_install(engine, "--force-reinstall", "--no-deps", f"{wheel.name}=={named}")
    return finding.warned(text, advice, (again,), need="the files that its RECORD lists")


def _judge_master(finding: Finding, master: Master, imported: tuple[str, ...]) -> Finding:
    """Warn if the mooncake_master on PATH is of another release than the Mooncake that an import
    takes (``imported``), or if either is unknown.

    The text and advice of ``finding`` are kept.
    """
    ours, theirs = (
        [version.partition("+")[0] for version in each] for each in (imported, master.releases)
    )
    if set(ours) & set(theirs):
        return finding
    of = f"release {' or '.join(theirs)}" if theirs else "unknown release"
    text = (
        f"a command mooncake_master starts {master.path}, of {of}, "
        f"and an import takes Mooncake {' or '.join(ours) or 'of unknown release'}"
    )
    if theirs and ours and work_together(theirs[0], ours[0]) is False:
        text += ", whose clients fail with that master"
    text = f"{finding.text}; {text}" if finding.text else text
    advice = f"{finding.advice} Start the master by its path, or remove {master.path} from PATH."
    return finding.warned(text, advice.strip(), need=finding.need or "one release")


# Library -> package of Debian and Ubuntu, package of the Red Hat family.
PACKAGES = {
    "libibverbs.so.1": ("libibverbs1", "libibverbs"),
    "libmlx5.so.1": ("ibverbs-providers", "libibverbs"),
    "librdmacm.so.1": ("librdmacm1", "librdmacm"),
    "libnuma.so.1": ("libnuma1", "numactl-libs"),
    "libcurl.so.4": ("libcurl4", "libcurl"),
    "liburing.so.2": ("liburing2", "liburing"),
    "libstdc++.so.6": ("libstdc++6", "libstdc++"),
}
_RED_HAT = ("rhel", "centos", "rocky", "almalinux", "fedora", "ol", "alinux", "anolis", "amzn")


@CHECKS("software.library-missing")
def library_missing(
    needs: LaunchNeeds | None, software: SoftwareFacts, system: SystemFacts
) -> Iterator[Finding]:
    """Judge whether the loader finds every library that Mooncake's compiled files need: for each
    process of the launch, or without a launch for each file.
    """
    files = require(software.files)
    engine = require(software.engine)
    if files is None or engine is None:
        yield skip("no Mooncake is installed here")
        return
    if needs is None:
        # Each file for itself, as whoever has no torch would load it.
        yield from (_judge_file(system, engine, file, file.name, False) for file in files)
        return
    judged = (_judge_libraries(system, engine, files, process) for process in using_mooncake(needs))
    yield from fold(finding for each in judged for finding in each)


def _judge_libraries(
    system: SystemFacts, engine: Environment, files: tuple[CompiledFile, ...], process: ProcessNeeds
) -> list[Finding]:
    """Judge the compiled files that one process loads: a failure for each file that misses a
    library, or one pass if no file does.

    One skip or unknown if the files cannot be judged.
    """
    if elsewhere(system, process):
        return [skip(OTHER_CONTAINER, process.name)]
    wanted = FILES_OF[process.program]
    loaded = [file for file in files if file.name.split(".")[0] in wanted]
    if not loaded:
        return [unknown_finding(process.name, f"{engine.package} has no {' or '.join(wanted)}")]
    torch = process.program == "sglang" and engine.torch is not None
    findings = [_judge_file(system, engine, file, process.name, torch) for file in loaded]
    names = ", ".join(file.name for file in loaded)
    good = findings[0]._replace(have=f"all found for {names}")
    return [finding for finding in findings if finding.status is Status.FAIL] or [good]


def _judge_file(
    system: SystemFacts, engine: Environment, file: CompiledFile, subject: str, torch: bool
) -> Finding:
    """Judge whether the loader finds all libraries of one compiled file.

    Args:
        torch: The process imports torch, which itself loads the CUDA libraries that wheels
            installed.
    """
    missing = [pair for pair in file.missing if not (torch and pair[0] in engine.cuda)]
    source = f"{engine.package}/{file.name}"
    if not missing:
        evidence = (Evidence(source, "every NEEDED library is found"),)
        return passed(subject, f"all found for {file.name}", evidence=evidence)
    listed = ", ".join(library for library, _ in missing)
    seen = tuple(Evidence(source, f"{by} needs {name}: not found") for name, by in missing)
    error = f"{missing[0][0]}: cannot open shared object file: No such file or directory"
    what = "error while loading shared libraries" if ("mooncake_" in file.name) else "ImportError"
    remedies = [_remedy(system, engine, library) for library, _ in missing]
    finding = passed(subject, f"{listed} not found", f"what {file.name} needs", evidence=seen)
    advice = "; ".join(dict.fromkeys(advice for advice, _ in remedies))
    settings = dict.fromkeys(setting for _, setting in remedies if setting is not None)
    return finding.failed(f'it ends with "{what}: {error}"', advice, tuple(settings))


NO_DRIVER = "run where the NVIDIA driver is (docker: --gpus all), or use the -non-cuda wheel"


def missing_library_advice(error: str) -> str:
    """Return advice on an error about a library that the loader does not find, "" on any other."""
    if "cannot open shared object file" not in error:
        return ""
    if "libcuda.so.1" in error:
        return NO_DRIVER
    return "mooncake-preflight check --only software.library-missing says where it is to be had"


def _remedy(system: SystemFacts, engine: Environment, library: str) -> tuple[str, Setting | None]:
    """Return advice on how to get a missing library, and the setting that gets it, or None."""
    if library in engine.cuda:
        folder = engine.cuda[library]
        setting = Setting(Kind.ENVIRONMENT, "LD_LIBRARY_PATH", folder)
        return f"add {folder} to LD_LIBRARY_PATH", setting
    if library == "libcuda.so.1":  # a driver is not a package to install from here
        return NO_DRIVER, None
    if library.startswith("libcudart.so."):
        major = library.rpartition(".")[2]
        suffix = f"-cu{major}" if major.isdecimal() and int(major) < 13 else ""
        advice = f"install the CUDA {major} runtime, or the wheel of Mooncake for the CUDA here"
        wheel = pip_install(engine, f"nvidia-cuda-runtime{suffix}")
        return advice, None if engine.torch is None else wheel
    if library in PACKAGES:
        red_hat = unread(system) is None and system.distribution in _RED_HAT
        setting = Setting(Kind.PACKAGE, PACKAGES[library][red_hat], "installed")
        return f"install the package that has {library}", setting
    versions = [f"{wheel.name}=={wheel.version}" for wheel in engine.mooncake[:1]]
    again = pip_install(engine, "--force-reinstall", "--no-deps", *versions) if versions else None
    return "install the wheel again: this library is one of its own", again


@CHECKS("software.version-skew")
def version_skew(
    needs: LaunchNeeds, software: SoftwareFacts, system: SystemFacts
) -> Iterator[Finding]:
    """Warn if the installed releases are not those that the launch's needs were computed for."""
    if not needs.processes:
        yield skip("the launch starts no program that they are part of")
        return
    if all(elsewhere(system, process) for process in needs.processes):
        yield skip(OTHER_CONTAINER)
        return
    engine = require(software.engine)
    mooncake = engine.mooncake[0].version if engine is not None and engine.mooncake else ""
    sglang = engine.sglang.version if engine is not None and engine.sglang is not None else ""
    for name, wanted, have in (
        ("Mooncake", needs.mooncake_version, mooncake),
        ("SGLang", needs.sglang_version, sglang),
    ):
        finding = passed(name, f"{name} {have}", f"{name} {wanted}")
        if not wanted:
            finding = skip("the launch names no version of it", name)
        elif not have:
            finding = skip("it is not installed here", name)
        # A local part names a build, not another release.
        elif have.partition("+")[0] != wanted.partition("+")[0].removeprefix("v"):
            text = "the needs were computed for another release than the one here"
            option = f"--{name.lower()}-version {have}"
            advice = f"install {name} {wanted}, or give what is here: {option}"
            finding = finding.warned(text, advice)
        yield finding


@CHECKS("software.not-built-in")
def not_built_in(
    needs: LaunchNeeds, software: SoftwareFacts, system: SystemFacts, rdma: RdmaFacts
) -> Iterator[Finding]:
    """Judge whether the Mooncake here has the parts that the launch asks for."""
    asked = list(asked_parts(needs))
    if not asked:
        yield skip("the launch asks for nothing that only some builds of Mooncake have")
        return
    yield from fold(_judge_part(software, system, rdma, needs, part) for part in asked)


@or_unjudged
def _judge_part(
    software: SoftwareFacts,
    system: SystemFacts,
    rdma: RdmaFacts,
    needs: LaunchNeeds,
    asked: AskedPart,
) -> Finding:
    """Judge whether Mooncake here has one part that only some builds have.

    Without TENT the finding still passes, with a text; without Redis or a transport it fails or,
    for EFA, may warn.
    """
    of = needs.processes if asked.process is None else (asked.process,)
    if any(elsewhere(system, process) for process in of):
        return skip(OTHER_CONTAINER, asked.who)
    finding = passed(asked.who, need=f"{asked.part} built in ({asked.phrase})")
    engine = finding.require(software.engine)
    if engine is None or engine.package is None:
        return skip("no Mooncake is installed here", asked.who)
    one_of = software.transports if asked.part in TRANSPORTS else software.parts
    if asked.part in finding.require(one_of):
        return finding._replace(have="built in")
    evidence = (Evidence(engine.package, f"its compiled files have no {asked.part}"),)
    finding = finding._replace(have="not built in", evidence=evidence)
    if asked.part == "tent":
        return finding._replace(text=f"{asked.phrase} switches nothing on: the classic engine runs")
    if asked.part == "redis":
        return finding.failed(
            'it aborts with "Unable to find metadata storage plugin redis"',
            "name another metadata server: P2PHANDSHAKE, http://.., etcd://..",
            consequence=Consequence.WILL_NOT_START,
        )
    name = engine.mooncake[0].name if engine.mooncake else ""
    if asked.part in TRANSPORTS:
        wheel = "install mooncake-transfer-engine-npu" if asked.part == "ascend" else "build one"
        return finding.failed(
            f'setup returns -1: "Unsupported transport {asked.part}, please rebuild Mooncake"',
            f"{wheel} that has it, in place of {name or 'this Mooncake'}, or name another protocol",
            consequence=Consequence.WILL_NOT_START,
        )
    ending = next((end for end in ("-cuda13", "-non-cuda") if name.endswith(end)), "")
    advice = f"install mooncake-transfer-engine-efa{ending} in place of {name or 'this Mooncake'}"
    if ending == "-cuda13":
        advice += ", or 0.3.14 of that, which has it too"
    if any(nic.driver == EFA for nic in finding.require(rdma.nics)):
        text = "RDMA is taken in its place, without a message, and the first transfer ends with "
        return finding.failed(f'{text}"Failed to create QP: Operation not supported [95]"', advice)
    text = "RDMA or TCP is taken in its place, without a message, whichever is found here"
    return finding.warned(text, advice)


@CHECKS("software.numactl-missing")
def numactl_missing(
    needs: LaunchNeeds, software: SoftwareFacts, system: SystemFacts
) -> Iterator[Finding]:
    """Judge whether ranks bound to a NUMA node find the program numactl."""
    bound = [rank for rank in needs.processes if rank.program == "sglang" and rank.node is not None]
    if not bound:
        yield skip("no rank of the launch is bound to a NUMA node")
        return
    yield from fold(_judge_numactl(system, software, needs, process) for process in bound)


@or_unjudged
def _judge_numactl(
    system: SystemFacts, software: SoftwareFacts, needs: LaunchNeeds, process: ProcessNeeds
) -> Finding:
    """Judge whether numactl is on PATH for one bound rank.

    If not, fail with SGLang before 0.5.15, else warn. Skip if SGLANG_NUMA_BIND_V2 is off: SGLang
    then needs no numactl.
    """
    if elsewhere(system, process):
        return skip(OTHER_CONTAINER, process.name)
    if process.environment.get("SGLANG_NUMA_BIND_V2", "1").lower() in ("0", "false", "no", "n"):
        return skip("SGLANG_NUMA_BIND_V2 is off, so SGLang binds without the program", process.name)
    path = unknown_finding(process.name, "").require(software.programs).get("numactl")
    finding = passed(process.name, path or "none", "numactl on PATH")
    if path is not None:
        return finding
    engine = software.engine
    sglang = engine.sglang if isinstance(engine, Environment) else None
    version = needs.sglang_version or ("" if sglang is None else sglang.version)
    probes = probes_numactl(version)
    package = Setting(Kind.PACKAGE, "numactl", "installed")
    finding = finding._replace(advice="install numactl", settings=(package,))
    why = "SGLang before 0.5.15 loses the rank here, newer ones do not bind it: "
    if not finding.require(probes, why):
        return finding.failed('the rank ends at once with "exec: numactl: not found"')
    return finding.warned("ranks are not bound to their NUMA node")

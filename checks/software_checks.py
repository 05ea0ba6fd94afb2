"""Checks of what is installed: is Mooncake there, once, of the right version, and can it load?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from checks.facts import Facts, TopicUnknownError
from checks.finding import (
    Check,
    CheckSet,
    Consequence,
    Evidence,
    Finding,
    Kind,
    Setting,
    Status,
    skip,
)
from checks.launch_needs import LaunchNeeds, ProcessNeeds
from checks.software import CompiledFile, Environment
from checks.subjects import fold
from checks.unknown import Unknown

CHECKS = CheckSet()
_OTHER_CONTAINER = "the launch runs in a container, and this is not it"
# The compiled files that each program loads or is, without their endings.
_FILES_OF = {
    "sglang": ("engine", "store", "_store"),
    "store_service": ("store", "_store"),
    "mooncake_client": ("mooncake_client",),
    "mooncake_master": ("mooncake_master",),
}
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
_MISSING_TEXT = (
    "Please install mooncake by following the instructions at "
    "https://kvcache-ai.github.io/Mooncake/getting_started/build.html "
    "to run SGLang with MooncakeConnector."
)


def users(needs: LaunchNeeds) -> list[ProcessNeeds]:
    """The processes of the launch that load or run Mooncake's compiled files."""
    stored = any(service.kind in ("master", "client") for service in needs.services)
    return [
        process
        for process in needs.processes
        if process.program in _FILES_OF
        and (process.program != "sglang" or stored or process.rdma is not None)
    ]


def _elsewhere(facts: Facts, process: ProcessNeeds) -> bool:
    """Whether the process runs in a container that this check does not run in."""
    return process.container is not None and facts.system.container.kind == "none"


def _none(check: str, needs: LaunchNeeds | None) -> Finding | None:
    """The answer where there is no user of Mooncake to judge."""
    if needs is None:
        return skip(check)
    return None if users(needs) else skip(check, "no process of the launch uses Mooncake")


_MISSING = "software.mooncake-missing"


@CHECKS.declare(
    Check(
        id=_MISSING,
        asks="Is Mooncake installed for the interpreter that runs the launch?",
        consequence=Consequence.WILL_NOT_START,
        why=(
            "SGLang imports mooncake.store when it makes the HiCache storage, which is after it "
            f'has loaded the model. Without it it ends with "ImportError: {_MISSING_TEXT}". L2 is '
            "allocated before that, and falls back to SGLang's own allocator with a warning. The "
            "same text comes where Mooncake is there and one of its libraries is not."
        ),
        outcomes=(
            (Status.PASS, "Mooncake is installed where the launch looks"),
            (Status.FAIL, "SGLang is installed, and Mooncake is not beside it"),
            (Status.UNKNOWN, "neither was found, so the engine lives elsewhere"),
            (Status.SKIP, "no launch, no Mooncake in it, or it runs in another container"),
        ),
        remedy="pip install mooncake-transfer-engine into the environment of SGLang; "
        "mooncake-transfer-engine-cuda13 for CUDA 13, -non-cuda without a GPU.",
        source="SGLang mooncake_store.py _import_mooncake_store",
        topics=("software", "system"),
    )
)
def mooncake_missing(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    nobody = _none(_MISSING, needs)
    if nobody is not None or needs is None:
        yield nobody or skip(_MISSING)
        return
    yield from fold(_judge_missing(facts, process) for process in users(needs))


def _judge_missing(facts: Facts, process: ProcessNeeds) -> Finding:
    if _elsewhere(facts, process):
        return skip(_MISSING, _OTHER_CONTAINER, process.name)
    environments = facts.software.environments
    if isinstance(environments, Unknown):
        return Finding(_MISSING, Status.UNKNOWN, process.name, text=environments.reason)
    engine = facts.software.engine
    looked_at = ", ".join(environment.interpreter for environment in environments)
    need = "Mooncake installed"
    if not isinstance(engine, Environment):
        text = f"neither SGLang nor Mooncake is installed for {looked_at}"
        advice = "Run this check with the interpreter that runs the launch."
        return Finding(_MISSING, Status.UNKNOWN, process.name, need=need, text=text, advice=advice)
    found = Finding(_MISSING, Status.PASS, process.name, _have(engine), need)
    if engine.package is not None:
        return found._replace(evidence=(Evidence(engine.package, _have(engine)),))
    folders = ", ".join(engine.folders)
    return found._replace(
        status=Status.FAIL,
        have="none",
        text=f'it ends with "ImportError: {_MISSING_TEXT}"',
        evidence=(Evidence(folders, "no folder mooncake with engine.so in it"),),
        advice=f"Install mooncake-transfer-engine for {engine.interpreter}.",
        settings=(_pip(engine, "mooncake-transfer-engine"),),
    )


def _have(engine: Environment) -> str:
    if engine.mooncake:
        return " and ".join(f"{one.name} {one.version}" for one in engine.mooncake)
    return "Mooncake without a wheel" if engine.package is not None else "none"


def _pip(engine: Environment, name: str) -> Setting:
    command = f"{engine.interpreter} -m pip install {name}"
    return Setting(Kind.COMMAND, f"install {name}", command)


_DUPLICATE = "software.mooncake-duplicate"


@CHECKS.declare(
    Check(
        id=_DUPLICATE,
        asks="Is Mooncake installed once?",
        consequence=Consequence.WILL_NOT_START,
        why=(
            "mooncake-transfer-engine, -cuda13, -non-cuda and the others all install the same "
            "folder mooncake, and pip does not see that they collide: the files of the one "
            "installed last are on disk, and removing either removes them. Which CUDA they are "
            'linked with then depends on the order of two installs, and "ImportError: '
            'libcudart.so.12: cannot open shared object file" comes from a container in which the '
            "right wheel is listed."
        ),
        outcomes=(
            (Status.PASS, "one wheel of Mooncake, or none"),
            (Status.WARN, "several"),
            (Status.UNKNOWN, "the installed wheels could not be listed"),
            (Status.SKIP, "neither SGLang nor Mooncake was found"),
        ),
        remedy="Uninstall all of them, then install the one that fits the CUDA of the host.",
        source="Mooncake wheels 0.3.8 to 0.3.14; vLLM #42511; Mooncake #1298",
        topics=("software",),
    )
)
def mooncake_duplicate(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    engine = facts.software.engine
    if isinstance(engine, Unknown):
        yield Finding(_DUPLICATE, Status.UNKNOWN, "host", text=engine.reason)
        return
    if engine is None:
        yield skip(_DUPLICATE, "neither SGLang nor Mooncake is installed here")
        return
    evidence = tuple(Evidence(one.folder, f"{one.name} {one.version}") for one in engine.mooncake)
    found = Finding(_DUPLICATE, Status.PASS, engine.interpreter, _have(engine), evidence=evidence)
    if len(engine.mooncake) < 2:
        yield found
        return
    files = facts.software.files
    wheels = {file.wheel for file in files if file.wheel} if isinstance(files, tuple) else set()
    on_disk = f"; the files on disk are of {' and '.join(sorted(wheels))}" if wheels else ""
    names = " ".join(dict.fromkeys(one.name for one in engine.mooncake))
    command = f"{engine.interpreter} -m pip uninstall --yes {names}"
    keep = engine.mooncake[0]
    yield found._replace(
        status=Status.WARN,
        need="one of them",
        text=f"they overwrite each other's files{on_disk}",
        advice="Uninstall all of them and install the one that is meant.",
        settings=(
            Setting(Kind.COMMAND, "uninstall Mooncake", command),
            _pip(engine, f"{keep.name}=={keep.version}"),
        ),
    )


_LIBRARY = "software.library-missing"


@CHECKS.declare(
    Check(
        id=_LIBRARY,
        asks="Is every library there that Mooncake's compiled files need?",
        consequence=Consequence.WILL_NOT_START,
        why=(
            "A wheel brings some libraries and expects others of the host: libibverbs and "
            "libnuma, from 0.3.14 on libmlx5 even for TCP, libcudart of one CUDA major version "
            "(the -non-cuda wheels 0.3.12 and 0.3.13 too), libcuda of the driver. Where one is "
            'missing the import ends with "ImportError: libcudart.so.12: cannot open shared object '
            'file: No such file or directory", which SGLang shows as "Please install mooncake". '
            "torch loads the CUDA runtime of its own wheels first, so an import after torch finds "
            "it by name; mooncake_master, mooncake_client and the store service have no torch and "
            "do not. What is needed is read from the files, and looked for as ld.so does."
        ),
        outcomes=(
            (Status.PASS, "all are found, by ld.so or, beside torch, through its wheels"),
            (Status.FAIL, "one is nowhere that the program would look"),
            (Status.UNKNOWN, "the files could not be read"),
            (Status.SKIP, "no Mooncake was found, or the launch runs in another container"),
        ),
        remedy="Install the package that has the library, or the wheel of Mooncake that was built "
        "for the CUDA of the host.",
        source="ld.so(8); Mooncake wheels 0.3.7 to 0.3.14 held against ldd; Mooncake #3121, #967",
        topics=("software", "system"),
    )
)
def library_missing(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    files = facts.software.files
    if isinstance(files, Unknown):
        yield Finding(_LIBRARY, Status.UNKNOWN, "host", text=files.reason)
        return
    engine = facts.software.engine
    if files is None or not isinstance(engine, Environment):
        yield skip(_LIBRARY, "no Mooncake is installed here")
        return
    if needs is None:
        # Each file for itself, as whoever has no torch would load it.
        yield from (_judge_file(facts, engine, file, file.name, False) for file in files)
        return
    nobody = _none(_LIBRARY, needs)
    if nobody is not None:
        yield nobody
        return
    yield from fold(
        found
        for process in users(needs)
        for found in _judge_libraries(facts, engine, files, process)
    )


def _judge_libraries(
    facts: Facts, engine: Environment, files: tuple[CompiledFile, ...], process: ProcessNeeds
) -> Iterator[Finding]:
    if _elsewhere(facts, process):
        yield skip(_LIBRARY, _OTHER_CONTAINER, process.name)
        return
    wanted = _FILES_OF[process.program]
    loaded = [file for file in files if file.name.split(".")[0] in wanted]
    if not loaded:
        text = f"{engine.package} has no {' or '.join(wanted)}"
        yield Finding(_LIBRARY, Status.UNKNOWN, process.name, text=text)
        return
    torch = process.program == "sglang" and engine.torch is not None
    found = [_judge_file(facts, engine, file, process.name, torch) for file in loaded]
    failed = [one for one in found if one.status is Status.FAIL]
    if failed:
        yield from failed
        return
    names = ", ".join(file.name for file in loaded)
    yield found[0]._replace(have=f"all found for {names}")


def _judge_file(
    facts: Facts, engine: Environment, file: CompiledFile, subject: str, torch: bool
) -> Finding:
    missing = [pair for pair in file.missing if not (torch and pair[0] in engine.cuda)]
    source = f"{engine.package}/{file.name}"
    if not missing:
        evidence = (Evidence(source, "every NEEDED library is found"),)
        have = f"all found for {file.name}"
        return Finding(_LIBRARY, Status.PASS, subject, have, evidence=evidence)
    listed = ", ".join(library for library, _ in missing)
    seen = tuple(Evidence(source, f"{by} needs {name}: not found") for name, by in missing)
    compiled = "mooncake_" in file.name
    error = f"{missing[0][0]}: cannot open shared object file: No such file or directory"
    what = "error while loading shared libraries" if compiled else "ImportError"
    advice = " ".join(dict.fromkeys(_advice(engine, name) for name, _ in missing))
    settings = [_setting(facts, engine, name) for name, _ in missing]
    return Finding(
        _LIBRARY,
        Status.FAIL,
        subject,
        have=f"{listed} not found",
        need=f"what {file.name} needs",
        text=f'it ends with "{what}: {error}"',
        evidence=seen,
        advice=advice,
        settings=tuple(dict.fromkeys(setting for setting in settings if setting is not None)),
    )


def _advice(engine: Environment, library: str) -> str:
    if library in engine.cuda:
        return f"Add {engine.cuda[library]} to LD_LIBRARY_PATH."
    if library.startswith("libcudart.so."):
        major = library.rpartition(".")[2]
        return f"Install the CUDA {major} runtime, or the wheel of Mooncake for the CUDA here."
    if library == "libcuda.so.1":
        return "Run where the NVIDIA driver is (docker: --gpus all), or use the -non-cuda wheel."
    if library in PACKAGES:
        return f"Install the package that has {library}."
    return "Install the wheel again: this library is one of its own."


def _setting(facts: Facts, engine: Environment, library: str) -> Setting | None:
    if library in engine.cuda:
        return Setting(Kind.ENVIRONMENT, "LD_LIBRARY_PATH", engine.cuda[library])
    if library == "libcuda.so.1":
        return None  # a driver is not a package to install from here
    if library.startswith("libcudart.so."):
        major = library.rpartition(".")[2]
        suffix = f"-cu{major}" if major.isdecimal() and int(major) < 13 else ""
        return _pip(engine, f"nvidia-cuda-runtime{suffix}") if engine.torch is not None else None
    if library in PACKAGES:
        return Setting(Kind.PACKAGE, PACKAGES[library][_is_red_hat(facts)], "installed")
    wheel = engine.mooncake[0] if engine.mooncake else None
    if wheel is None:
        return None
    return _pip(engine, f"--force-reinstall --no-deps {wheel.name}=={wheel.version}")


def _is_red_hat(facts: Facts) -> bool:
    try:
        distribution = facts.system.distribution
    except TopicUnknownError:
        return False
    return isinstance(distribution, str) and distribution in _RED_HAT


_SKEW = "software.version-skew"


@CHECKS.declare(
    Check(
        id=_SKEW,
        asks="Are the installed versions those that the launch was sized for?",
        consequence=Consequence.DEGRADED,
        why=(
            "What is mapped, split, rounded and registered differs from release to release, so a "
            "size that was worked out for one does not hold for another. And a client and a master "
            "of different releases mostly do not understand each other: the setup fails, or every "
            "put ends with -900 and nothing is stored."
        ),
        outcomes=(
            (Status.PASS, "they are the same"),
            (Status.WARN, "they differ"),
            (Status.UNKNOWN, "the installed version could not be told"),
            (Status.SKIP, "the launch names no version, or nothing is installed here"),
        ),
        remedy="Install the version that is meant, everywhere, or size for the one that is there.",
        source="Mooncake #2579, #1920; measured, releases 0.3.8 to 0.3.14",
        topics=("software", "system"),
    )
)
def version_skew(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    if needs is None:
        yield skip(_SKEW)
        return
    if needs.processes and all(_elsewhere(facts, process) for process in needs.processes):
        yield skip(_SKEW, _OTHER_CONTAINER)
        return
    engine = facts.software.engine
    if isinstance(engine, Unknown):
        yield Finding(_SKEW, Status.UNKNOWN, "host", text=engine.reason)
        return
    mooncake = engine.mooncake[0].version if engine is not None and engine.mooncake else ""
    sglang = engine.sglang.version if engine is not None and engine.sglang is not None else ""
    for name, wanted, have in (
        ("Mooncake", needs.mooncake_version, mooncake),
        ("SGLang", needs.sglang_version, sglang),
    ):
        if not wanted:
            yield skip(_SKEW, "the launch names no version of it", name)
        elif not have:
            yield skip(_SKEW, "it is not installed here", name)
        else:
            yield _judge_skew(name, wanted, have)


def _judge_skew(name: str, wanted: str, have: str) -> Finding:
    found = Finding(_SKEW, Status.PASS, name, f"{name} {have}", f"{name} {wanted}")
    # A local part names a build, not another release.
    if have.partition("+")[0] == wanted.partition("+")[0].removeprefix("v"):
        return found
    return found._replace(
        status=Status.WARN,
        text="what the launch needs was worked out for another release than runs here",
        advice=f"install {name} {wanted}, or give what is here: --{name.lower()}-version {have}",
    )


_NUMACTL = "software.numactl-missing"
# configure_subprocess: read in 0.5.9, 0.5.12 (exec unchecked) and 0.5.16 (tried first).
_UNCHECKED, _CHECKED = (0, 5, 12), (0, 5, 16)


@CHECKS.declare(
    Check(
        id=_NUMACTL,
        asks="Is numactl there for a launch that binds its ranks to NUMA nodes?",
        consequence=Consequence.WILL_NOT_START,
        why=(
            "With --numa-node SGLang starts each rank through the program numactl "
            "(SGLANG_NUMA_BIND_V2, on by default). Up to 0.5.12 it does not look whether there is "
            'one: the rank ends at once with "exec: numactl: not found" and no traceback. From '
            "0.5.16 on it tries first and goes on unbound with a warning, so that memory comes "
            "from whatever node is free."
        ),
        outcomes=(
            (Status.PASS, "numactl is on PATH"),
            (Status.WARN, "it is not, and SGLang goes on unbound, or its release is not known"),
            (Status.FAIL, "it is not, and this SGLang needs it"),
            (Status.UNKNOWN, "PATH could not be searched"),
            (Status.SKIP, "no launch, no rank of it is bound, or it runs in another container"),
        ),
        remedy="Install numactl in the image.",
        source="SGLang utils/numa_utils.py 0.5.9, 0.5.12, 0.5.16 to 0.5.23; SGLang #27368",
        topics=("software", "system"),
    )
)
def numactl_missing(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    if needs is None:
        yield skip(_NUMACTL)
        return
    bound = [one for one in needs.processes if one.program == "sglang" and one.node is not None]
    if not bound:
        yield skip(_NUMACTL, "no rank of the launch is bound to a NUMA node")
        return
    yield from fold(_judge_numactl(facts, needs, process) for process in bound)


def _judge_numactl(facts: Facts, needs: LaunchNeeds, process: ProcessNeeds) -> Finding:
    if _elsewhere(facts, process):
        return skip(_NUMACTL, _OTHER_CONTAINER, process.name)
    if process.environment.get("SGLANG_NUMA_BIND_V2", "1").lower() in ("0", "false", "no", "n"):
        text = "SGLANG_NUMA_BIND_V2 is off, so SGLang binds without the program"
        return skip(_NUMACTL, text, process.name)
    programs = facts.software.programs
    if isinstance(programs, Unknown):
        return Finding(_NUMACTL, Status.UNKNOWN, process.name, text=programs.reason)
    path = programs.get("numactl")
    found = Finding(_NUMACTL, Status.PASS, process.name, path or "none", "numactl on PATH")
    if path is not None:
        return found
    version = _version(facts, needs)
    package = Setting(Kind.PACKAGE, "numactl", "installed")
    found = found._replace(advice="Install numactl.", settings=(package,))
    if version is not None and version <= _UNCHECKED:
        text = 'the rank ends at once with "exec: numactl: not found"'
        return found._replace(status=Status.FAIL, text=text)
    text = "ranks are not bound to their NUMA node"
    if version is None or version < _CHECKED:
        text = "ranks end at once, or are not bound to their NUMA node"
    return found._replace(status=Status.WARN, text=text)


def _version(facts: Facts, needs: LaunchNeeds) -> tuple[int, ...] | None:
    """The release that the launch names, else the one installed; None where neither is known."""
    engine = facts.software.engine
    named = needs.sglang_version
    if not named and isinstance(engine, Environment) and engine.sglang is not None:
        named = engine.sglang.version
    numbers = re.match(r"v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})", named)
    return None if numbers is None else tuple(int(number) for number in numbers.groups())

"""Do the installed files have their libraries, and are they of the versions that are meant?"""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet, any_launch, the_launch
from checks.base.finding import Evidence, Finding, Kind, Setting, Status, passed, skip, unknown
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.unknown import known, unread
from checks.software.facts import CompiledFile, Environment, SoftwareFacts
from checks.software.judging import (
    FILES_OF,
    OTHER_CONTAINER,
    elsewhere,
    pip_install,
    using_mooncake,
)
from checks.system.facts import SystemFacts

CHECKS = CheckSet()
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


@CHECKS.check("software.library-missing", any_launch)
def library_missing(
    needs: LaunchNeeds | None, software: SoftwareFacts, system: SystemFacts
) -> Iterator[Finding]:
    files = known(software.files)
    engine = software.engine
    if files is None or not isinstance(engine, Environment):
        yield skip("no Mooncake is installed here")
        return
    if needs is None:
        # Each file for itself, as whoever has no torch would load it.
        yield from (_judge_file(system, engine, file, file.name, False) for file in files)
        return
    yield from fold(
        found
        for process in using_mooncake(needs)
        for found in _judge_libraries(system, engine, files, process)
    )


def _judge_libraries(
    system: SystemFacts, engine: Environment, files: tuple[CompiledFile, ...], process: ProcessNeeds
) -> Iterator[Finding]:
    if elsewhere(system, process):
        yield skip(OTHER_CONTAINER, process.name)
        return
    wanted = FILES_OF[process.program]
    loaded = [file for file in files if file.name.split(".")[0] in wanted]
    if not loaded:
        text = f"{engine.package} has no {' or '.join(wanted)}"
        yield unknown(process.name, text)
        return
    torch = process.program == "sglang" and engine.torch is not None
    found = [_judge_file(system, engine, file, process.name, torch) for file in loaded]
    failed = [one for one in found if one.status is Status.FAIL]
    if failed:
        yield from failed
        return
    names = ", ".join(file.name for file in loaded)
    yield found[0]._replace(have=f"all found for {names}")


def _judge_file(
    system: SystemFacts, engine: Environment, file: CompiledFile, subject: str, torch: bool
) -> Finding:
    missing = [pair for pair in file.missing if not (torch and pair[0] in engine.cuda)]
    source = f"{engine.package}/{file.name}"
    if not missing:
        evidence = (Evidence(source, "every NEEDED library is found"),)
        have = f"all found for {file.name}"
        return passed(subject, have, evidence=evidence)
    listed = ", ".join(library for library, _ in missing)
    seen = tuple(Evidence(source, f"{by} needs {name}: not found") for name, by in missing)
    compiled = "mooncake_" in file.name
    error = f"{missing[0][0]}: cannot open shared object file: No such file or directory"
    what = "error while loading shared libraries" if compiled else "ImportError"
    advice = " ".join(dict.fromkeys(_advice(engine, name) for name, _ in missing))
    settings = [_setting(system, engine, name) for name, _ in missing]
    return passed(subject, f"{listed} not found", f"what {file.name} needs", evidence=seen).failed(
        f'it ends with "{what}: {error}"',
        advice,
        tuple(dict.fromkeys(setting for setting in settings if setting is not None)),
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


def _setting(system: SystemFacts, engine: Environment, library: str) -> Setting | None:
    if library in engine.cuda:
        return Setting(Kind.ENVIRONMENT, "LD_LIBRARY_PATH", engine.cuda[library])
    if library == "libcuda.so.1":
        return None  # a driver is not a package to install from here
    if library.startswith("libcudart.so."):
        major = library.rpartition(".")[2]
        suffix = f"-cu{major}" if major.isdecimal() and int(major) < 13 else ""
        return (
            pip_install(engine, f"nvidia-cuda-runtime{suffix}")
            if engine.torch is not None
            else None
        )
    if library in PACKAGES:
        red_hat = unread(system) is None and system.distribution in _RED_HAT
        return Setting(Kind.PACKAGE, PACKAGES[library][red_hat], "installed")
    wheel = engine.mooncake[0] if engine.mooncake else None
    if wheel is None:
        return None
    return pip_install(engine, "--force-reinstall", "--no-deps", f"{wheel.name}=={wheel.version}")


@CHECKS.check("software.version-skew", the_launch)
def version_skew(
    needs: LaunchNeeds, software: SoftwareFacts, system: SystemFacts
) -> Iterator[Finding]:
    if needs.processes and all(elsewhere(system, process) for process in needs.processes):
        yield skip(OTHER_CONTAINER)
        return
    engine = known(software.engine)
    mooncake = engine.mooncake[0].version if engine is not None and engine.mooncake else ""
    sglang = engine.sglang.version if engine is not None and engine.sglang is not None else ""
    for name, wanted, have in (
        ("Mooncake", needs.mooncake_version, mooncake),
        ("SGLang", needs.sglang_version, sglang),
    ):
        if not wanted:
            yield skip("the launch names no version of it", name)
        elif not have:
            yield skip("it is not installed here", name)
        else:
            yield _judge_skew(name, wanted, have)


def _judge_skew(name: str, wanted: str, have: str) -> Finding:
    found = passed(name, f"{name} {have}", f"{name} {wanted}")
    # A local part names a build, not another release.
    if have.partition("+")[0] == wanted.partition("+")[0].removeprefix("v"):
        return found
    return found.warned(
        "what the launch needs was worked out for another release than runs here",
        f"install {name} {wanted}, or give what is here: --{name.lower()}-version {have}",
    )

"""Which SGLang and Mooncake are installed, and what they lack; nothing is imported.

The engine may live in another environment than this program: this interpreter's path is looked at,
and that of the ``python3`` on PATH. Every fact says where it was seen.
"""

import os
import re
from collections.abc import Iterator
from functools import cache, partial
from typing import Any, NamedTuple

from checks.framework.installed import OTHER_ENGINES, Installed, distribution_of, is_mooncake
from checks.framework.needs import LaunchNeeds, ProcessNeeds
from checks.framework.patterns import answered, of
from checks.framework.root import Root
from checks.framework.unknown import Unknown, or_unknown, require
from checks.rdma.use import TENT

# Folders of NVIDIA's wheels that hold libcudart.so: CUDA 12's, CUDA 13's.
_CUDA_WHEELS = ("cuda_runtime", "cu12", "cu13")
_MODULE_FOLDERS = ("site-packages", "dist-packages")
# Transports without which the store's setup returns -1 (run in 0.3.13.post1: all five), and what
# stands in a compiled file only where they are built in.
# The classes: Mooncake's multi_transport.cpp, and the wheel -npu 0.3.13.post1 (ascend).
TRANSPORTS = {
    "ascend": b"AscendDirectTransport|HcclTransport|HeterogeneousRdmaTransport",
    "cxl": b"CxlTransport",
    "sunrise_link": b"SunriseLinkTransport",
    "ub": b"UbTransport",
    "ubshmem": b"UBShmemTransport",
}


class Distribution(NamedTuple):
    """An installed wheel: its name, version, and the folder that it lies in."""

    name: str
    version: str
    folder: str


class Environment(NamedTuple):
    """Where one interpreter finds modules.

    Attributes:
        mooncake: Wheels of Mooncake, first found first.
        package: The ``mooncake`` folder that an import takes, None without.
        cuda: CUDA runtime libraries that wheels brought, name -> folder; torch loads them, no other
            program finds them.
        others: Engines beside SGLang.
    """

    interpreter: str
    folders: tuple[str, ...]
    mooncake: tuple[Distribution, ...]
    package: str | None
    sglang: Distribution | None
    torch: Distribution | None
    cuda: dict[str, str]
    others: tuple[Distribution, ...] = ()


class CompiledFile(NamedTuple):
    """A compiled file of Mooncake: ``missing`` pairs a library with the file that needs it.

    Attributes:
        wheel: The distribution whose libraries the file looks for, "" if it names none.
        releases: Those that a program may be of, by its version text or build id; () if neither
            tells.
    """

    name: str
    missing: tuple[tuple[str, str], ...]
    wheel: str
    releases: tuple[str, ...] = ()


class Record(NamedTuple):
    """How a wheel's files differ from its RECORD.

    Attributes:
        listed: Files in RECORD; None without a RECORD.
        changed: (name, bytes in RECORD, bytes on disk, None if absent); equal bytes: another
            content.
    """

    wheel: Distribution
    listed: int | None
    changed: tuple[tuple[str, int, int | None], ...]


class Master(NamedTuple):
    """The mooncake_master on PATH.

    Attributes:
        package: If it is a script, the ``mooncake`` folder whose program it starts, else None.
        releases: Those that the program may be of; () if nothing tells.
        source: What tells the releases.
    """

    path: str
    package: str | None
    releases: tuple[str, ...]
    source: str


class SoftwareFacts(NamedTuple):
    """What is installed.

    Attributes:
        environments: The interpreters looked at, this one first.
        files: Compiled files of the Mooncake of ``engine``, None without one.
        programs: On PATH, name -> file or None.
        records: Of the wheels of ``engine``.
        master: None if PATH has none.
        parts: Those of ``calls.PARTS`` in its compiled files, transports: those of ``TRANSPORTS``;
            each read only if the launch asks for one.
    """

    environments: tuple[Environment, ...] | Unknown
    files: tuple[CompiledFile, ...] | Unknown | None
    programs: dict[str, str | None] | Unknown
    records: tuple[Record, ...] | Unknown = ()
    master: Master | Unknown | None = None
    parts: frozenset[str] | Unknown = Unknown("not asked: the launch names none", absent=True)
    transports: frozenset[str] | Unknown = parts

    @property
    def engine(self) -> Environment | Unknown | None:
        """Return the first environment that has SGLang or Mooncake; None if none has."""
        return engine_of(self.environments)


@or_unknown
def engine_of(environments: tuple[Environment, ...] | Unknown) -> Environment | Unknown | None:
    """Return the first environment with SGLang or Mooncake; None if none has them."""
    environments = require(environments)
    return next((e for e in environments if e.sglang or e.package or e.mooncake), None)


def installed_engine(root: Root) -> Installed | None:
    """Return the Mooncake, SGLang and other engines of the first interpreter with SGLang or
    Mooncake.

    On the live machine, None too if that interpreter is the one of this program.

    Returns:
        None if no interpreter has either, or if the folders cannot be read.
    """
    environments = _environments(root, root.call("software.search"))
    engine = engine_of(environments)
    if isinstance(engine, Unknown) or engine is None or isinstance(environments, Unknown):
        return None
    if root.live and engine is environments[0]:
        return None
    mooncake, others = (
        tuple((wheel.name, wheel.version) for wheel in wheels)
        for wheels in (engine.mooncake, engine.others)
    )
    sglang = None if engine.sglang is None else engine.sglang.version
    return Installed(mooncake, sglang, engine.interpreter, others=others)


def read_software(root: Root, needs: LaunchNeeds | None) -> SoftwareFacts:
    """Read what is installed.

    Mooncake's optional parts (EFA, TENT, Redis, other transports) are read only if the launch asks
    for one.
    """
    search = root.call("software.search")
    environments = _environments(root, search)
    engine = engine_of(environments)
    package = engine.package if isinstance(engine, Environment) else None
    files = None if package is None else _files(root.call("software.libraries", package))
    programs = _programs(search)
    records = _records(root, engine)
    master = _master(root, environments, programs)
    facts = SoftwareFacts(environments, files, programs, records, master)
    if package is None or needs is None:
        return facts
    asked = {part.part in TRANSPORTS for part in asked_parts(needs)}
    if False in asked:
        facts = facts._replace(parts=_names(root, "software.parts", package))
    if True in asked:
        facts = facts._replace(transports=_names(root, "software.transports", package))
    return facts


def _names(root: Root, call: str, package: str) -> frozenset[str] | Unknown:
    """Return the names that a call finds built into a ``mooncake`` folder."""
    answer = root.call(call, package)
    return answered(answer, lambda rows: frozenset(map(str, of(list, rows))), f"{call}: not a list")


class AskedPart(NamedTuple):
    """A part of Mooncake that not every build has, who asks for it and by which phrase."""

    part: str
    who: str
    phrase: str
    process: ProcessNeeds | None = None


def asked_parts(needs: LaunchNeeds) -> Iterator[AskedPart]:
    """Yield the parts of Mooncake that a launch asks for and that not every build has."""
    for process in needs.processes:
        if process.transport == "efa" or process.transport in TRANSPORTS:
            phrase = f"protocol {process.transport}"
            yield AskedPart(process.transport, process.name, phrase, process)
        if TENT in process.environment:
            yield AskedPart("tent", process.name, f"{TENT}={process.environment[TENT]}", process)
    for service in needs.services:
        if service.kind == "metadata-redis":
            yield AskedPart("redis", service.owner, f"redis at {service.origin}")


@or_unknown
def _records(root: Root, engine: Environment | Unknown | None) -> tuple[Record, ...] | Unknown:
    """Read how the files of the engine's Mooncake wheels differ from the wheels' RECORDs; ()
    without an engine.
    """
    engine = require(engine)
    records = []
    for folder in dict.fromkeys(wheel.folder for wheel in engine.mooncake) if engine else ():
        answer = require(root.call("software.records", folder))
        try:
            for row in answer:
                wheel = distribution_of(row["info"])
                if wheel is not None:
                    changed = tuple((name, size, have) for name, size, have in row["changed"])
                    records.append(Record(Distribution(*wheel, folder), row["listed"], changed))
        except (KeyError, TypeError, ValueError, AttributeError):
            return Unknown("software.records: not a list of wheels")
    return tuple(records)


@or_unknown
def _master(
    root: Root,
    environments: tuple[Environment, ...] | Unknown,
    programs: dict[str, str | None] | Unknown,
) -> Master | Unknown | None:
    """Return the mooncake_master on PATH, with its package and release; None if PATH has none.

    Returns:
        Unknown if it is neither a program nor a script of Python.
    """
    path = require(programs).get("mooncake_master")
    if path is None:
        return None
    reply, wrong = root.call("software.program", path), "software.program: not an object"
    answer = require(answered(reply, partial(of, dict), wrong))
    if "build_id" in answer:
        return Master(path, None, *_releases(answer))
    script = str(answer.get("script", ""))
    folder, _, python = script.rpartition("/")
    if not python.startswith("python"):
        return Unknown(f"{path}: neither a program nor a script of Python")
    same = (x for x in require(environments) if folder in ("", x.interpreter.rpartition("/")[0]))
    used = next(same, None) or require(_environment(root, script, [*_folders_of(root, script)]))
    releases = tuple(wheel.version for wheel in used.mooncake[:1])
    source = f"a script of {used.interpreter}, which imports {used.package}"
    return Master(path, used.package, releases, source)


def _releases(row: dict[str, object]) -> tuple[tuple[str, ...], str]:
    """Return the releases that a program may be of, and the source of that answer."""
    version, build_id = str(row.get("release", "")), str(row.get("build_id", ""))
    if version:
        return (version,), f"what its --version prints: {version}"
    return _build_ids().get(build_id, ()), f"its build id: {build_id or 'none'}"


@cache
def _build_ids() -> dict[str, tuple[str, ...]]:
    """Return the table of build ids, from build_ids.txt: build id -> releases of Mooncake."""
    releases_of: dict[str, tuple[str, ...]] = {}
    with open(os.path.join(os.path.dirname(__file__), "build_ids.txt"), encoding="ascii") as file:
        for release, build_id in re.findall(r"^(\S+) (\w+)$", file.read(), re.MULTILINE):
            releases_of[build_id] = (*releases_of.get(build_id, ()), release)
    return releases_of


@or_unknown
def _programs(search: object) -> dict[str, str | None] | Unknown:
    wrong = "software.search: has no on_path"
    rows = require(answered(search, lambda answer: of(dict, answer["on_path"]), wrong))
    return {str(name): path if isinstance(path, str) else None for name, path in rows.items()}


@or_unknown
def _environments(root: Root, search: object) -> tuple[Environment, ...] | Unknown:
    """Read the Python environment of this program, and that of the ``python3`` on PATH with only
    the folders that the first lacks.

    The second is left out if no folder remains, or if it cannot be read and the first has SGLang or
    Mooncake.

    Args:
        search: The answer of ``software.search``.
    """
    wrong = "software.search: has no folders"
    folders = require(answered(search, lambda answer: of(list, answer["folders"]), wrong))
    folders_here = [folder for folder in folders if isinstance(folder, str)]
    interpreter = require(answered(search, lambda answer: answer.get("interpreter"), wrong))
    first = require(_environment(root, str(interpreter or ""), folders_here))
    programs = _programs(search)
    python = None if isinstance(programs, Unknown) else programs.get("python3")
    of_path = () if python is None else _folders_of(root, python)
    others = [folder for folder in of_path if folder not in folders_here]
    if python is None or not others:
        return (first,)
    other = _environment(root, python, others)
    if isinstance(other, Unknown):
        return other if engine_of((first,)) is None else (first,)
    return first, other


def _folders_of(root: Root, python: str) -> Iterator[str]:
    """Yield the module folders of an interpreter without running it (site.py, Debian's
    dist-packages).

    Args:
        python: Its path; nothing is yielded for a script of a version manager.
    """
    prefix, slash, _ = python.rpartition("/bin/")
    if isinstance(root.mode(f"{prefix}/pyvenv.cfg"), Unknown):
        real = root.link(python)
        if not isinstance(real, Unknown):
            prefix, slash, _ = real.rpartition("/bin/")
    if not slash:
        return  # a version manager's script: what it runs is not known
    for library in dict.fromkeys((f"{prefix}/lib", f"{prefix}/local/lib", "/usr/local/lib")):
        if library == "/usr/local/lib" and prefix not in ("/usr", "/usr/local"):
            continue
        for name in root.listed(library):
            if re.fullmatch(r"python3(\.[0-9]+)?", name):
                for modules in _MODULE_FOLDERS:
                    if not isinstance(root.mode(f"{library}/{name}/{modules}"), Unknown):
                        yield f"{library}/{name}/{modules}"


def _environment(root: Root, interpreter: str, folders: list[str]) -> Environment | Unknown:
    """Read what the module folders of one interpreter have installed.

    Returns:
        Unknown if a folder cannot be read and no other folder has SGLang or Mooncake.
    """
    hidden: Unknown | None = None
    mooncake: list[Distribution] = []
    others: dict[str, Distribution] = {}
    package = None
    cuda: dict[str, str] = {}
    for folder in dict.fromkeys(folders):
        if folder.endswith((".zip", "lib-dynload")) or re.search(r"/python3\.[0-9]+$", folder):
            continue  # the standard library
        names = root.names(folder)
        if isinstance(names, Unknown):
            if hidden is None and not names.absent:
                hidden = names
            continue
        editable = [name for name in names if "editable" in name]
        for name, version in filter(None, (distribution_of(name, editable) for name in names)):
            if is_mooncake(name):
                mooncake.append(Distribution(name, version, folder))
            elif name in ("sglang", "torch", *OTHER_ENGINES):
                others.setdefault(name, Distribution(name, version, folder))
        files = root.listed(f"{folder}/mooncake") if "mooncake" in names else ()
        # A folder of that name without these files is something else.
        if package is None and any(n.startswith(("engine.", "store.", "_store.")) for n in files):
            package = f"{folder}/mooncake"
        if "nvidia" in names:
            cuda = {**_cuda_libraries(root, f"{folder}/nvidia"), **cuda}
    torch, sglang = others.get("torch"), others.get("sglang")
    if hidden is not None and not (mooncake or package or sglang):
        return hidden
    engines = tuple(others[name] for name in OTHER_ENGINES if name in others)
    return Environment(
        interpreter, tuple(folders), tuple(mooncake), package, sglang, torch, cuda, engines
    )


def _cuda_libraries(root: Root, folder: str) -> dict[str, str]:
    """Return the CUDA runtime libraries in the ``nvidia`` folder of wheels, by name -> folder."""
    folder_of = {}
    for wheel in _CUDA_WHEELS:
        for name in root.listed(f"{folder}/{wheel}/lib"):
            if re.fullmatch(r"libcudart\.so\.[0-9]+", name):
                folder_of[name] = f"{folder}/{wheel}/lib"
    return folder_of


def _files(answer: object) -> tuple[CompiledFile, ...] | Unknown:
    """Read the compiled files of Mooncake from the answer of ``software.libraries``."""

    def compiled_file(row: dict[str, Any]) -> CompiledFile:
        rows = of(list, row["missing"])
        pairs = (pair for pair in rows if isinstance(pair, list) and len(pair) == 2)
        missing = tuple((str(first), str(second)) for first, second in pairs)
        wheel, (releases, _) = _wheel(row.get("rpath")), _releases(row)
        return CompiledFile(str(row.get("file")), missing, wheel, releases)

    wrong = "software.libraries: not a list of files"
    return answered(answer, lambda rows: tuple(map(compiled_file, of(list, rows))), wrong)


def _wheel(rpath: object) -> str:
    """Return the name of the wheel that a file came in: of the first folder ``NAME.libs`` in
    ``rpath``, with hyphens.

    Return "" without that folder, or if ``rpath`` is no list.
    """
    for folder in rpath if isinstance(rpath, list) else ():
        name = str(folder).rstrip("/").rpartition("/")[2]
        if name.endswith(".libs"):
            return name.removesuffix(".libs").replace("_", "-")
    return ""

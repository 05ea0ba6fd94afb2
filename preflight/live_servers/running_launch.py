"""The launches that run here: each known program among the processes, and what it should hold."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from checks.framework.installed import Installed, distribution_of, is_mooncake
from checks.framework.needs import LaunchNeeds
from checks.framework.pages import MemoryKind, Spot
from checks.framework.regex import regex
from checks.framework.root import Root
from checks.framework.unknown import Unknown, or_unknown, require
from checks.limits.runtimes import Limit
from checks.running_processes.processes import (
    HeldMemory,
    OpenFiles,
    Registered,
    RunningProcess,
    read_environment,
    read_held_memory,
    read_limit,
    read_memlock,
    read_open_files,
    read_packages,
    read_processes,
    read_registered,
    tree_of,
)
from preflight.base.usage_error import UsageError
from preflight.command_inputs.written_launch import WrittenLaunch, size_written
from preflight.engines.mooncake.replay import pages_by_spot
from preflight.launches.launchers import starts_anew
from preflight.launches.shell_script import read_argv
from preflight.launches.source import SourceError, file_reader
from preflight.launches.wrappers import is_gate
from preflight.needs.launch_needs import launch_needs
from preflight.needs.launch_sizing import LaunchSizing
from preflight.needs.sizing import Sizing
from preflight.processes.processes import LaunchOptions, ProcessKind, understand

# A command line without any of these starts no program of a launch.
KNOWN = regex(r"sglang|mooncake|mc_store|vllm|lmcache|dynamo", re.IGNORECASE)
# Others have these too: they are looked at where a launch names them.
OF_ANYBODY = (ProcessKind.ETCD, ProcessKind.REDIS, ProcessKind.NATS, ProcessKind.ENGINE)
NOT_OBSERVED = (ProcessKind.OTHER, ProcessKind.BENCHMARK)
_NONE_GIVEN = LaunchOptions()


class Holding(NamedTuple):
    """The memory, files and limits of one process of a tree; Unknown for what cannot be read."""

    pid: int
    memory: HeldMemory | Unknown
    files: OpenFiles | Unknown
    memlock: Limit | Unknown
    open_files: Limit | Unknown


class RunningServer(NamedTuple):
    """One known program that runs, with every process that it started.

    Attributes:
        sizing, needs: By its command line, environment and release; Unknown if these cannot be
            read.
        releases: Name and version of the distributions from which it runs, () if not known.
        replaced: Mapped files of these that were replaced or removed since.
        registered: The memory registered with each RDMA device, () if the program has no device
            open.
        by_words: The sizing by its command line alone, None if its environment is known too.
    """

    pid: int
    program: ProcessKind
    sizing: LaunchSizing | Unknown
    needs: LaunchNeeds | Unknown
    releases: tuple[tuple[str, str], ...]
    holdings: tuple[Holding, ...]
    replaced: tuple[str, ...] = ()
    registered: tuple[Registered, ...] | Unknown = ()
    by_words: LaunchSizing | Unknown | None = None

    @property
    def name(self) -> str:
        return f"{self.program.value}, pid {self.pid}"

    def sized(self) -> Sizing:
        """Return the sizing at the upper bound.

        Raises:
            UnknownFactError: If there is none.
        """
        most = require(self.sizing).most
        return require(Unknown(require(self.sizing).reason) if most is None else most)

    @property
    @or_unknown
    def predicted_pages(self) -> dict[Spot, int] | Unknown:
        """The huge pages that the program should hold, by size and node; Unknown if not exact."""
        most, least = self.sized(), require(self.sizing).least
        if least is not None and least.asked != most.asked:
            return Unknown("its sizes are known between two bounds alone")
        pages: Counter[Spot] = Counter()
        for replayed in most.asked:
            pages.update(pages_by_spot(replayed.allocations, replayed.process.among))
        return pages

    @property
    @or_unknown
    def segment_bytes(self) -> int | Unknown:
        """Bytes of all segments that the program offers to its master; Unknown without a size."""
        return sum(
            max(allocation.bytes, allocation.mapped_bytes)  # whole pages are mounted
            for replayed in self.sized().asked
            for allocation in replayed.allocations
            if allocation.what is MemoryKind.SEGMENT
        )


def running_servers(
    root: Root,
    pids: Sequence[int] = (),
    options: LaunchOptions = _NONE_GIVEN,
    of_anybody: frozenset[ProcessKind] = frozenset(),
) -> tuple[RunningServer, ...]:
    """Return the known programs that run; with ``pids``, only programs to which a pid belongs.

    A pid belongs to a program if its process is a part of the program, or started the program. A
    wrapper (``timeout``, a shell) that waits for a known program is left out; the forks of a
    program are part of that program.

    Args:
        options: Facts on the programs beside their command lines.
        of_anybody: Kinds of programs that others run too (etcd, Redis), to include.

    Raises:
        UsageError: If /proc cannot be read, or a pid belongs to no program.
    """
    processes = read_processes(root)
    if isinstance(processes, Unknown):
        raise UsageError(f"the processes cannot be read: {processes.reason}")
    by_pid = {process.pid: process for process in processes}
    for pid in pids:
        if pid not in by_pid:
            raise UsageError(f"--pid {pid}: no such process")
    programs = {
        process.pid: (process, program)
        for process in processes
        if (process.pid != os.getpid() or not root.live)
        and (program := _program(process, of_anybody)) is not None
    }
    servers, about = [], set()
    for pid, (process, program) in programs.items():
        tree, above = tree_of(pid, processes), tuple(_ancestors(process, by_pid))
        parents = [programs[p][0] for p in above if p in programs]
        if any(parent.words == process.words for parent in parents):
            continue  # a fork of it
        others = [p for p in tree if p in programs and programs[p][0].words != process.words]
        if others and any(programs[p][1] is program for p in others):
            continue  # what stands in front of it
        if not pids or not {*tree, *above}.isdisjoint(pids):
            about |= {*tree, *above}
            servers.append(_server(root, process, program, tree, options))
    if missed := [pid for pid in pids if pid not in about]:
        raise UsageError(f"--pid {missed[0]}: its command line starts no program that is known")
    return tuple(servers)


def _ancestors(process: RunningProcess, by_pid: Mapping[int, RunningProcess]) -> Iterator[int]:
    """Yield the pids of the parent, its parent and so on; without pid 1."""
    above = by_pid.get(process.parent)
    while above is not None and above.pid > 1:
        yield above.pid
        above = by_pid.get(above.parent)


def _program(process: RunningProcess, of_anybody: frozenset[ProcessKind]) -> ProcessKind | None:
    """Return the known program that a process is, by its command line; None for any other process,
    for a command that has a container or another host run the program (docker, ssh), and for a
    shell whose text is too long to be read.
    """
    argv = process.words
    if not argv or not (of_anybody or any(map(KNOWN.search, argv))):
        return None
    try:
        started = understand(read_argv(argv, {}).commands, lambda name: Unknown(name))
    except SourceError:
        return None
    programs = [each for each in started if each.kind not in NOT_OBSERVED]
    if len(programs) != 1:
        return None
    program, command = programs[0].kind, programs[0].command
    # A gate that still checks is not the server yet.
    apart = (starts_anew(each) or is_gate(each) for each in command.wrappers)
    if command.container is not None or any(apart):
        return None
    return None if program in OF_ANYBODY and program not in of_anybody else program


def _server(
    root: Root,
    process: RunningProcess,
    program: ProcessKind,
    tree: tuple[int, ...],
    options: LaunchOptions,
) -> RunningServer:
    """Return a running program with its sizing and memory.

    Args:
        process: The first of the program.
        tree: The pids of all its processes.
    """
    packages = [read_packages(root, pid) for pid in tree]
    folders = dict.fromkeys(folder for each in packages for folder in each.folders)
    replaced = tuple(dict.fromkeys(file for each in packages for file in each.replaced))
    names = (name for each in folders for name in root.listed(f"/proc/{process.pid}/root{each}"))
    listed = filter(None, map(distribution_of, names))
    wanted = ("sglang", "vllm", "lmcache")
    releases = tuple(each for each in listed if is_mooncake(each[0]) or each[0] in wanted)
    environment, by_words = read_environment(root, process.pid), None
    sizing: LaunchSizing | Unknown
    if isinstance(environment, Unknown):
        sizing, by_words = environment, _sizing(root, process, releases, options, {})
    else:
        sizing = _sizing(root, process, releases, options, environment)
    needs = sizing if isinstance(sizing, Unknown) else launch_needs(sizing)
    holdings = tuple(filter(None, (_holding(root, pid) for pid in tree)))
    opened = (isinstance(h.files, OpenFiles) and h.files.verbs_devices for h in holdings)
    registered = read_registered(root, tree) if any(opened) else ()
    known_of = (sizing, needs, releases, holdings, replaced, registered, by_words)
    return RunningServer(process.pid, program, *known_of)


def _holding(root: Root, pid: int) -> Holding | None:
    """Return the memory, files and limits of one process; None if it has ended."""
    memory = read_held_memory(root, pid)
    if isinstance(memory, Unknown) and memory.absent:
        return None
    limits = read_memlock(root, pid), read_limit(root, pid, "Max open files")
    return Holding(pid, memory, read_open_files(root, pid), *limits)


def _sizing(
    root: Root,
    process: RunningProcess,
    releases: Sequence[tuple[str, str]],
    options: LaunchOptions,
    environment: Mapping[str, str],
) -> LaunchSizing | Unknown:
    """Size the launch that a process's command line makes, by its files and ``environment``.

    Args:
        releases: Installed for that process. Unknown, with the reason, if it cannot be sized.
    """

    def read(name: str) -> str | Unknown:  # as the process itself finds it, in its container too
        inside = "root" if name.startswith("/") else "cwd/"
        return root.text(f"/proc/{process.pid}/{inside}{name}")

    reading = read_argv(process.words, environment)
    launch = WrittenLaunch(reading, f"pid {process.pid}", file_reader(reading.files, read))
    mooncake = tuple(each for each in releases if is_mooncake(each[0]))
    others = tuple(each for each in releases if each[0] in ("vllm", "lmcache"))
    installed = Installed(mooncake, dict(releases).get("sglang"), others=others)
    options = options._replace(mooncake_version=None, sglang_version=None, installed=installed)
    try:
        return size_written(launch, options, root)
    except UsageError as error:
        return Unknown(f"its command line cannot be sized: {error}")

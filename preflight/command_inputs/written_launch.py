"""A launch as the command line gives it, a file or words behind ``--``, read and sized."""

import os
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from checks.framework.finding import Status
from checks.framework.needs import LaunchNeeds
from checks.framework.regex import regex
from checks.framework.root import Root
from checks.framework.units import format_bytes
from checks.framework.unknown import Unknown
from checks.memory.judge import container_memory, regular_bytes
from checks.numa.nodes import parse_cpu_list, read_list
from preflight.base.shell import quote
from preflight.base.usage_error import NoLaunchError, UsageError
from preflight.command_inputs.launch_words import LaunchWords
from preflight.launches.env_files import read_small_file
from preflight.launches.launch_files import (
    COMPOSE_FILES,
    COMPOSE_OVERRIDES,
    STANDARD_INPUT,
    LaunchText,
    env_texts_of,
    near_file,
    read_source,
    with_env_files,
)
from preflight.launches.shell_script import read_argv
from preflight.launches.source import ReadFile, Reading, SourceError, file_reader
from preflight.launches.wrappers import SHELLS
from preflight.needs.chosen_releases import installed_there
from preflight.needs.launch_needs import launch_needs
from preflight.needs.launch_sizing import LaunchSizing, size_launch
from preflight.processes.processes import LaunchOptions, is_program

_HOSTNAME = frozenset(("hostname", "uname -n", "hostnamectl hostname"))
_NAMES, _INDICES = (f"--query-gpu={x} --format=csv,noheader" for x in ("name", "index"))
_GPUS = frozenset(
    f"nvidia-smi {options} | wc -l" for options in ("-L", "--list-gpus", _NAMES, _INDICES)
)


def is_answerable(command: str) -> bool:
    """Return whether a host can be asked for the output of a command."""
    plain = _normalized(command)
    return plain in _HOSTNAME or plain in _GPUS or plain in ("hostname -s", "nproc")


def _normalized(command: str) -> str:
    return " ".join(command.replace("2>/dev/null", " ").replace("2> /dev/null", " ").split())


def host_words(root: Root) -> Callable[[str], str | None]:
    """Return a function that gives the output of a command on the host, or None for a command that
    the host cannot answer.
    """

    def words(command: str) -> str | None:
        """Return the output of one command."""
        command = _normalized(command)
        if command in _HOSTNAME or command == "hostname -s":
            name = root.text("/proc/sys/kernel/hostname")
            if isinstance(name, Unknown):
                return None
            return name.strip().partition(".")[0] if command == "hostname -s" else name.strip()
        if command == "nproc":  # of a list: 0-3,8 is five
            cpus = read_list(root, "/sys/devices/system/cpu/online", parse_cpu_list)
            return None if isinstance(cpus, Unknown) or not cpus else str(len(cpus))
        if command in _GPUS:
            gpus = root.names("/proc/driver/nvidia/gpus")
            return None if isinstance(gpus, Unknown) else str(len(gpus))
        return None

    return words


_KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml", "Kustomization")
# How a script comes by its arguments: $1, ${1:-x}, "$@", $#, shift, for x do, another file of it.
_ARGUMENTS = regex(
    r"\$\{?[#!]?[@*#1-9]|\b(?:shift|getopts|BASH_ARGV|source)\b|^[ \t]*\.\s"
    r"|\bfor\s+\w+\s*(?:;|\n|do\b)",
    re.MULTILINE,
)


class WrittenLaunch(NamedTuple):
    """What a launch starts, what it is called, and how to read the files that it names."""

    reading: Reading
    name: str
    read_file: ReadFile


# How the names of launch files end: one that is not here is no program.
_FILES = (".sh", ".bash", ".sbatch", ".py", ".yaml", ".yml", ".service")


def read_launch(
    launch: tuple[str, ...],
    env_files: tuple[str, ...],
    environment: Mapping[str, str],
    root: Root,
    is_command: bool = False,
) -> WrittenLaunch:
    """Read one file, or the words of a command.

    One word that is the name of a program is a command too: mooncake_master needs no argument. A
    command that runs a script, as ``bash launch.sh 8``, is that script with its arguments.

    Args:
        env_files: Of ``--env-file``.
        is_command: Even one word is a command.

    Raises:
        UsageError: If ``launch`` is no file and no command, or starts nothing that is known.
    """
    alone = len(launch) == 1 and not is_command and not is_program(launch[0])
    script = 0 if alone else _script(launch)
    try:
        if script is not None:
            name = launch[script]
            if (folder := _folder(name)) is not None:
                return _read_folder(name, folder, env_files, environment, root)
            arguments = launch[script + 1 :]
            text = read_small_file(name) if arguments and os.path.isfile(arguments[0]) else None
            if text is not None and _ARGUMENTS.search(text) is None:
                ignored = f"{arguments[0]} would be ignored: give one launch at a time"
                raise UsageError(f"{name} takes no arguments, so {ignored}")
            known = None if alone else arguments  # a file that is named may be given some
            reading = read_source(name, environment, env_files, known, host_words(root))
            name = STANDARD_INPUT if name == "-" else name
        elif not is_command and launch[0].endswith(_FILES) and not os.path.exists(launch[0]):
            advice = near_file(launch[0]) or "give the path of a script or manifest"
            raise SourceError(f"{launch[0]!r} does not exist: {advice}")
        else:
            name = "command line"
            texts = env_texts_of(env_files)
            given = LaunchText(name, "", False, environment, texts, lambda _: None)
            variables, notes = with_env_files(given)
            reading = read_argv(launch, variables)
            reading = reading._replace(notes=(*notes, *reading.notes))
    except SourceError as error:
        raise UsageError(str(error)) from None
    return _written(reading, name, os.path.dirname(name) if script is not None else "", root)


def _folder(name: str) -> str | None:
    """Return the folder that is given as a launch, itself or by its kustomization file, or None."""
    if "\0" not in name and os.path.isdir(name):
        return name
    return os.path.dirname(name) or "." if os.path.basename(name) in _KUSTOMIZATIONS else None


def _read_folder(
    name: str, folder: str, env_files: tuple[str, ...], environment: Mapping[str, str], root: Root
) -> WrittenLaunch:
    """Read the Compose file of a folder.

    Raises:
        SourceError: If an override lies beside that file, and for any other folder: a chart or
            kustomization has to be rendered first.
    """
    compose_files, over = (
        [path for file in names if os.path.isfile(path := os.path.join(folder, file))][:1]
        for names in (COMPOSE_FILES, COMPOSE_OVERRIDES)
    )
    if compose_files and over and folder == name:
        asked = f"give what docker compose config prints in {quote(folder)}"
        raise SourceError(f"{over[0]} is laid over {compose_files[0]}, which is not read: {asked}")
    if compose_files and folder == name:
        reading = read_source(compose_files[0], environment, env_files)
        return _written(reading, compose_files[0], folder, root)
    if os.path.isfile(os.path.join(folder, "Chart.yaml")):
        raise SourceError(f"{name} is a Helm chart: give what helm template {quote(folder)} prints")
    if not any(os.path.isfile(os.path.join(folder, file)) for file in _KUSTOMIZATIONS):
        usual = ", ".join((*COMPOSE_FILES[:1], *_KUSTOMIZATIONS[:1]))
        raise SourceError(f"{name} is a folder without {usual}: give a script or manifest")
    raise SourceError(f"{name}: give what kubectl kustomize {quote(folder)} prints")


def _written(reading: Reading, name: str, folder: str, root: Root) -> WrittenLaunch:
    """Return the launch of a reading.

    Args:
        folder: Where the launch's relative file names are looked up.

    Raises:
        NoLaunchError: If the launch starts no known program.
    """
    if not reading.commands:
        note = next(iter(reading.notes), None)
        where = f" ({note.origin})" if note is not None and note.origin.line is not None else ""
        why = "" if note is None else f"; {note.text}{where}"
        raise NoLaunchError(f"{name}: starts no program that is known here{why}")
    return WrittenLaunch(reading, name, file_reader(reading.files, _reader(root, folder)))


def _script(launch: tuple[str, ...]) -> int | None:
    """Return the index in ``launch`` of the script that the command runs, with a shell or directly.

    Returns:
        None if it runs no script, or none that exists here.
    """
    place = 0
    if launch[0].rpartition("/")[2] in SHELLS:
        place = next((i for i, word in enumerate(launch) if i and word[:1] not in "-+"), 0)
        options = launch[1:place]
        if not place or any("c" in word.partition("-")[2] for word in options):
            return None
    name = launch[place]
    if "\0" in name or not os.path.isfile(name):
        return None
    if place or name.endswith((".sh", ".bash")):
        return place
    try:
        with open(name, "rb") as file:
            first = file.readline(200)
    except OSError:
        return None
    return 0 if re.match(rb"#!.*\b(ba|da|k|z|a)?sh\b", first) and "/" in name else None


def size_written(launch: WrittenLaunch, options: LaunchOptions, root: Root) -> LaunchSizing:
    """Return the sizing of ``launch`` on the host below ``root``.

    Raises:
        UsageError: As flags do.
    """
    sizing = size_launch(launch.reading, launch.name, options, root, launch.read_file)
    return with_regular_memory(sizing, options, root)


def options_of(launch: LaunchWords) -> LaunchOptions:
    """Return the options of a launch that the command line gives."""
    mine = launch._asdict()
    return LaunchOptions(**{name: mine[name] for name in LaunchOptions._fields if name in mine})


def size_launch_words(
    launch: LaunchWords, available_bytes: int | None, environment: Mapping[str, str], root: Root
) -> LaunchSizing:
    """Read a launch and size it.

    Args:
        available_bytes: A pool of huge pages in place of the kernel's; None for the kernel's.

    Raises:
        UsageError: If it cannot be read, or has nothing to size.
    """
    written = read_launch(launch.words, launch.env_files, environment, root)
    installed = installed_there(written.reading, root)
    options = options_of(launch)._replace(available_bytes=available_bytes, installed=installed)
    from preflight.command_inputs.gate_options import with_gate_options

    reading, options = with_gate_options(written.reading, options, written.read_file)
    sizing = size_written(written._replace(reading=reading), options, root)
    empty = sizing.shown is not None and not sizing.shown.inputs.launch.processes
    if empty and sizing.unread:
        return sizing._replace(least=None, most=None)  # nothing of it is counted
    if empty:
        what = "no SGLang server, store service or mooncake_client: nothing to size"
        raise NoLaunchError(f"{written.name} starts {what}")
    return sizing


def _reader(root: Root, folder: str) -> ReadFile:
    """Return a reader of a launch's files: relative names below ``folder``, absolute names below
    ``root``.

    If ``root`` is not this machine, absolute names in the launch's folder are still read here.
    """
    own_folder = os.path.abspath(folder or ".")

    def read(name: str) -> str | Unknown:
        """Read one file."""
        if not name.startswith("/"):
            if folder and name.startswith(f"{folder}/") and os.path.isfile(name):
                return Root("/").text(os.path.abspath(name))  # by $(dirname "$0")
            return Root("/").text(os.path.normpath(os.path.join(own_folder, name)))
        beside = os.path.normpath(name)
        # Of another host's tree, what lies in the launch's own folder came with the launch.
        if not root.live and os.path.isfile(beside) and beside.startswith(own_folder + "/"):
            return Root("/").text(beside)
        return root.text(name)

    return read


def with_regular_memory(sizing: LaunchSizing, options: LaunchOptions, root: Root) -> LaunchSizing:
    """Return the sizing, judged also by the memory on regular pages: by each container's limit, the
    host's memory, and that of each NUMA node.

    The sizing is unchanged if it fails already, if it is for another host (``available_bytes``), or
    if the memory is not known.
    """
    if sizing.status == "fails" or sizing.shown is None or options.available_bytes is not None:
        return sizing
    available = sizing.shown.host.memory_bytes("MemAvailable")
    lower = sizing._replace(inputs=sizing.inputs._replace(most=sizing.inputs.least))
    most_needs = least_needs = launch_needs(lower._replace(most=sizing.least))
    if sizing.most is not sizing.least:
        most_needs = launch_needs(sizing)
    if limited := _small_container(least_needs):
        return _fails(sizing, limited, "memory.cgroup")
    if (limited := _small_container(most_needs)) and sizing.status != "unknown":
        sizing = sizing._replace(status="unknown", reason=limited)
    least, most = regular_bytes(least_needs), regular_bytes(most_needs)
    if isinstance(available, Unknown) or isinstance(least, Unknown) or isinstance(most, Unknown):
        return sizing
    sizing = sizing._replace(regular_bytes=(least, most))
    short = f"memory on regular pages: {format_bytes(available)} available, "
    if least > available:
        return _fails(sizing, f"{short}{format_bytes(least)} needed", "memory.host")
    if most > available and sizing.status != "unknown":
        reason = f"{short}{format_bytes(least)} to {format_bytes(most)} needed"
        return sizing._replace(status="unknown", reason=reason)
    if isinstance(why := _small_node(least_needs, root), str):
        return _fails(sizing, why, "numa.node-memory")
    why = _small_node(most_needs, root)
    if why is not None and sizing.status != "unknown":
        why = why.reason if isinstance(why, Unknown) else why
        return sizing._replace(status="unknown", reason=why)
    return sizing


def _fails(sizing: LaunchSizing, reason: str, judged_by: str) -> LaunchSizing:
    """Return the sizing as a failure, with the consequence of the check ``judged_by``."""
    from checks.memory.judge import CHECKS
    from checks.placement.node_checks import CHECKS as OF_NODES

    declared = (*CHECKS.problems, *OF_NODES.problems)
    page = next(each.page for each in declared if each.id == judged_by)
    return sizing._replace(status="fails", reason=reason, consequence=page.consequences[0])


def _small_container(needs: LaunchNeeds) -> str:
    """Say which memory limit that the launch gives a container is too small; "" if none."""
    for finding in container_memory(needs):
        if finding.status is Status.FAIL:
            where = f"memory of the container at {finding.subject}"
            return f"{where}: {finding.have}, {finding.need} on regular pages needed"
    return ""


def _small_node(needs: LaunchNeeds, root: Root) -> str | Unknown | None:
    """Say which NUMA node has too little memory, as ``check`` judges; None if no node has, Unknown
    if that is not known.
    """
    taking = [p for p in needs.processes if p.regular_bytes != 0]
    if not any(p.bound_bytes or p.among or p.node is not None for p in taking):
        return None
    from checks.memory.facts import read_memory
    from checks.numa.facts import read_numa
    from checks.placement.node_checks import node_memory

    findings = list(node_memory(needs, read_numa(root, needs), read_memory(root, needs)))
    for each in findings:
        if each.status is Status.FAIL:
            return f"memory on regular pages, {each.subject}: {each.have}, {each.need} needed"
    unknown = [each for each in findings if each.status is Status.UNKNOWN]
    return Unknown(f"memory of {unknown[0].subject}: {unknown[0].text}") if unknown else None

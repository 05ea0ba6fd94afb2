"""What ``capture --running`` keeps of the programs that run: what ``observe`` reads.

Nothing of other processes is kept, and no secret: of a command line the words, without the values
of secret flags; of an environment the variables that count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from checks.framework.recording import Answers, RecordingRoot
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.host_snapshot.anonymise import without_secrets
from checks.host_snapshot.secrets import clean_words
from checks.running_processes.processes import OpenFiles, is_of_package, read_environment, read_link
from preflight.command_inputs.launch_record import environment_record
from preflight.live_servers.comparison import GPUS, gpu_findings
from preflight.live_servers.running_launch import KNOWN, RunningServer, running_servers


class RunningRecord(NamedTuple):
    """The record of the programs that run, for a capture.

    Attributes:
        answers: The parts of /proc that ``observe`` reads, without secrets.
        argv: The words of each command line, by pid.
        hosts: Those of the services that the launches name.
    """

    answers: Answers
    argv: dict[str, list[str]]
    hosts: tuple[str, ...]


def record_running(root: Root) -> RunningRecord:
    """Record all that ``observe`` would read of the programs that run, without secrets.

    Raises:
        UsageError: If the processes cannot be read.
    """
    seen = RecordingRoot(root)
    seen.text("/proc/1/stat")  # by which observe sees whether /proc hides what others run
    servers = running_servers(seen)
    list(gpu_findings(servers, seen))
    holdings = [holding for server in servers for holding in server.holdings]
    kept = {"1", *(str(holding.pid) for holding in holdings)}
    read = seen.answers
    texts = {
        name: _needed_lines(name, text, read.texts)
        for name, text in read.texts.items()
        if _pid(name) in kept and name.rpartition("/")[2] not in ("cmdline", "environ")
    }
    folders = {
        name: entries
        if isinstance(entries, Unknown) or name == GPUS or name.endswith("/fd")
        else tuple(entry for entry in entries if KNOWN.search(entry))
        for name, entries in read.folders.items()
        if _pid(name) in kept or name == GPUS
    }
    links: dict[str, str | Unknown] = {}
    for holding in holdings:
        namespace = f"/proc/{holding.pid}/ns/user"
        links[namespace] = read_link(root, namespace)
        if isinstance(holding.files, OpenFiles):
            for number, device in enumerate(holding.files.verbs_devices):
                file = seen.listed(f"/proc/{holding.pid}/fd")[number]
                links[f"/proc/{holding.pid}/fd/{file}"] = f"/dev/infiniband/{device}"
    answers = without_secrets(Answers(texts, folders, links, {}, read.calls))
    answers.folders["/proc"] = tuple(sorted(kept))
    answers.texts.update({f"/proc/{pid}/cmdline": "" for pid in kept})
    argv = {str(server.pid): _record_words(server, seen, answers) for server in servers}
    needs = [server.needs for server in servers if not isinstance(server.needs, Unknown)]
    hosts = (service.host for each in needs for service in each.services)
    return RunningRecord(answers, argv, tuple(host for host in hosts if isinstance(host, str)))


def _pid(name: str) -> str:
    """Return the pid in a path below /proc; "" for any other path."""
    top, _, rest = name.removeprefix("/").partition("/")
    pid = rest.partition("/")[0]
    return pid if top == "proc" and pid.isdecimal() else ""


def _needed_lines(
    name: str, text: str | Unknown, texts: Mapping[str, str | Unknown]
) -> str | Unknown:
    """Shorten the text of a process's maps or numa_maps to the lines that ``observe`` reads.

    Any other text is returned unchanged.

    Args:
        name: The path; texts: all texts by path.
    """
    pid, what = _pid(name), name.rpartition("/")[2]
    if isinstance(text, Unknown) or name != f"/proc/{pid}/{what}":
        return text
    numa_maps = texts.get(f"/proc/{pid}/numa_maps", "")
    lines = text.splitlines(keepends=True)
    if what == "numa_maps":
        return "".join(line for line in lines if " huge " in line or " anon=" in line)
    if what == "maps" and isinstance(numa_maps, str):
        starts = {line.split()[0] for line in numa_maps.splitlines() if " huge " in line}
        return "".join(x for x in lines if x.partition("-")[0] in starts or is_of_package(x))
    return text


def _record_words(server: RunningServer, seen: Root, answers: Answers) -> list[str]:
    """Add a program's cleaned command line and environment to ``answers``; return its words."""
    place = f"/proc/{server.pid}"
    command, environment = seen.text(f"{place}/cmdline"), read_environment(seen, server.pid)
    line = None if isinstance(command, Unknown) else command.removesuffix("\0")
    argv = [] if line is None else clean_words(line.split("\0"))
    answers.texts[f"{place}/cmdline"] = "".join(f"{word}\0" for word in argv)
    answers.texts[f"{place}/environ"] = (
        environment
        if isinstance(environment, Unknown)
        else "".join(f"{n}={value}\0" for n, value in environment_record(environment).items())
    )
    return argv

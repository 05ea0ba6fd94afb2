"""Where facts come from: the live machine, or a folder laid out like one.

Files are read by their usual absolute names. What no file answers (a limit of this process, a
library's query, whether a port answers) is a *call*: a function of a module of ``CALL_MODULES`` on
the live machine, and an entry of ``calls.json`` at the top of a folder. ``checks.host_snapshot``
adds recorded machines; whoever reads facts cannot tell the difference.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextvars import ContextVar
from functools import cached_property
from typing import Any

from checks.framework.unknown import (
    NOT_RECORDED,
    NoFile,
    Unknown,
    none_if_absent,
    or_unknown,
    require,
)
from checks.framework.written_numbers import kernel_count, kernel_number

CALLS_FILE = "calls.json"
NOWHERE = "/dev/null"  # the path of a root that is no folder: below it nothing is
# How long whoever asks now waits for all answers of one topic; a call that waits takes a share.
LIMIT_SECONDS: ContextVar[float] = ContextVar("LIMIT_SECONDS", default=10.0)
# The first word of a call -> the module that answers it on the live machine.
CALL_MODULES = {
    "gpus": "checks.gpu.calls",
    "limits": "checks.limits.facts",
    "memory": "checks.memory.facts",
    "mooncake": "checks.placement.mooncake_topology",
    "network": "checks.network.calls",
    "numa": "checks.numa.facts",
    "pci": "checks.pci.facts",
    "rdma": "checks.rdma.calls",
    "registration": "checks.rdma.calls",
    "routing": "checks.network.calls",
    "services": "checks.network.calls",
    "software": "checks.software.calls",
    "storage": "checks.storage.folders",
    "system": "checks.system.facts",
}


class Root:
    """Reads files below ``path`` by their usual absolute names; never raises for a missing file."""

    def __init__(self, path: str = "/") -> None:
        self._prefix = path.rstrip("/")
        self._calls: dict[str, Any] | Unknown | None = None

    @property
    def live(self) -> bool:
        """Return whether this is the machine that the program runs on."""
        return not self._prefix

    def locate(self, name: str) -> str:
        """Return the real path of ``name`` (absolute, as on the live machine) below this root."""
        return self._prefix + name

    def _within(self, name: str) -> str:
        """Return the real path of ``name``.

        Raises:
            OSError: If its links lead out of this root: the files of another machine answer
                nothing.
        """
        path = self.locate(name)
        if self.live:
            return path
        real = os.path.realpath(path)
        # A link to /dev/null is a mask (systemd, sysctl.d): it holds nothing of any machine.
        if not self._holds(real) and real != os.devnull:
            raise OSError(f"leads out of {self._prefix}")
        return path

    def _holds(self, real: str) -> bool:
        """Return whether a path without links is below this root."""
        return real == self._real_prefix or real.startswith(f"{self._real_prefix}/")

    def text(self, name: str) -> str | Unknown:
        """Return a file's whole content, with undecodable bytes replaced.

        Returns:
            Unknown if it cannot be read, is a device or a pipe, or leads out of this root; NoFile
            for a folder.
        """
        try:
            with open(
                self._within(name), encoding="utf-8", errors="replace", opener=without_waiting
            ) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # /dev/zero has no end
                    return Unknown(f"{name}: a device or a pipe, and no file")
                return file.read()
        except IsADirectoryError:
            return NoFile(f"{name}: Is a directory")
        except (OSError, ValueError) as error:
            return unreadable(name, error)

    @or_unknown
    def integer(
        self, name: str, parse: Callable[[str], int | None] = kernel_number
    ) -> int | Unknown:
        """Read a file that holds one number.

        Args:
            parse: Returns the number, None for any other text.
        """
        content = require(self.text(name))
        number = parse(content)
        wrong = Unknown(f"{name}: not a number: {content.strip()[:40]!r}")
        return wrong if number is None else number

    def count(self, name: str) -> int | Unknown:
        """Read a file that holds one count; a negative number is Unknown."""
        return self.integer(name, kernel_count)

    @or_unknown
    def word(self, name: str) -> str | Unknown:
        """Read a file's content without the white space around it."""
        return require(self.text(name)).strip()

    def names(self, name: str) -> tuple[str, ...] | Unknown:
        """Return the entries of a folder, sorted."""
        try:
            return tuple(sorted(os.listdir(self._within(name))))
        except (OSError, ValueError) as error:
            return unreadable(name, error)

    def entries(self, name: str) -> tuple[str, ...] | Unknown:
        """Return the entries of a folder, sorted; none if there is no such folder."""
        return none_if_absent(self.names(name), ())

    def listed(self, name: str) -> tuple[str, ...]:
        """Return the entries of a folder, sorted; () if the folder is missing or cannot be read."""
        names = self.names(name)
        return () if isinstance(names, Unknown) else names

    def lines(self, name: str) -> list[str]:
        """Return the lines of a file; [] if the file is missing or cannot be read."""
        content = self.text(name)
        return [] if isinstance(content, Unknown) else content.splitlines()

    def link(self, name: str) -> str | Unknown:
        """Return the path to which the links of ``name`` lead, below this root.

        Returns:
            Unknown if the path does not exist or leads out of this root.
        """
        try:
            real = os.path.realpath(self.locate(name), strict=True)
        except (OSError, ValueError) as error:
            return unreadable(name, error)
        if not self._holds(real):
            return Unknown(f"{name}: leads out of {self._prefix}")
        return real[len(self._real_prefix) :] or "/"

    @cached_property
    def _real_prefix(self) -> str:
        """The root's path without links, "" for the live machine; kept for every ``link``."""
        return os.path.realpath(self._prefix) if self._prefix else ""

    def mode(self, name: str) -> int | Unknown:
        """Return a file's type and permission bits (``st_mode``), its links followed."""
        try:
            return os.stat(self._within(name)).st_mode
        except (OSError, ValueError) as error:
            return unreadable(name, error)

    def call(self, name: str, *arguments: str | int) -> Any | Unknown:
        """Call ``topic.function`` on the machine, or return its recorded answer, as plain data."""
        if self.live:
            return live_call(name, *arguments)
        if self._calls is None:
            self._calls = self._load_calls()
        if isinstance(self._calls, Unknown):
            return self._calls
        return answer_of(self._calls, call_key(name, *arguments))

    def _load_calls(self) -> dict[str, Any] | Unknown:
        """Return the recorded answers in calls.json, by ``call_key``; Unknown if the file cannot be
        read or is not a JSON object.
        """
        import json

        content = self.text(f"/{CALLS_FILE}")
        if isinstance(content, Unknown):
            return Unknown("only the machine itself can tell, and these are files")
        try:
            calls = json.loads(content)
        except (ValueError, RecursionError) as error:
            return Unknown(f"{CALLS_FILE}: {error}")
        return calls if isinstance(calls, dict) else Unknown(f"{CALLS_FILE}: not a JSON object")


def without_waiting(path: str, flags: int) -> int:
    """Open a file, as an ``opener`` of ``open``, without waiting for the writer of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def call_key(name: str, *arguments: str | int) -> str:
    """Return the name of a call in a recording: ``topic.function argument argument``."""
    return " ".join((name, *(str(argument) for argument in arguments)))


def answer_of(calls: dict[str, Any], key: str) -> Any | Unknown:
    """Return the recorded answer under ``key``, a ``call_key``.

    Returns:
        Unknown if none is recorded, or if an Unknown is recorded, which is an object with the key
        "unknown".
    """
    if key not in calls:
        return Unknown(
            f"not recorded ({key.rstrip()})",
            cause="not recorded",
            advice="check on the host itself, or capture it with this launch",
            code=NOT_RECORDED,
        )
    answer = calls[key]
    if isinstance(answer, dict) and "unknown" in answer and answer.keys() <= _OF_UNKNOWN:
        absent = answer.get("absent") is True
        cause, advice, code = (str(answer.get(name, "")) for name in ("cause", "advice", "code"))
        return Unknown(str(answer["unknown"]), absent, cause=cause, advice=advice, code=code)
    return answer


_OF_UNKNOWN = {"unknown", "absent", "cause", "advice", "code"}


def live_call(name: str, *arguments: str | int) -> Any | Unknown:
    """Call ``topic.function`` on this machine; any error becomes the reason of an Unknown."""
    from importlib import import_module

    topic, _, function = name.partition(".")
    try:
        return getattr(import_module(CALL_MODULES[topic]), function)(*arguments)
    except OSError as error:
        return unreadable(call_key(name, *arguments), error)
    except Exception as error:  # a foreign library's own errors: none may end the program
        return Unknown(f"{call_key(name, *arguments)}: {type(error).__name__}: {error}")


def in_child(attempt: Callable[[], Any], limit_seconds: float) -> Any:
    """Run ``attempt`` in a forked child and return its result, which must be JSON data but no text.

    Raises:
        OSError: If ``attempt`` raises, the child dies, or ``limit_seconds`` pass.
    """
    import json
    import select
    import signal

    receiver, sender = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    # Safe beside the other readers' threads: the child takes none of their locks, leaves by _exit.
    child = os.fork()
    if child == 0:
        try:
            # Where it hangs and its parent is gone, nobody waits for the end of its streams.
            for number in {0, 1, 2} - {receiver, sender}:
                os.dup2(null, number)
            os.write(sender, json.dumps(attempt()).encode())
        except BaseException as error:
            os.write(sender, json.dumps(f"{type(error).__name__}: {error}").encode())
        finally:
            os._exit(0)
    os.close(sender)
    os.close(null)
    try:
        ready = select.select([receiver], [], [], limit_seconds)[0]
        answer = os.read(receiver, 1 << 16) if ready else b""
        if not ready:
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(receiver)
        _, status = os.waitpid(child, 0)
    if not ready:
        raise OSError(f"the attempt in a child took over {limit_seconds:g} s")
    if not answer:
        name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "no signal"
        raise OSError(f"the child that tried it was killed ({name})")
    result = json.loads(answer)
    if isinstance(result, str):
        raise OSError(result)
    return result


def unreadable(name: str, error: Exception) -> Unknown:
    """Return why ``name`` could not be read."""
    absent = isinstance(error, FileNotFoundError | NotADirectoryError)
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Unknown(f"{name}: {reason}", absent, code=error_name(error))


def refused_by_kernel(name: str, number: int) -> Unknown:
    """Return the reason for which the kernel refuses ``name``, by its errno."""
    return unreadable(name, OSError(number, os.strerror(number)))


def error_name(error: Exception) -> str:
    """Return the name of the kernel's error (ENOENT), or the number of the resolver's (-2, of
    netdb.h); "" if it has neither.
    """
    number = error.errno if isinstance(error, OSError) else None
    return errno.errorcode.get(number, str(number)) if number else ""

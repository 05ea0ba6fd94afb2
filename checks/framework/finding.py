"""What a check says of a host: one record per subject, as data.

A check is a pure function of facts and needs. It yields a ``Finding`` for everything that it looked
at, the good included, and nothing decides later what it meant.
"""

from collections.abc import Callable
from enum import Enum
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from checks.framework.unknown import OpenVariable, Unknown

P = ParamSpec("P")
T = TypeVar("T")


class Status(Enum):
    """The result of judging one subject.

    Results are shown in this order, the worst first.
    """

    FAIL = "fail"
    UNKNOWN = "unknown"
    WARN = "warn"
    PASS = "pass"
    SKIP = "skip"


class Consequence(Enum):
    """What happens to a launch if nobody fixes a failure."""

    WILL_NOT_START = "will not start"
    DIES_LATER = "dies later"
    DEGRADED = "silently degraded"
    CORRUPTS = "corrupts data"


class Kind(Enum):
    """What a setting changes; each output format (Docker, systemd) can express some of these."""

    SYSCTL = "sysctl"  # vm.max_map_count
    BOOT_SYSCTL = "boot_sysctl"  # the same, in a drop-in alone: in force from the next boot on
    SYSFS = "sysfs"  # a file of /sys or /proc and what to write there
    CGROUP = "cgroup"  # a file of /sys/fs/cgroup and what to write there
    ULIMIT = "ulimit"  # memlock, nofile; bytes or a count, or "unlimited"
    ENVIRONMENT = "environment"  # a variable of the launch; wanted "" removes it
    FLAG = "flag"  # a flag of the launched program
    SHM_SIZE = "shm_size"  # bytes of /dev/shm
    DEVICE = "device"  # a device node in the container
    CAPABILITY = "capability"  # IPC_LOCK, SYS_NICE
    SECURITY = "security"  # a container's security option: seccomp=unconfined
    MODULE = "module"  # a kernel module to load; wanted: its options
    KERNEL_ARGUMENT = "kernel_argument"  # a word of the kernel command line
    PACKAGE = "package"  # a distribution's package
    COMMAND = "command"  # a command to run, as words
    # What a container asks of its host beyond that; no check asks for it, a launch does.
    GPUS = "gpus"  # how many
    NETWORK = "network"  # host
    IPC = "ipc"  # host, in place of a size of /dev/shm
    MEMORY = "memory"  # bytes on regular pages
    HUGEPAGES = "hugepages"  # bytes of one page size, which is the name (2Mi, 1Gi)


class Fill(Enum):
    """A word of a command that only the shell which runs the command can fill in."""

    USER_ID = "$(id -u)"  # of the user who types the command, not of root behind sudo
    SHELL_PID = "$$"  # of the shell itself


class Setting(NamedTuple):
    """One thing to change: ``name`` from ``now`` (as read, "" if not set) to ``wanted``."""

    kind: Kind
    name: str
    wanted: str
    now: str = ""
    described_by: str = ""  # docker, compose or kubernetes, if the launch describes the container
    unit: str = ""  # the systemd unit whose limit is changed, "" for the launch's own limit
    words: tuple[str | Fill, ...] = ()  # the command, or the one that makes the device node
    as_root: bool = False  # root has to run it
    file: str = ""  # of ``Kind.BOOT_SYSCTL``, the file to add the line to
    origin: str = ""  # of that, the file to copy there first, or ""

    @property
    def label(self) -> str:
        """Return the setting's name with its owner: ``memlock of docker.service``."""
        return f"{self.name} of {self.unit}" if self.unit else self.name


def command(*argv: str | Fill, name: str = "", now: str = "", as_root: bool = False) -> Setting:
    """Return a setting that is a command to run.

    Args:
        name: What the command sets; by default the command itself.
        now: The value before.
    """
    label = name or " ".join(word if isinstance(word, str) else word.value for word in argv)
    return Setting(Kind.COMMAND, label, "", now, words=argv, as_root=as_root)


class Subject(str):
    """What a finding is about: a text for a person that carries its kind."""

    def __new__(cls, text: str, kind: str = "", ranks: tuple[int, ...] = ()) -> "Subject":
        """Make a text that carries the kind of the subject and the ranks that it names."""
        made = super().__new__(cls, text)
        made.kind, made.ranks = kind, ranks
        return made

    kind: str  # process, device, ...; "" if the check's own subjects say it
    ranks: tuple[int, ...]  # of the launch


class Evidence(NamedTuple):
    """The source of a fact, a path or call, and its raw value."""

    source: str
    value: str


class Finding(NamedTuple):
    """One subject judged.

    Attributes:
        have, need: What was seen and what the launch takes, with units.
    """

    check: str  # the id of its declaration
    status: Status
    subject: str  # what was looked at ("mlx5_0 port 1", "rank 3")
    have: str = ""
    need: str = ""
    formula: str = ""  # how ``need`` is computed
    text: str = ""  # what follows on this host, one sentence; of a skip or unknown, why
    evidence: tuple[Evidence, ...] = ()
    advice: str = ""  # what to do, one sentence
    settings: tuple[Setting, ...] = ()  # the same as ``advice``, as data
    consequence: Consequence | None = None  # None for the first one of the check's page
    cause: str = ""  # of an unknown, the reason alone, which other findings may share
    code: str = ""  # of an unknown, that of its ``Unknown``
    tells_cause: str = ""  # without a cause: that of others of which ``text`` tells no more
    asks: str = ""  # the command of this program that tells what would fit
    sets: tuple[OpenVariable, ...] = ()  # the variables that the advice asks to set

    def failed(
        self, text: str, advice: str = "", settings: tuple[Setting, ...] = (), **more: Any
    ) -> "Finding":
        """Return the same subject as a failure.

        Args:
            more: Other fields to replace.
        """
        return self._with_status(Status.FAIL, text, advice, settings, more)

    def warned(
        self, text: str, advice: str = "", settings: tuple[Setting, ...] = (), **more: Any
    ) -> "Finding":
        """Return the same subject as a warning."""
        return self._with_status(Status.WARN, text, advice, settings, more)

    def undecided(self, why: str | Unknown, **more: Any) -> "Finding":
        """Return the same subject as unknown.

        Args:
            why: What stood in the way; an Unknown also gives the advice, the cause and the
                variables to set.
        """
        why = Unknown(why) if isinstance(why, str) else why
        more.setdefault("cause", why.cause)
        more.setdefault("code", why.code)
        more.setdefault("sets", why.sets)
        return self._with_status(Status.UNKNOWN, why.reason, why.advice, (), more)

    def skipped(self, text: str, **more: Any) -> "Finding":
        """Return the same subject as skipped.

        Args:
            text: Why nothing is judged.
        """
        return self._with_status(Status.SKIP, text, "", (), more)

    def _with_status(
        self,
        status: Status,
        text: str,
        advice: str,
        settings: tuple[Setting, ...],
        more: dict[str, Any],
    ) -> "Finding":
        """Return this finding with another status and text.

        Empty ``advice`` or ``settings`` keep those of this finding.

        Args:
            more: Other fields to replace.
        """
        more.setdefault("advice", advice or self.advice)
        more.setdefault("settings", settings or self.settings)
        return self._replace(status=status, text=text, **more)

    def require(self, fact: T | Unknown, why: str = "") -> T:
        """Return the fact; raise UnjudgedError if it is Unknown.

        Args:
            why: Prefix of the reason.
        """
        if isinstance(fact, Unknown):
            raise UnjudgedError(self.undecided(fact.of(why)))
        return fact


class UnjudgedError(Exception):
    """A subject that cannot be judged: ``args[0]`` is the finding that stands in its place."""

    args: tuple[Finding]


def or_unjudged(function: Callable[P, Finding]) -> Callable[P, Finding]:
    """Decorate a function that judges one subject: it returns the finding of a raised
    UnjudgedError.
    """

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> "Finding":
        try:
            return function(*arguments, **named)
        except UnjudgedError as error:
            return error.args[0]

    return call


NO_LAUNCH = "no launch was given"


def passed(subject: str, have: str = "", need: str = "", formula: str = "", **more: Any) -> Finding:
    """Return a finding that passes; the runner adds the id of the check.

    Args:
        more: Other fields.
    """
    return Finding("", Status.PASS, subject, have, need, formula, **more)


def skip(text: str = NO_LAUNCH, subject: str = "host") -> Finding:
    """Return a finding that says why nothing is judged here."""
    return Finding("", Status.SKIP, subject, text=text)


def unknown_finding(
    subject: str, why: str | Unknown, have: str = "", need: str = "", *, check: str = ""
) -> Finding:
    """Return a finding that says why a subject is unknown.

    Args:
        check: Its id, if no runner adds it.
    """
    return Finding(check, Status.PASS, subject, have, need).undecided(why)

"""The user and the limits that a launch sets itself: sudo, su, ulimit, prlimit, keys of a unit.

Source: bash(1) ulimit, prlimit(1), sudo(8), su(1), runuser(1), setpriv(1), and systemd.exec(5)
"Process Properties", "Credentials" and "Capabilities".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from checks.framework.needs import CAPABILITIES, LIMIT_NAMES, Bound, RunAs, SetLimit
from checks.framework.regex import regex
from checks.framework.units import KIB
from checks.framework.unknown import Unknown
from preflight.launches.source import Origin, SourceNote, Word, brief

# What checks judge, by its letter: of ulimit with its unit in bytes or one, and of prlimit.
_ULIMIT = {
    "l": ("memlock", KIB),
    "n": ("nofile", 1),
    "v": ("as", KIB),
    "d": ("data", KIB),
    "f": ("fsize", KIB),  # dash: 512 bytes
    "u": ("nproc", 1),
    "s": ("stack", KIB),
    "t": ("cpu", 1),
}
_PRLIMIT = {letter: name for letter, (name, _) in _ULIMIT.items()}
_ASKED = regex(r"\$\(\s*ulimit\s+-(\w+)\s*\)|`ulimit\s+-(\w+)`")
_SUFFIX = {letter: 1 << 10 * power for power, letter in enumerate("KMGTPE", start=1)}
# What else a unit may give its processes less of than its host has; none of it is judged here.
_LIMITS = frozenset(
    "MemoryHigh MemoryMax TasksMax AllowedCPUs AllowedMemoryNodes NUMAMask NUMAPolicy "
    "CapabilityBoundingSet DynamicUser PrivateUsers DeviceAllow DevicePolicy IPAddressDeny "
    "NetworkNamespacePath PrivateDevices PrivateNetwork RestrictAddressFamilies".split()
)
# Folders that a launch's programs need, if a unit hides one or a part of it.
_HIDES = frozenset(("InaccessiblePaths", "InaccessibleDirectories", "TemporaryFileSystem"))
_NEEDED_FOLDERS = regex(r"(?:^|[\s+-])(?:/(?:\s|$|:)|/(?:dev|proc|sys)(?:[/:\s]|$))")
_ENOUGH = 1 << 20  # files or threads: no launch on one host asks for so many
# How a script names itself: prlimit --pid $$.
OWN_SHELL = frozenset(("$$", "--pid=$$", "-p$$", "$BASHPID", "${BASHPID}"))
# What nobody was met with: options that keep variables in a login shell, or take capabilities.
_ODD_OPTIONS = regex(
    r"(?:\S*/)?(?:setpriv .*--(?:reset-env|bounding-set|ambient-caps[ =]\S*-)"
    r"|(?:su|runuser) (?:.* )?(?:-w|--whitelist)|sudo (?=.*(?:-i|--login)).*--preserve-env=)",
    re.DOTALL,
)
# What su and runuser set before they open a session (util-linux, sanitize_prlimits; seen).
_SANITIZED = (("as", None, None), ("fsize", None, None), ("nofile", 1024, Bound.STAYS))


def exec_user_and_limits(command: str, origin: Origin) -> tuple[RunAs, tuple[SetLimit, ...]]:
    """Return user and limits, all Unknown, of what ``command``, such as ``docker exec``, starts."""
    where = f"{command} ({origin})"
    why = Unknown(
        f"{where}: the container runs already, and its limits and its user are not shown",
        advice="check inside that container, or show the run that starts it in the launch",
    )
    return RunAs(why, origin=where), _not_known(why, where)


def slurm_memlock(origin: Origin) -> SetLimit:
    """Return the memlock limit of a Slurm job, seen from outside of the job: Unknown.

    Slurm passes on the limits of the shell that submits it; for InfiniBand its guide leaves memlock
    to slurmd. Source: slurm.conf(5), PropagateResourceLimitsExcept; Slurm's FAQ.
    """
    why = Unknown(
        f"Slurm starts it ({origin}): with the limit of the shell that submits the job, or with "
        "slurmd's where slurm.conf has PropagateResourceLimitsExcept=MEMLOCK",
        advice="check inside a job on that node: srun mooncake-preflight check LAUNCH",
    )
    return SetLimit("memlock", why, why, f"Slurm ({origin})", raises=True)


def ray_limits(origin: Origin) -> tuple[SetLimit, ...]:
    """Return each limit of a program that Ray starts as Unknown: the node's daemon sets it."""
    why = Unknown(
        f"Ray starts it ({origin}): with the limits that its node was started with",
        advice="check as Ray starts it: ray job submit -- mooncake-preflight check LAUNCH",
    )
    return _not_known(why, f"Ray ({origin})")


def _not_known(why: Unknown, where: str) -> tuple[SetLimit, ...]:
    return tuple(SetLimit(name, why, why, where, raises=True) for name in LIMIT_NAMES)


def ulimit(argv: Sequence[Word]) -> Iterator[SetLimit]:
    """Yield the limits that ``ulimit -SHl unlimited -n 65536`` sets, if a check judges them."""
    texts = [word.text for word in argv[1:]]
    flags = "".join(text[1:] for text in texts if text.startswith("-"))
    soft, hard = "S" in flags, "H" in flags
    letter = "f"
    for word in argv[1:]:
        if word.text.startswith("-") and not word.unresolved:
            letter = next((each for each in reversed(word.text) if each not in "-SHa"), letter)
        elif letter in _ULIMIT:
            name, unit = _ULIMIT[letter]
            bound = _ulimit_bound(word, unit)
            stays = Bound.STAYS
            low, high = bound if soft or not hard else stays, bound if hard or not soft else stays
            yield SetLimit(name, low, high, str(word.origin))


def _ulimit_bound(word: Word, unit: int) -> int | Bound | Unknown | None:
    """Return the bound that a word of ``ulimit`` sets: its number times ``unit``; None: unlimited;
    Unknown: a variable is not set.

    ``hard`` and the like are a Bound, an invalid word STAYS.
    """
    printed = _ASKED.fullmatch(word.text)
    if printed is not None:
        return Bound.HARD if "H" in (printed.group(1) or printed.group(2)) else Bound.SOFT
    if word.unresolved:
        return Unknown(f"ulimit {word.text} ({word.origin}): {', '.join(word.unresolved)}")
    if word.text in ("hard", "soft", "unlimited"):
        return None if word.text == "unlimited" else Bound(word.text)
    if re.fullmatch(r"\d{1,18}", word.text, re.ASCII):
        return int(word.text) * unit
    return Bound.STAYS  # bash: invalid number; nothing is set


def prlimit(argv: Sequence[Word]) -> Iterator[SetLimit]:
    """Yield the limits of ``prlimit --memlock=unlimited --nofile=1024:4096`` that checks judge."""
    for word in argv[1:]:
        name, _, value = word.text.removeprefix("--").partition("=")
        if not word.text.startswith("--"):
            name, value = _PRLIMIT.get(word.text[1:2], ""), word.text[2:].removeprefix("=")
        if name in LIMIT_NAMES and value and word.text.startswith("-"):
            yield _pair(name, word, value)._replace(must=True)


def unit_limit(key: str, word: Word, unit: str, raises: bool = True) -> SetLimit | None:
    """Return the limit that ``LimitNOFILE=1024:4096`` sets; None for one that no check judges.

    Args:
        word: The value.
        unit: The unit's name.
        raises: As in SetLimit.
    """
    name = key.removeprefix("Limit").lower()
    if not key.startswith("Limit") or name not in LIMIT_NAMES:
        return None
    return _pair(name, word, word.text, raises)._replace(where=unit)


def unit_defaults(unit: str, limits: Iterable[SetLimit]) -> Iterator[SetLimit]:
    """Yield systemd's default of each limit that a unit ("" without a file) does not set."""
    names_set = {limit.name for limit in limits}
    for name in LIMIT_NAMES:
        if name not in names_set:
            origin = f"systemd's default, no Limit{name.upper()}="
            yield SetLimit(name, Bound.SYSTEMD, Bound.SYSTEMD, origin, raises=True, where=unit)


def _pair(name: str, word: Word, value: str, raises: bool = False) -> SetLimit:
    """Return a limit whose ``value`` is written as ``soft:hard``, or as one number for both.

    Args:
        name: Of the limit.
        raises: The limit may go above the hard limit in force.
    """
    soft, colon, hard = value.partition(":")

    def bound(text: str) -> int | Bound | Unknown | None:
        """Return one of the two values in bytes or in number; None: unlimited."""
        if not text and colon:
            return Bound.STAYS
        if text in ("unlimited", "infinity", "-1"):
            return None
        match = re.fullmatch(r"(\d{1,18})([KMGTPE]?)B?", text, re.ASCII)
        if match is None or word.unresolved:
            return Unknown(f"{name} {brief(value)} ({word.origin}) is not a limit that is known")
        return int(match.group(1)) * _SUFFIX.get(match.group(2), 1)

    first = bound(soft)
    return SetLimit(name, first, bound(hard) if colon else first, str(word.origin), raises)


def limit_note(key: str, value: str, origin: Origin) -> SourceNote | None:
    """Return a note if a property of a unit sets a limit that no check judges, else None."""
    taken = key == "AmbientCapabilities" and "~" in value
    off = value in ("", "no", "false", "0", "off", "auto") and key != "CapabilityBoundingSet"
    hides = key in _HIDES and _NEEDED_FOLDERS.search(value) is not None
    if off or not (key in _LIMITS or taken or hides):
        return None
    text = f"{key}={value}: sets a limit of the processes of this unit"
    count = int(value) if re.fullmatch(r"\d{1,18}", value, re.ASCII) else 0
    lifted = value == "infinity" or (key == "TasksMax" and count >= _ENOUGH)
    return SourceNote("ulimit" if lifted else "unit-limit-not-read", text, origin)


class _Changer(NamedTuple):
    """A program that changes the user.

    Attributes:
        options: Those that name the user.
        usual: The user without such an option, "" for no change.
        short: The one-letter options that take a word.
        first: The first other word is the user.
        service: The PAM service that opens a session.
        login: The options for a login shell.
    """

    options: tuple[str, ...] = ()
    usual: str = ""
    short: str = ""
    first: bool = False
    service: str = ""
    login: tuple[str, ...] = ()


_SU = _Changer((), "root", "csgGwT", True, "su", ("-", "-l", "--login"))
_CHANGERS = {
    "gosu": _Changer(first=True),
    "runuser": _SU._replace(options=("-u", "--user"), service="runuser"),
    "setpriv": _Changer(("--reuid", "--euid")),
    "su": _SU,
    "sudo": _Changer(("-u", "--user"), "root", "ugpCrtTUDRh", False, "sudo", ("-i", "--login")),
}


def changed_user(argv: Sequence[Word], behind: Sequence[Word] = ()) -> RunAs:
    """Return the user of a wrapper's program, as ``sudo -u NAME`` sets it; RunAs() if it changes
    none.

    Args:
        behind: The words behind the text of ``su -c``.
    """
    name = argv[0].text.rpartition("/")[2]
    texts = [word.text for word in argv[1:]]
    changer = _CHANGERS.get(name)
    if changer is None:
        return RunAs()
    word = _user_word(changer, argv[1:]) or (_user_word(changer, behind) if behind else None)
    shown = " ".join(texts).replace("--ambient-caps=", "--ambient-caps ")
    caps = {*shown.partition("--ambient-caps ")[2].partition(" ")[0].split(",")}
    caps = caps if name == "setpriv" else set()
    gained = tuple(each for each in CAPABILITIES if {f"+{each.lower()}", "+all"} & caps)
    user = changer.usual if word is None else _user(word)
    return RunAs(user, gained, f"{name} ({argv[0].origin})" if user != "" or gained else "")


def _user(word: Word) -> str | Unknown:
    if word.unresolved:
        names = ", ".join(word.unresolved)
        return Unknown(f"user {word.text} ({word.origin}) depends on {names}")
    return word.text.removeprefix("#").partition(":")[0]


def _user_word(changer: _Changer, argv: Sequence[Word]) -> Word | None:
    """Return the word of ``sudo -u NAME``, ``su NAME`` and the like that names the user; None if no
    word does.
    """
    index = 0
    while index < len(argv):
        text, option = argv[index].text, ""
        following = argv[index + 1] if index + 1 < len(argv) else None
        if text.startswith("--"):
            option, equals, value = text.partition("=")
            if option in changer.options:
                return argv[index]._replace(text=value) if equals else following
            index += not equals and option in ("--shell", "--command", "--group")
        elif text.startswith("-"):
            takes = next((at for at, c in enumerate(text) if at and c in changer.short), None)
            takes = 1 if takes is None and text[:2] in changer.options else takes
            if takes is not None and f"-{text[takes]}" in changer.options:
                rest = text[takes + 1 :]
                return argv[index]._replace(text=rest) if rest else following
            index += takes is not None and takes == len(text) - 1
        elif changer.first:
            return argv[index]
        index += 1
    return None


def opens_login(argv: Sequence[Word]) -> bool:
    """Tell whether su, runuser or sudo opens a login shell, which keeps no variable (observed)."""
    changer = _CHANGERS.get(argv[0].text.rpartition("/")[2])
    if changer is None or not changer.login:
        return False
    letters = [re.match(rf"-([^-{changer.short}]*)", word.text) for word in argv[1:]]
    options = {f"-{letter}" for match in letters if match is not None for letter in match[1]}
    return not {*changer.login}.isdisjoint({*options, *(word.text for word in argv[1:])})


def options_not_read(argv: Sequence[Word]) -> Iterator[SourceNote]:
    """Yield a note if sudo, su, runuser or setpriv has options whose effect is not read."""
    text = " ".join(word.text for word in argv)
    if _ODD_OPTIONS.match(text):
        why = "what its options keep or take is not read; put the settings behind it, as env "
        why = f"{brief(text)}: {why}NAME=value program"
        yield SourceNote("script-not-read", why, argv[0].origin)


def login_limits(argv: Sequence[Word], run_as: RunAs) -> Iterator[SetLimit]:
    """Yield the limits of the session that sudo, su or runuser opens for the user ``run_as``;
    nothing for another program.
    """
    changer = _CHANGERS.get(argv[0].text.rpartition("/")[2])
    if changer is None or not changer.service:
        return
    if changer.service != "sudo":
        for name, soft, hard in _SANITIZED:
            yield SetLimit(name, soft, hard, run_as.origin, True)
    for name in LIMIT_NAMES:
        origin = f"{run_as.origin}, limits.conf"
        yield SetLimit(name, Bound.LOGIN, Bound.LOGIN, origin, True, setter=run_as)


def unit_user(settings: Iterable[tuple[str, Word]], system: bool, unit: str) -> RunAs:
    """Return the user of a unit's processes, with the capabilities that they gain.

    Args:
        settings: Keys and values of the unit.
        system: Root's manager runs the unit.
        unit: The unit's path.
    """
    run_as = RunAs("root", (), unit) if system else RunAs()
    for key, word in settings:
        if key == "User" and word.text:
            run_as = run_as._replace(user=_user(word), origin=str(word.origin))
        elif key == "AmbientCapabilities":
            names = {name.upper().removeprefix("CAP_") for name in word.text.split()}
            more = tuple(name for name in CAPABILITIES if name in {*names, *run_as.gained})
            run_as = run_as._replace(gained=more if names else ())
    return run_as._replace(origin=run_as.origin or unit)

"""Which Mooncake and SGLang a launch is sized for: what is named, else installed, else assumed."""

from typing import TYPE_CHECKING

from checks.framework.installed import (
    Installed,
    installed_mooncake,
    installed_others,
    installed_sglang,
)
from checks.framework.regex import regex
from checks.framework.written_numbers import is_release
from checks.releases.mooncake import (
    NEWEST_KNOWN,
    RESTS_ON,
    USUALLY_INSTALLED,
    MooncakeRelease,
    mooncake_release,
    newer_than_known,
)
from preflight.base.usage_error import UsageError
from preflight.engines.programs.store_environment import Note
from preflight.needs.sizing_inputs import Input

if TYPE_CHECKING:
    from checks.framework.root import Root
    from checks.releases.sglang import SglangRelease
    from preflight.launches.source import Reading
    from preflight.processes.processes import LaunchOptions

# Programs whose release this is about.
_USES = regex("sglang|mooncake|dynamo|vllm")


def choose_mooncake(
    stated: str | None, installed: Installed | None = None, stated_in: str | None = None
) -> tuple[MooncakeRelease, Input, tuple[Note, ...]]:
    """Return the release to size for, its version with the origin, and notes.

    The release is ``stated``, else the first one installed (if it can be read), else the usual one.

    Args:
        installed: On a captured machine; None asks this machine.
        stated_in: Where the launch names ``stated``; None for the command line.

    Raises:
        UsageError: If ``stated`` cannot be read.
    """
    text, origin, notes = stated, stated_in or "--mooncake-version", []
    assumed = False
    installed_here: tuple[tuple[str, str], ...] = ()
    if text is None:
        installed_here = installed_mooncake() if installed is None else installed.mooncake
    if installed_here:
        distribution, text = installed_here[0]
        origin = f"{distribution}, {installed_where(installed)}"
        if len({version for _, version in installed_here}) > 1:
            several = ", ".join(map(" ".join, installed_here))
            message = f"several Mooncakes are installed: {several}"
            notes.append(Note("mooncake-installed-twice", message))
        try:
            mooncake_release(text)
        except ValueError as error:
            notes.append(Note("mooncake-version-unread", f"{distribution}: {error}"))
            text = None
    if text is None:
        text, assumed = USUALLY_INSTALLED, True
        origin = f"assumed: {_not_told('Mooncake', installed)}"
    try:
        behaviour = mooncake_release(text)
    except ValueError as error:
        raise UsageError(f"--mooncake-version {error}") from None
    notes += _taken_as("Mooncake", text, NEWEST_KNOWN, newer_than_known(text), RESTS_ON)
    return behaviour, Input(text, origin, assumed), tuple(notes)


def _taken_as(program: str, text: str, newest: str, newer: bool, decides: str) -> list[Note]:
    """Return a note if the version ``text`` is newer than the newest known release, or is no
    release; else [].

    The note says as which release it is taken.

    Args:
        newest: The newest known release.
        newer: ``text`` is newer.
        decides: What depends on the release.
    """
    name = program.lower()
    if newer:
        from checks.releases.open_changes import open_changes

        message = f"{program} {text} is newer than {newest}, the newest that was tested for this"
        message += f" model: taken as that one; it decides {decides}"
        maybe = "; ".join(f"{each.changes} ({each.pulls[0]})" for each in open_changes(name))
        return [Note(f"{name}-newer", f"{message}. It may have what upstream had open: {maybe}")]
    if not is_release(text):
        message = f"{program} {text} is a build of its own, no release: taken as that release"
        return [Note(f"{name}-own-build", f"{message}; it decides {decides}")]
    return []


def installed_there(reading: "Reading", root: "Root") -> Installed | None:
    """Return the releases that the launch would load on the machine, or in the tree of files, below
    ``root``.

    Returns:
        None if a command runs in a container, whose image nobody looks into.
    """
    if any(command.container is not None for command in reading.commands):
        return None
    from checks.software.facts import installed_engine

    return installed_engine(root)


def installed_where(installed: Installed | None, searched: bool = False) -> str:
    """Return where a version was looked for: the end of an origin.

    Args:
        searched: Nothing was found.
    """
    if installed is not None:
        there = f"for {installed.interpreter}" if installed.interpreter else ""
        return f"installed {there or 'where the capture was made'}"
    return "installed beside this program" if searched else "installed here"


# Programs that only speak of what others run: docker pull sglang:x, pkill -f sglang.
_SPEAK_OF = frozenset(
    "cat cp crictl ctr curl docker echo git grep kill kubectl ls mkdir nerdctl pgrep pkill podman "
    "printf rm sleep systemctl tail tee wget".split()
)


def with_image(options: "LaunchOptions", reading: "Reading", root: "Root") -> "LaunchOptions":
    """Return the options, without this machine's releases if all engines and stores run in images,
    and this machine is no container itself.
    """
    uses = (c for c in reading.commands if any(_USES.search(w.text) for w in c.words[:4]))
    users = [c.container for c in uses if c.words[0].text.rpartition("/")[2] not in _SPEAK_OF]
    if not users or None in users:
        return options
    from checks.system.facts import read_container

    if read_container(root).kind != "none":
        return options
    return options._replace(installed=Installed((), None, in_image=True))


def _not_told(program: str, installed: Installed | None) -> str:
    if installed is not None and installed.in_image:
        return f"its image does not say which {program} it has"
    return f"no {program} is {installed_where(installed, True)}"


def known_sglang(
    stated: str | None, installed: Installed | None = None, stated_in: str | None = None
) -> "tuple[SglangRelease, Input] | None":
    """Return the release ``stated``, else the one installed, and its version with the origin.

    The parameters are those of ``choose_mooncake``.

    Returns:
        None if both are missing, or the installed one is not known here.

    Raises:
        UsageError: If ``stated`` cannot be read.
    """
    text = stated if stated is not None else _installed_sglang(installed)
    if text is None:
        return None
    from checks.releases.sglang import sglang_release

    try:
        release = sglang_release(text)
    except ValueError as error:
        if stated is not None:
            raise UsageError(f"--sglang-version {error}") from None
        return None  # a version of which nothing is known here
    where = installed_where(installed) if stated is None else stated_in or "--sglang-version"
    return release, Input(text, where)


def choose_sglang(
    stated: str | None, installed: Installed | None = None, stated_in: str | None = None
) -> "tuple[SglangRelease, Input, tuple[Note, ...]]":
    """Return the release to size for, its version with the origin, and notes.

    The newest is assumed if ``known_sglang`` gives None. Parameters and UsageError are those of
    ``choose_mooncake``.
    """
    from checks.releases import sglang

    known = known_sglang(stated, installed, stated_in)
    if known is not None:
        release, version = known
        text, newest = str(version.value), sglang.NEWEST_KNOWN
        newer = sglang.newer_than_known(text)
        notes = _taken_as("SGLang", text, newest, newer, sglang.RESTS_ON)
        return release, version, tuple(notes)
    here, newest = _installed_sglang(installed), sglang.NEWEST_KNOWN
    why, notes = _not_told("SGLang", installed), []
    if here is not None:
        why = f"the installed {here} is not known here"
        text = f"SGLang {here} is no release that is known here: taken as {newest}"
        notes = [Note("sglang-version-unread", f"{text}; on it rest {sglang.RESTS_ON}")]
    assumed = Input(newest, f"assumed: {why}", True)
    return sglang.sglang_release(newest), assumed, tuple(notes)


def engines_of(installed: Installed | None) -> dict[str, str]:
    """Return the releases of the engines beside SGLang that a host has, by name."""
    return dict(installed_others() if installed is None else installed.others)


def _installed_sglang(installed: Installed | None) -> str | None:
    return installed_sglang() if installed is None else installed.sglang


def doubts(sglang: Input, mooncake: Input) -> tuple[str, str, str]:
    """Return three reasons to doubt the releases, each "" without a doubt.

    SGLang's is assumed or newer than known here; Mooncake's is assumed; Mooncake's is newer than
    known here.
    """
    from checks.releases.sglang import newer_than_known as newer_sglang

    ours, theirs = str(sglang.value), str(mooncake.value)
    unsure = newer = assumed = ""
    if sglang.assumed:
        unsure = f"SGLang {ours} is assumed"
    elif newer_sglang(ours):
        unsure = f"SGLang {ours} is newer than what is known here"
    if mooncake.assumed:
        assumed = f"Mooncake {theirs} is assumed"
    elif newer_than_known(theirs):
        newer = f"Mooncake {theirs} is newer than what is known here"
    return unsure, assumed, newer

"""Which Mooncake and which SGLang a launch is sized for: named, else installed, else assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.base.installed import Installed, installed_mooncake, installed_sglang
from checks.releases.mooncake import (
    NEWEST_KNOWN,
    MooncakeRelease,
    mooncake_release,
    newer_than_known,
)
from preflight.base.usage_error import UsageError
from preflight.programs.store_environment import Note
from preflight.sizing.sizing_records import Input

if TYPE_CHECKING:
    from checks.base.root import Root
    from checks.releases.sglang import SglangRelease
    from preflight.launches.source import Reading


def choose_mooncake(
    given: str | None, installed: Installed | None = None
) -> tuple[MooncakeRelease, Input, tuple[Note, ...]]:
    """Return the release to size for: the one given, else the one installed, else the newest known.

    installed: what a capture's machine has; None for this one. Raises UsageError for a version that
    cannot be read.
    """
    text, origin, notes = given, "--mooncake-version", []
    assumed = False
    found: tuple[tuple[str, str], ...] = ()
    if text is None:
        found = installed_mooncake() if installed is None else installed.mooncake
    if found:
        distribution, text = found[0]
        origin = f"{distribution}, {installed_where(installed)}"
        if len({version for _, version in found}) > 1:
            several = ", ".join(" ".join(pair) for pair in found)
            text_ = f"several Mooncakes are installed: {several}"
            notes.append(Note("mooncake-installed-twice", text_))
        try:
            mooncake_release(text)
        except ValueError as error:
            notes.append(Note("mooncake-version-unread", f"{distribution}: {error}"))
            text = None
    if text is None:
        text, assumed = NEWEST_KNOWN, True
        origin = f"assumed: no Mooncake is {installed_where(installed, True)}"
    try:
        behaviour = mooncake_release(text)
    except ValueError as error:
        raise UsageError(f"--mooncake-version {error}") from None
    if newer_than_known(text):
        newer = f"Mooncake {text} is newer than {NEWEST_KNOWN}, the newest that was held against"
        notes.append(Note("mooncake-newer", f"{newer} this model"))
    return behaviour, Input(text, origin, assumed), tuple(notes)


def installed_there(reading: Reading, root: Root) -> Installed | None:
    """Return what the launch would load on this machine, or in a tree of files.

    None leaves it to what is installed beside this program: nobody looks into a container's image.
    """
    if any(command.container is not None for command in reading.commands):
        return None
    from checks.software.facts import installed_engine

    return installed_engine(root)


def installed_where(installed: Installed | None, searched: bool = False) -> str:
    """The end of an origin: where a version was found, or (``searched``) looked for in vain."""
    if installed is not None:
        there = f"for {installed.interpreter}" if installed.interpreter else ""
        return f"installed {there or 'where the capture was made'}"
    return "installed beside this program" if searched else "installed here"


def known_sglang(
    given: str | None, installed: Installed | None = None
) -> tuple[SglangRelease, Input] | None:
    """Return the release that is given, else the one installed; None where one is to be assumed.

    installed: as ``choose_mooncake`` has it. Raises UsageError for a version that cannot be one.
    """
    if given is not None:
        from checks.releases.sglang import sglang_release

        try:
            return sglang_release(given), Input(given, "--sglang-version")
        except ValueError as error:
            raise UsageError(f"--sglang-version {error}") from None
    return _read_installed(_installed_sglang(installed), installed)


def choose_sglang(
    given: str | None, installed: Installed | None = None
) -> tuple[SglangRelease, Input]:
    """Return the release to size for: the known one, else the newest.

    Raises as ``known_sglang`` does.
    """
    from checks.releases import sglang

    if given is not None:
        known, here = known_sglang(given), None
    else:
        here = _installed_sglang(installed)
        known = _read_installed(here, installed)
    if known is not None:
        return known
    why = f"no SGLang is {installed_where(installed, True)}"
    if here is not None:
        why = f"the installed {here} is not known here"
    newest = sglang.NEWEST_KNOWN
    return sglang.sglang_release(newest), Input(newest, f"assumed: {why}", True)


def _installed_sglang(installed: Installed | None) -> str | None:
    return installed_sglang() if installed is None else installed.sglang


def _read_installed(
    text: str | None, installed: Installed | None
) -> tuple[SglangRelease, Input] | None:
    if text is None:
        return None
    from checks.releases.sglang import sglang_release

    try:
        return sglang_release(text), Input(text, installed_where(installed))
    except ValueError:
        return None


def doubts(sglang: Input, mooncake: Input) -> tuple[str, str, str]:
    """Why the launch's SGLang and Mooncake may be others than these, as ``Versions`` has it."""
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

"""Who runs what stands behind sudo, su, setpriv and their like, or what a unit starts.

Source: sudo(8), su(1), runuser(1), setpriv(1), systemd.exec(5) "Credentials" and "Capabilities".
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from checks.base.needs import CAPABILITIES, LIMIT_NAMES, Bound, RunAs, SetLimit
from checks.base.regex import regex
from checks.base.unknown import Unknown
from preflight.launches.source import SourceNote, Word, brief

# What nobody was met with: options that keep variables in a login shell, or take capabilities.
_ODD_OPTIONS = regex(
    r"(?:\S*/)?(?:setpriv .*--(?:reset-env|bounding-set|ambient-caps[ =]\S*-)"
    r"|(?:su|runuser) (?:.* )?(?:-w|--whitelist)|sudo (?=.*(?:-i|--login)).*--preserve-env=)",
    re.DOTALL,
)
# What su and runuser set before they open a session (util-linux, sanitize_prlimits; seen).
_SANITIZED = (("as", None, None), ("fsize", None, None), ("nofile", 1024, Bound.STAYS))


class _Changer(NamedTuple):
    """A program that changes the user.

    options: those that name the user. usual: the user without such an option, "" for no change.
    short: the one-letter options that take a word. first: the first other word is the user.
    service: the PAM service that opens a session. login: the options for a login shell.
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


def changed_user(words: Sequence[Word], behind: Sequence[Word] = ()) -> RunAs:
    """Return the user of a wrapper's program; ``behind``: the text of ``su -c``."""
    name = words[0].text.rpartition("/")[2]
    texts = [word.text for word in words[1:]]
    changer = _CHANGERS.get(name)
    if changer is None:
        return RunAs()
    word = _user_word(changer, words[1:]) or (_user_word(changer, behind) if behind else None)
    shown = " ".join(texts).replace("--ambient-caps=", "--ambient-caps ")
    caps = {*shown.partition("--ambient-caps ")[2].partition(" ")[0].split(",")}
    caps = caps if name == "setpriv" else set()
    gained = tuple(each for each in CAPABILITIES if {f"+{each.lower()}", "+all"} & caps)
    user = changer.usual if word is None else _user(word)
    return RunAs(user, gained, f"{name} ({words[0].origin})" if user != "" or gained else "")


def _user(word: Word) -> str | Unknown:
    if word.unresolved:
        names = ", ".join(word.unresolved)
        return Unknown(f"user {word.text} ({word.origin}) depends on {names}")
    return word.text.removeprefix("#").partition(":")[0]


def _user_word(changer: _Changer, words: Sequence[Word]) -> Word | None:
    """Return the word of ``sudo -u NAME``, ``su NAME`` and the like that names the user."""
    index = 0
    while index < len(words):
        text, option = words[index].text, ""
        following = words[index + 1] if index + 1 < len(words) else None
        if text.startswith("--"):
            option, equals, value = text.partition("=")
            if option in changer.options:
                return words[index]._replace(text=value) if equals else following
            index += not equals and option in ("--shell", "--command", "--group")
        elif text.startswith("-"):
            takes = next((at for at, c in enumerate(text) if at and c in changer.short), None)
            takes = 1 if takes is None and text[:2] in changer.options else takes
            if takes is not None and f"-{text[takes]}" in changer.options:
                rest = text[takes + 1 :]
                return words[index]._replace(text=rest) if rest else following
            index += takes is not None and takes == len(text) - 1
        elif changer.first:
            return words[index]
        index += 1
    return None


def opens_login(words: Sequence[Word]) -> bool:
    """Return whether su, runuser or sudo opens a login shell, which keeps no variable (seen)."""
    changer = _CHANGERS.get(words[0].text.rpartition("/")[2])
    if changer is None or not changer.login:
        return False
    letters = [re.match(rf"-([^-{changer.short}]*)", word.text) for word in words[1:]]
    options = {f"-{letter}" for match in letters if match is not None for letter in match[1]}
    return not {*changer.login}.isdisjoint({*options, *(word.text for word in words[1:])})


def options_not_read(words: Sequence[Word]) -> Iterator[SourceNote]:
    """Yield a note on options whose effect is not followed."""
    text = " ".join(word.text for word in words)
    if _ODD_OPTIONS.match(text):
        why = "what its options keep or take is not read; put the settings behind it, as env "
        why = f"{brief(text)}: {why}NAME=value program"
        yield SourceNote("script-not-read", why, words[0].origin)


def login_limits(words: Sequence[Word], run_as: RunAs) -> Iterator[SetLimit]:
    """Yield the limits of the session that sudo, su or runuser opens for ``run_as``."""
    changer = _CHANGERS.get(words[0].text.rpartition("/")[2])
    if changer is None or not changer.service:
        return
    if changer.service != "sudo":
        for name, soft, hard in _SANITIZED:
            yield SetLimit(name, soft, hard, run_as.origin, True)
    for name in LIMIT_NAMES:
        origin = f"{run_as.origin}, limits.conf"
        yield SetLimit(name, Bound.LOGIN, Bound.LOGIN, origin, True, setter=run_as)


def unit_user(settings: Iterable[tuple[str, Word]], system: bool, unit: str) -> RunAs:
    """Return the user of a unit's processes; ``system``: root's manager runs the unit."""
    run_as = RunAs("root", (), unit) if system else RunAs()
    for key, word in settings:
        if key == "User" and word.text:
            run_as = run_as._replace(user=_user(word), origin=str(word.origin))
        elif key == "AmbientCapabilities":
            names = {name.upper().removeprefix("CAP_") for name in word.text.split()}
            more = tuple(name for name in CAPABILITIES if name in {*names, *run_as.gained})
            run_as = run_as._replace(gained=more if names else ())
    return run_as._replace(origin=run_as.origin or unit)

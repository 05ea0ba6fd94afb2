"""Who runs what stands behind sudo, su, setpriv and their like, or what a unit starts.

Source: sudo(8), su(1), runuser(1), setpriv(1), systemd.exec(5) "Credentials" and "Capabilities".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from checks.base.needs import CAPABILITIES, LIMIT_NAMES, Bound, RunAs, SetLimit
from checks.base.unknown import Unknown
from preflight.launches.source import Word

_YES = ("yes", "true", "1", "on")
# What su and runuser set before they open a session (util-linux, sanitize_prlimits; seen).
_SANITIZED = (("as", None, None), ("fsize", None, None), ("nofile", 1024, Bound.STAYS))


class _Changer(NamedTuple):
    """options: those that name the user. usual: who it is where none does, "" for who it was.

    short: the options of one letter that take a word. first: whether the first other word is the
    user. service: who opens a session. login: the options for a login shell.
    """

    options: tuple[str, ...] = ()
    usual: str = ""
    short: str = ""
    first: bool = False
    service: str = ""
    login: tuple[str, ...] = ()


_SU = _Changer((), "root", "csgGwT", True, "su", ("-", "-l", "--login"))
_CHANGERS = {
    "chpst": _Changer(("-u",)),
    "doas": _Changer(("-u",), "root"),
    "gosu": _Changer(first=True),
    "runuser": _SU._replace(options=("-u", "--user"), service="runuser"),
    "setpriv": _Changer(("--reuid", "--euid")),
    "setuidgid": _Changer(first=True),
    "su": _SU,
    "su-exec": _Changer(first=True),
    "sudo": _Changer(("-u", "--user"), "root", "ugpCrtTUDRh", False, "sudo", ("-i", "--login")),
}


def changed_user(words: Sequence[Word], behind: Sequence[Word] = ()) -> RunAs:
    """Return who runs what stands behind the wrapper ``words``.

    behind: what follows the text that it gives to a shell (``su -c "..." NAME``).
    """
    name = words[0].text.rpartition("/")[2]
    texts = [word.text for word in words[1:]]
    if name == "unshare" and {"-r", "-U", "--user", "--map-root-user"} & set(texts):
        return RunAs("", (), tuple(CAPABILITIES), str(words[0].origin))
    changer = _CHANGERS.get(name)
    if changer is None:
        return RunAs()
    word = _named(changer, words[1:]) or (_named(changer, behind) if behind else None)
    gained, lost = _of_setpriv(texts) if name == "setpriv" else ((), ())
    user: str | Unknown = changer.usual
    if word is not None:
        user = _user(word)
    said = user != "" or gained or lost
    return RunAs(user, gained, lost, f"{name} ({words[0].origin})" if said else "")


def _user(word: Word) -> str | Unknown:
    if word.unresolved:
        names = ", ".join(word.unresolved)
        return Unknown(f"user {word.text} ({word.origin}) depends on {names}")
    return word.text.removeprefix("#").partition(":")[0]


def _named(changer: _Changer, words: Sequence[Word]) -> Word | None:
    """Return the word that names the user; None for no such word."""
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


def kept_by_login(words: Sequence[Word]) -> tuple[str, ...] | None:
    """Return the variables that a login shell of su, runuser or sudo keeps; None for no such shell.

    Seen of util-linux 2.38 and sudo 1.9: all others are gone, -p or not; so with setpriv
    --reset-env. A lone ``-`` counts where no other word stands before it.
    """
    texts = [word.text for word in words]
    name = texts[0].rpartition("/")[2]
    changer = _CHANGERS.get(name)
    if name == "setpriv" and "--reset-env" in texts:
        return ()
    if changer is None or not changer.login:
        return None
    keeps = ("--preserve-env",) if name == "sudo" else ("-w", "--whitelist-environment")
    login, kept, at, named = False, list[str](), 1, False
    while at < len(texts):
        option, equals, given = texts[at].partition("=")
        behind = "".join(texts[at + 1 : at + 2])
        letters = option[1:] if option[:1] == "-" and option[1:2] != "-" else ""
        takes = next((n for n, c in enumerate(letters) if c in changer.short), len(letters))
        if option in keeps and (equals or name != "sudo"):
            kept += (given if equals else behind).split(",")
            at += not equals
        elif letters:
            login = login or any("-" + one in changer.login for one in letters[:takes])
            at += takes == len(letters) - 1
        elif option.startswith("--"):
            login = login or option in changer.login
            at += not equals and option in (*changer.options, "--shell", "--command", "--group")
        else:
            login = login or (option == "-" and "-" in changer.login and not named)
            named = True
        at += 1
    return tuple(kept) if login else None


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


def _of_setpriv(texts: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what ``--ambient-caps`` gives and ``--bounding-set`` takes."""
    found: dict[str, list[str]] = {"--ambient-caps": [], "--bounding-set": []}
    for at, text in enumerate(texts):
        option, equals, value = text.partition("=")
        if option in found:
            found[option] += (value if equals else "".join(texts[at + 1 : at + 2])).split(",")
    ambient, bounding = found.values()
    return _signed(ambient, "+"), _signed(bounding, "-")


def _signed(words: Iterable[str], sign: str) -> tuple[str, ...]:
    kept: set[str] = set()
    for word in words:
        names = CAPABILITIES.keys() if word[1:] == "all" else {word[1:].upper()}
        kept = kept | names if word[:1] == sign else kept - names
    return tuple(name for name in CAPABILITIES if name in kept)


def unit_user(settings: Iterable[tuple[str, Word]], system: bool, unit: str) -> RunAs:
    """Return who runs what a unit starts, as the settings of ``[Service]`` say it, in their order.

    system: whether it is one of the system's manager, whose units root runs.
    """
    found = RunAs("root", (), (), unit) if system else RunAs()
    bounding, ambient = set(CAPABILITIES), set[str]()
    bounded = private = False
    for key, word in settings:
        if key in ("User", "DynamicUser") and word.text:
            if key == "User" or (word.text.lower() in _YES and found.origin == unit):
                user = _user(word) if key == "User" else "that systemd makes"
                found = found._replace(user=user, origin=str(word.origin))
        elif key == "PrivateUsers":
            private = word.text.lower() not in ("", "no", "false", "0", "off")
        elif key == "CapabilityBoundingSet":
            bounding = _merged(bounding if bounded else set(), word.text, not bounded)
            bounded = True
        elif key == "AmbientCapabilities":
            ambient = _merged(ambient, word.text, not ambient)
    lost = tuple(name for name in CAPABILITIES if private or name not in bounding)
    return found._replace(gained=tuple(ambient), lost=lost, origin=found.origin or unit)


def _merged(before: set[str], text: str, first: bool) -> set[str]:
    """Return the capabilities after one more line of them.

    It adds to those before; with ``~`` it takes from them.
    """
    names = {name.upper().removeprefix("CAP_") for name in text.lstrip("~").split()}
    if text.startswith("~"):
        return (set(CAPABILITIES) if first or not names else before) - names
    return before | (names & CAPABILITIES.keys()) if names else set()

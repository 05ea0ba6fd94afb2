"""The one place where words become a line of shell; everything that is pasted is made here."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from checks.base.finding import Fill, Kind, Setting

# Of Unicode's categories: what moves the cursor, turns the direction of writing, or ends a line.
_HIDDEN = ("Cc", "Cf", "Zl", "Zp", "Cs")


class Line(str):
    """A line of shell that carries what it does, for programs that do it without a shell.

    does: run ``argv``, write ``content`` to ``file`` or append it there, "shell" for what only the
    shell that it is typed into can do, "by hand" for what is for the reader. restarts: what has to
    be started anew for it: launch, container, pod, host or a unit; "" for nothing. starts: the
    engine and the words that it has to start a container with, where the line says that.
    """

    does: str
    argv: tuple[str, ...]
    file: str
    content: str
    needs_root: bool
    restarts: str
    starts: tuple[str, ...]

    def __new__(
        cls,
        text: str,
        does: str = "shell",
        argv: Iterable[str] = (),
        file: str = "",
        content: str = "",
        needs_root: bool = False,
        restarts: str = "",
        starts: Iterable[str] = (),
    ) -> Line:
        """Make a text that carries what it does."""
        made = super().__new__(cls, text)
        made.does, made.argv, made.file, made.content = does, tuple(argv), file, content
        made.needs_root, made.restarts, made.starts = needs_root, restarts, tuple(starts)
        return made


def is_hidden(letter: str) -> bool:
    """Return whether a terminal would obey a letter, or hide it, instead of showing it."""
    import unicodedata

    return unicodedata.category(letter) in _HIDDEN


def visible(text: str) -> str:
    """Return one line that a terminal shows as it is: what is hidden is written out."""
    if text.isprintable():
        return text
    return "".join(ascii(letter)[1:-1] if is_hidden(letter) else letter for letter in text)


def quote(text: str) -> str:
    """Return one word for bash, on one line that a terminal shows as it is."""
    if text.isprintable():
        return shlex.quote(text)
    letters = ((a, a.encode("utf-8", "surrogateescape")) for a in text)
    shown = (
        a if a.isprintable() and a not in "\\'" else "".join(f"\\x{byte:02x}" for byte in raw)
        for a, raw in letters
    )
    return f"$'{''.join(shown)}'"


def posix_assignment(name: str, value: str) -> str:
    """Return the lines that export a variable in any POSIX shell, which may not know $'...'."""
    if not any(map(is_hidden, value)):
        return f"export {name}={shlex.quote(value)}"
    octal = "".join(
        a
        if a.isascii() and a.isalnum()
        else "".join(f"\\{byte:03o}" for byte in a.encode("utf-8", "surrogateescape"))
        for a in value
    )
    # The full stop keeps line breaks at the end, which $(...) takes away.
    return f"{name}=$(printf '{octal}.'); export {name}=\"${{{name}%.}}\""


def line(words: Iterable[str | Fill], sudo: str = "") -> Line:
    """Return a command of ``words``. sudo: ``sudo `` or "", in front of it."""
    given = tuple(words)
    said = (quote(word) if isinstance(word, str) else word.value for word in given)
    argv = (word if isinstance(word, str) else word.value for word in given)
    return Line(sudo + " ".join(said), "run", argv, needs_root=bool(sudo))


def wanted_text(setting: Setting) -> str:
    """Return the wanted value of a setting; for a command, the line to run."""
    if setting.kind is not Kind.COMMAND:
        return setting.wanted
    return line(setting.words, "sudo " if setting.as_root else "")


def comment(text: str) -> Line:
    """Return a line that no shell runs, whatever stands in ``text``."""
    return Line(f"# {visible(text)}", "by hand")


def start(engine: str, words: Iterable[str]) -> Line:
    """Return the line that says with what ``engine`` has to start a container."""
    given = tuple(words)
    said = comment(f"start the container with: {engine} run {line(given)} ...")
    return Line(said, said.does, starts=(engine, *given))


def together(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Return ``lines``, each once, and all that an engine starts a container with as one line."""
    once = dict.fromkeys(lines)
    words: dict[str, list[str]] = {}
    for one in once:
        if one.starts:
            words.setdefault(one.starts[0], []).extend(one.starts[1:])
    whole = {engine: start(engine, _with_folders(its)) for engine, its in words.items()}
    joined = {
        each: Line(all_of, each.does, restarts=each.restarts, starts=all_of.starts)
        for each in once
        if each.starts
        for all_of in (whole[each.starts[0]],)
    }
    return tuple(dict.fromkeys(joined.get(each, each) for each in once))


# So many devices of one folder are given by name.
_MOST_DEVICES = 2


def _with_folders(words: Sequence[str]) -> list[str]:
    """Return an engine's words with the folder in place of many devices below."""
    folders = [word.rpartition("/")[0] for word in words if word.startswith("--device=/dev/")]
    many = {each for each in folders if folders.count(each) > _MOST_DEVICES} - {"--device=/dev"}
    return [*dict.fromkeys(d if (d := word.rpartition("/")[0]) in many else word for word in words)]


def write(text: str, path: str, sudo: str = "") -> Line:
    """Return the line that writes a value to a file; with sudo by tee, as sudo cannot redirect."""
    value, place = quote(text), quote(path)
    said = f"echo {value} | {sudo}tee {place}" if sudo else f"echo {value} > {place}"
    return Line(said, "write", (), path, f"{text}\n", bool(sudo))


def append(lines: Iterable[str], path: str, sudo: str = "") -> Line:
    """Return the command that appends lines to a file; the folder of the file must exist."""
    said = tuple(lines)
    words = ("echo", *said) if len(said) == 1 else ("printf", "%s\\n", *said)
    content = "".join(f"{each}\n" for each in said)
    said_line = f"{line(words)} | {sudo}tee -a {quote(path)}"
    return Line(said_line, "append", (), path, content, bool(sudo))

"""The one place where words become a line of shell; everything that is pasted is made here."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from checks.framework.finding import Fill, Kind, Setting

# Of Unicode's categories: what moves the cursor, turns the direction of writing, or ends a line.
_HIDDEN = ("Cc", "Cf", "Zl", "Zp", "Cs")


class Line(str):
    """A line of shell that carries what it does, for programs that do it without a shell.

    Attributes:
        does: "run" for ``argv``, "write" or "append" for ``content`` to ``file``, "shell" for a
            line that the user's shell alone can run, "by hand" for a comment.
        restarts: What then has to be started anew: launch, container, pod, host or a unit; "" for
            nothing.
        starts: An engine (docker, podman) and the options with which it has to start the container;
            () for every other line.
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
    """Quote one word for bash, on one line; a word with hidden characters as ``$'...'``."""
    if text.isprintable():
        return shlex.quote(text)
    letters = ((a, a.encode("utf-8", "surrogateescape")) for a in text)
    shown = (
        a if a.isprintable() and a not in "\\'" else "".join(f"\\x{byte:02x}" for byte in raw)
        for a, raw in letters
    )
    return f"$'{''.join(shown)}'"


def posix_assignment(name: str, value: str) -> str:
    """Return a line that exports a variable in any POSIX shell, also in one without $'...'."""
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


def line(command: Iterable[str | Fill], sudo: str = "") -> Line:
    """Return the line that runs a command, of quoted words; with a Fill only a shell can run it.

    Args:
        sudo: ``sudo `` or "", in front.
    """
    pairs = [(w, quote(w)) if isinstance(w, str) else (None, w.value) for w in command]
    typed = sudo + " ".join(quoted for _, quoted in pairs)
    argv = [word for word, _ in pairs if word is not None]
    if len(argv) < len(pairs):
        return Line(typed, needs_root=bool(sudo))
    return Line(typed, "run", argv, needs_root=bool(sudo))


def wanted_text(setting: Setting) -> str:
    """Return the wanted value of a setting; for a command, the line to run."""
    if setting.kind is not Kind.COMMAND:
        return setting.wanted
    return line(setting.words, "sudo " if setting.as_root else "")


def comment(text: str) -> Line:
    """Return a line that no shell runs, whatever stands in ``text``."""
    return Line(f"# {visible(text)}", "by hand")


def start(engine: str, arguments: Sequence[str]) -> Line:
    """Return the line that says with what ``engine`` has to start a container."""
    text = comment(f"start the container with: {engine} run {line(arguments)} ...")
    return Line(text, text.does, starts=(engine, *arguments))


def merge_lines(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Drop repeated lines, and join the container options of each engine (docker, podman) into one
    line, ``start the container with: ...``.
    """
    once = dict.fromkeys(lines)
    by_engine: dict[str, list[str]] = {}
    for each in once:
        if each.starts:
            by_engine.setdefault(each.starts[0], []).extend(each.starts[1:])
    whole = {engine: start(engine, _with_folders(its)) for engine, its in by_engine.items()}
    joined = {
        each: Line(all_of, each.does, restarts=each.restarts, starts=all_of.starts)
        for each in once
        if each.starts
        for all_of in (whole[each.starts[0]],)
    }
    return tuple(dict.fromkeys(joined.get(each, each) for each in once))


# So many devices of one folder are given by name.
_MOST_DEVICES = 2


def _with_folders(argv: Sequence[str]) -> list[str]:
    """Return an engine's words with the folder in place of many devices below."""
    folders = [word.rpartition("/")[0] for word in argv if word.startswith("--device=/dev/")]
    many = {each for each in folders if folders.count(each) > _MOST_DEVICES} - {"--device=/dev"}
    return [*dict.fromkeys(d if (d := word.rpartition("/")[0]) in many else word for word in argv)]


def write(text: str, path: str, sudo: str = "") -> Line:
    """Return the line that writes a value to a file; with sudo by tee, as sudo cannot redirect."""
    to = f"| {sudo}tee" if sudo else ">"
    typed = f"echo {quote(text)} {to} {quote(path)}"
    return Line(typed, "write", (), path, f"{text}\n", bool(sudo))


def append(lines: Iterable[str], path: str, sudo: str = "") -> Line:
    """Return the command that appends lines to a file; the folder of the file must exist."""
    added = tuple(lines)
    printing = ("echo", *added) if len(added) == 1 else ("printf", "%s\\n", *added)
    content = "".join(f"{each}\n" for each in added)
    typed = f"{line(printing)} | {sudo}tee -a {quote(path)}"
    return Line(typed, "append", (), path, content, bool(sudo))

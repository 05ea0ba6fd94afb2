"""Printing. A reader that closes the pipe does not change what the command answers."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, TextIO

import click

from checks.framework.regex import regex
from checks.framework.unknown import Unknown
from mooncake_preflight import answering
from preflight.base.shell import visible

# Where nothing tells how wide the reader's window is: a pipe, a log, a CI job.
PIPE_COLUMNS = 100
# Narrower is not laid out for: the text runs over.
LEAST_COLUMNS = 40
# Wider lines are hard to read, whatever the window.
MOST_COLUMNS = 140
# What ``painter`` puts in is known by a number that no text it is given can know.
_OURS = str(int.from_bytes(os.urandom(4), "big"))
_PAINTED = regex(rf"\x1b\[{_OURS};(\d+)m")
_COLORS = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36, "white": 37}
# What is printed goes here in place of standard output: an answer that a file is to have.
_LINES_OF_A_FILE: ContextVar[list[str] | None] = ContextVar("_LINES_OF_A_FILE", default=None)
_FORCING = ("FORCE_COLOR", "CLICOLOR_FORCE")
_LINES = regex(r"[^\n\t]+")


class OutputError(Exception):
    """Standard output takes no more: a full disk, a mount that went away."""


def open_streams() -> None:
    """Put the null device where the caller closed a standard stream, as ``>&-`` does."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            try:
                os.fstat(number)
            except OSError:
                os.open(os.devnull, os.O_RDWR)
            null = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(null, "w" if number else "r", encoding="utf-8"))


def terminal_text(text: str) -> str:
    """Return text with control characters written out; line ends and our own colours stay."""
    return "".join(
        ("\x1b[0m" if part == "0" else f"\x1b[{part}m\x1b[1m")
        if at % 2
        else part
        if part.isprintable()
        else _LINES.sub(lambda m: visible(m[0]), part)
        for at, part in enumerate(_PAINTED.split(text))
    )


@contextmanager
def output_to(path: str | None) -> Iterator[None]:
    """Collect what the block prints to standard output, and then write it to the file ``path``,
    whole or not at all.

    If ``path`` is None, the block prints as usual. No file is written if nothing was printed, or
    the block raised.

    Raises:
        UsageError: If the file cannot be written.
    """
    if path is None:
        yield
        return
    from preflight.base.within import limit_seconds, save

    lines: list[str] = []
    before = _LINES_OF_A_FILE.set(lines)
    try:
        yield
    finally:
        _LINES_OF_A_FILE.reset(before)
    text = "".join(f"{line}\n" for line in lines)
    if text:
        save(f"--output {path}", path, text.encode("utf-8", "replace"), 0o644, limit_seconds())


def say(text: str, *, err: bool = False) -> None:
    """Print a line to standard output, or to standard error if ``err``.

    Within ``output_to``, the file takes the place of standard output.

    A reader that closed the pipe is no error. A full disk raises OutputError, but not for standard
    error.
    """
    stream = sys.stderr if err else sys.stdout
    text = terminal_text(text)
    lines = _LINES_OF_A_FILE.get()
    if lines is not None and not err:
        lines.append(text)
        return
    if err and stream.isatty():
        from textwrap import fill

        whole = partial(fill, width=columns(), break_long_words=False, break_on_hyphens=False)
        fitted = (whole(each) if len(each) > columns() else each for each in text.split("\n"))
        text = "\n".join(fitted)
    try:
        try:
            click.echo(text, err=err, color=True)
        except UnicodeEncodeError:  # a locale without these characters, or bytes that are no text
            encoding = stream.encoding or "ascii"
            plain = text.encode(encoding, "backslashreplace").decode(encoding)
            click.echo(plain, err=err, color=True)
    except KeyboardInterrupt:
        discard_output(stream)
        raise
    except OSError as error:
        discard_output(stream)
        if not err and not isinstance(error, BrokenPipeError):
            raise OutputError(f"standard output: {error.strerror}") from None


def discard_output(stream: TextIO | None = None) -> None:
    """Discard what a stream, else standard output, still holds: it would fail at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), (stream or sys.stdout).fileno())


def say_json(answer: dict[str, Any], *, err: bool = False) -> None:
    """Print one whole JSON object, whatever signal comes meanwhile."""
    text = json_text(answer)
    answering()
    say(text, err=err)


def json_text(answer: dict[str, Any]) -> str:
    """Return an object as text; what is not known is {"unknown": reason}."""
    import json

    return json.dumps(answer, indent=2, default=_unknown)


def _unknown(value: object) -> dict[str, str]:
    if not isinstance(value, Unknown):
        raise TypeError(f"{value!r} is no JSON")
    return {"unknown": value.reason}


def painter(color: str) -> Callable[[str, str], str]:
    """Return a function ``paint(text, colour)``, which colours a text, or leaves it as it is.

    Args:
        color: Auto, always or never.
    """
    shown = uses_color(color)

    def paint(text: str, colour: str) -> str:
        return f"\x1b[{_OURS};{_COLORS[colour]}m{text}\x1b[{_OURS};0m" if shown else text

    return paint


def uses_color(color: str) -> bool:
    """Return whether to colour texts.

    Args:
        color: Auto decides by NO_COLOR, FORCE_COLOR, CLICOLOR_FORCE, then the terminal; it never
            colours a file of ``output_to``.
    """
    if color != "auto" or _LINES_OF_A_FILE.get() is not None:
        return color == "always"
    if "NO_COLOR" in os.environ:
        return False
    if any(os.environ.get(name, "0") not in ("", "0") for name in _FORCING):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def drawing_encoding() -> str:
    """Return the encoding in which pictures are drawn: ASCII if the user's locale is C or POSIX.

    Python writes UTF-8 in such a locale too (PEP 538, which sets LC_CTYPE to C.UTF-8, and PEP 540).
    PYTHONIOENCODING, or PYTHONUTF8=1, says that UTF-8 is meant.
    """
    of_locale = [os.environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")]
    if of_locale[1] == "C.UTF-8":
        del of_locale[1]
    chosen = "PYTHONIOENCODING" in os.environ or os.environ.get("PYTHONUTF8") == "1"
    ascii_alone = not chosen and next(filter(None, of_locale), "") in ("C", "POSIX")
    return "ascii" if ascii_alone else sys.stdout.encoding or "ascii"


def columns() -> int:
    """Return how many columns a line may take: COLUMNS, else the terminal's width, else
    PIPE_COLUMNS; never below LEAST_COLUMNS or above MOST_COLUMNS.
    """
    wished, width = os.environ.get("COLUMNS", ""), PIPE_COLUMNS
    if wished.isascii() and wished.isdecimal() and 0 < int(wished) < 10**6:
        width = int(wished)
    elif _LINES_OF_A_FILE.get() is None:
        with suppress(OSError, ValueError, AttributeError):
            width = os.get_terminal_size(sys.stdout.fileno()).columns or PIPE_COLUMNS
    return max(LEAST_COLUMNS, min(MOST_COLUMNS, width))


class Progress:
    """A line on the terminal's standard error that says what is being done; ``clear`` removes it.

    Args:
        wanted: False shows nothing.
        after_seconds: Nothing is shown earlier than that.
    """

    def __init__(self, wanted: bool = True, after_seconds: float = 0.0) -> None:
        self._shown = wanted and sys.stderr.isatty()
        self._from = time.monotonic() + after_seconds
        self._text = ""

    def show(self, text: str) -> None:
        """Write ``text`` over the line that is shown."""
        text = visible(text[:PIPE_COLUMNS])
        if self._shown and time.monotonic() >= self._from and text != self._text:
            sys.stderr.write(f"\r{text:<{len(self._text)}}")
            sys.stderr.flush()
            self._text = text

    def clear(self) -> None:
        """Erase the line that is shown."""
        if self._text:
            sys.stderr.write(f"\r{'':<{len(self._text)}}\r")
            sys.stderr.flush()
            self._text = ""

"""Text from outside this program, made fit for one line of a terminal."""

import re

from checks.framework.regex import regex
from checks.host_snapshot.secrets import public

# Escape sequences in a file of the host must not reach the terminal.
_WRITTEN = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}
_WRITTEN |= dict.fromkeys(b"\t\n", " ")
# Names with a slash between them, without what a sentence puts around them.
_PATH = regex(r"""[^\s/("'=,]*/[^\s)"',]+""")


def clean(text: str) -> str:
    """Return one line, with what would move the cursor written out."""
    return text.translate(_WRITTEN)


def shortened(text: str, most: int) -> str:
    """Return the text in one line, without secrets, of at most ``most`` characters.

    If it is longer, its first words and " ...".
    """
    text = public(clean(text))
    if len(text) <= most:
        return text
    cut = text[: max(0, most - 3)]
    whole_words = cut.rpartition(" ")[0].rstrip()
    return f"{whole_words} ..." if whole_words else f"{cut}..."[:most]


def with_short_paths(text: str, most: int) -> str:
    """Return the text; of each path longer than ``most`` characters only the end is left."""

    def end_of(match: re.Match[str]) -> str:
        path = match[0]
        end = path[-max(1, most - 3) :]
        return path if len(path) <= most else f"...{end[max(0, end.find('/')) :]}"

    return _PATH.sub(end_of, text)


def with_last_name(text: str, path: str) -> str:
    """Return the text with the path ``path``, which the reader knows, replaced by its last name."""
    _, slash, name = path.rpartition("/")
    if not slash or not name:
        return text
    whole = re.compile(rf"(?<![\w/.-]){re.escape(path)}(?![\w/-]|\.\w)")
    return whole.sub(lambda _: name, text)

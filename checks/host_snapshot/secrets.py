"""Removes secrets from texts: values of secret settings, and user info and queries of addresses.

A setting is secret by its name (``HF_TOKEN=``, ``--api-key``, ``"redis_password":``). No value is
judged by its looks.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from checks.framework.regex import regex

REMOVED = "(removed)"
# The last words of a name, written with _ between them.
_SECRET = regex(
    r"(?:password|passwd|passphrase|secret|credentials?|cookie|sshpass)$"
    r"|_(?:pass|pwd|pw)$|^(?:pass|pw|jwt|authorization|bearer|rediscli_auth)$"
    r"|(?:api|access|account|auth|encryption|master|private|secret|session|signing)_?keys?$"
    r"|access_key_id$|token$"
)
# What a tokenizer calls a token, and what counts them.
_NO_SECRET = regex(
    r"(?:audio|bos|cls|eos|image|mask|pad|sep|stop|unk|video|each|first|inter|ki|max|min|next|num|per|to"
    r"|draft)_token$"
)
_NAME = r"(?<![\w.\-$])(?P<name>-{0,2}[A-Za-z_][\w.\-]*)"
_NAME_ALONE = regex(r"[\w.\-]+")
_QUOTED = r"\\?\"(?:[^\"\\\n]|\\[^\"\n])*(?:\\?\"|(?=\n|\Z))|'[^'\n]*(?:'|(?=\n|\Z))"
# A name with its sign, and its value behind it: NAME=value, of shells, units and the kernel's line.
_SET = (regex(rf"{_NAME}="), regex(rf"{_QUOTED}|\$\{{[^{{}}\n]*\}}|[^\s\"';&|,)}}]+"))
_OF_TEXTS = (
    # name: value and name = value, of YAML, JSON and INI
    (
        regex(rf"{_NAME}(?:\\?[\"'])?(?:[ \t]*:|[ \t]+=)[ \t]*"),
        regex(rf"{_QUOTED}|[^\s\"',}}\]{{\[|>&*][^\"'\n,}}\]]*"),
    ),
    # --name value: the next word of a line, of the line behind it, of a list of YAML or JSON
    (
        regex(rf"(?=-){_NAME}[\"']?(?:[ \t]*\\\n[ \t]*|[ \t]+|[ \t]*,\s*|[ \t]*\n[ \t]*-[ \t]+)"),
        regex(rf"{_QUOTED}|[^\s;&|\"',\]\-][^\s;&|,\]]*"),
    ),
    # Bearer value, of an HTTP header (RFC 6750), also without the header's name
    (regex(r"\b(?P<name>[Bb]earer)[ \t]+"), regex(r"[\w.~+/-]{8,}=*")),
    # A variable of a Kubernetes container.
    (
        regex(rf"name:[ \t]*[\"']?{_NAME}[\"']?[ \t]*(?:,|\n)\s*[\"']?value[\"']?:[ \t]*"),
        regex(rf"{_QUOTED}|[^\s\"',}}]+"),
    ),
)
# A reference to a variable names a secret and is none; three dots stand for a value to be given.
_REFERENCE = regex(r"\$\w+|\$\{\w+\}|\$\(\w+\)|\$\{\{[^{}]*\}\}|\.\.\.")
_USER = regex(r"(?<=://)[^/?#\s\"']{0,1000}@")
# user:password@host without a scheme, as Mooncake takes it; repository:tag@sha256:... is an image.
# host:port@device is a NIC in Mooncake's lines: no host's name has a _ or is such a device's.
_NIC = r"\d{1,5}@(?:\w*_\w|(?:rxe|rocep|ibp|rdmap|irdma|qedr|siw)\d)"
_PASSWORD = regex(
    rf"(?<![\w.+%/@:-])[\w.+%-]*:(?!{_NIC})[^\s\"'/,;]{{1,1000}}@(?!sha\d+:)(?=[\w\[$<{{])"
)
# The keys of Mooncake's metadata are names of peers. #token: 544 of SGLang is how many there are.
_COUNT = regex(r"\d+$")
_QUERY = regex(r"(?P<address>://[^\s\"'?#]{0,1000})\?(?!key=mooncake)(?:(?!,\w+://)[^\s\"'])*")


@lru_cache(maxsize=4096)  # a launch of many servers asks of the same names
def is_secret(name: str) -> bool:
    """Return whether the value of a variable, flag or key of this name is a secret."""
    snake_case = re.sub(r"(?<=[a-z])(?=[A-Z])|[.\-]", "_", name).strip("_").lower()
    return _SECRET.search(snake_case) is not None and _NO_SECRET.search(snake_case) is None


def clean_address(text: str) -> str:
    """Return a text with the addresses in it without user info and queries."""
    text = _PASSWORD.sub("", text) if "@" in text else text
    return _QUERY.sub(r"\g<address>", _USER.sub("", text)) if "://" in text else text


@lru_cache(maxsize=4096)  # the commands of a long launch have the same words
def clean_text(text: str) -> str:
    """Return a text without values of secret settings, and without users and queries in URLs."""
    text = _public(text)
    for head, value in _OF_TEXTS:
        text = _without_values(text, head, value)
    return text


def clean_words(argv: Iterable[str]) -> list[str]:
    """Return the words of a command with ``(removed)`` for the values of secret flags and
    variables.

    References to variables stay; ``clean_text`` cleans all other words.
    """
    cleaned, before = [], ""
    for word in argv:
        name, _, value = word.partition("=")
        is_set = value and _NAME_ALONE.fullmatch(name) and is_secret(name)
        if before.startswith("-") and is_secret(before) and word[:1] != "-":
            cleaned.append(word if _REFERENCE.fullmatch(word) else REMOVED)
        elif is_set and not _REFERENCE.fullmatch(value):
            cleaned.append(f"{name}={REMOVED}")
        else:
            cleaned.append(clean_text(word))
        before = word
    return cleaned


def public(value: Any) -> Any:
    """Return plain data with all texts cleaned, keys too: secrets written ``NAME=value`` are
    replaced, and addresses lose user info and query.

    Tuples become lists.
    """
    if isinstance(value, str):
        shown = _public(value)
        return value if shown == value else shown  # a Quantity stays one
    if isinstance(value, dict):
        return {public(key): public(item) for key, item in value.items()}
    return [public(item) for item in value] if isinstance(value, list | tuple) else value


def beginning(text: str, most: int) -> str:
    """Return a text of at most so many characters: the whole without secrets, or its beginning."""
    shown = clean_text(text[: most + 400])  # a secret that is cut is known by what is behind it
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."


def _public(text: str) -> str:
    text = clean_address(text)
    return _without_values(text, *_SET) if "=" in text else text


def _without_values(text: str, head: re.Pattern[str], value: re.Pattern[str]) -> str:
    """Return a text with the value of each secret replaced by ``(removed)`` in quotes.

    References to variables stay.

    Args:
        head: Matches a name (group ``name``) and its sign; value: a value.
    """
    parts, done = [], 0
    for match in head.finditer(text):
        if match.start() < done or not is_secret(match["name"]):
            continue
        secret = value.match(text, match.end())
        if secret and text.startswith("#", match.start() - 1) and _COUNT.match(secret[0]):
            continue
        if secret is None or _REFERENCE.fullmatch(secret[0].strip("\"'\\")):
            continue
        written = secret[0]
        quote = '\\"' if written.startswith('\\"') else written[0] if written[0] in "\"'" else '"'
        parts += [text[done : secret.start()], f"{quote}{REMOVED}{quote}"]
        done = secret.end()
    return "".join([*parts, text[done:]])

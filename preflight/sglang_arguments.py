"""SGLang's command line, read with the argument parser that SGLang itself builds.

The arguments are data (``data/sglang_arguments.json``: names, aliases, types, choices, defaults,
as SGLang 0.5.23 declares them); the parser is argparse, as there, so that abbreviations are
resolved and values refused in the same words.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from checks.unknown import Unknown
from preflight.launch_source import Origin, Word


class Setting(NamedTuple):
    """A value as its consumer has it, or Unknown where a variable stands in it; and its origin."""

    value: Any
    origin: str


class ParsedArguments(NamedTuple):
    """Every argument's setting by its name in SGLang, what was refused, and what was not known."""

    settings: Mapping[str, Setting]
    error: str | None  # SGLang's own words, without "sglang serve: error: "
    unrecognized: tuple[Word, ...]
    version: str  # of SGLang, whose arguments these are

    def value(self, name: str) -> Any:
        return self.settings[name].value

    def given(self, name: str) -> bool:
        return not self.settings[name].origin.startswith("default")


class _Text(str):
    """A word's text that still knows its word; argparse hands it through to the converters."""

    __slots__ = ("word",)
    word: Word


class _RefusedError(Exception):
    pass


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _RefusedError(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _RefusedError(message or "prints its help and ends")


def parse_sglang_arguments(words: Sequence[Word]) -> ParsedArguments:
    """Read the words after ``sglang.launch_server``; what is refused is in ``error``."""
    data = _data()
    parser = _build(data["arguments"])
    texts = list(_texts(words))
    error = None
    unrecognized: list[str] = []
    namespace = argparse.Namespace()
    try:
        namespace, unrecognized = parser.parse_known_args(texts, namespace)
    except _RefusedError as refusal:
        error = str(refusal)
        namespace, unrecognized = _without_what_is_refused(parser, texts)
    settings = {
        name: _setting(namespace, name, argument, data["version"])
        for name, argument in data["arguments"].items()
    }
    if error is None and not hasattr(namespace, "model_path") and not hasattr(namespace, "config"):
        error = "the following arguments are required: --model-path/--model"
    left = tuple(_word(text) for text in unrecognized)
    return ParsedArguments(settings, error, left, data["version"])


def _data() -> dict[str, Any]:
    path = os.path.join(os.path.dirname(__file__), "data", "sglang_arguments.json")
    with open(path, encoding="utf-8") as file:
        data: dict[str, Any] = json.load(file)
    return data


def _texts(words: Sequence[Word]) -> list[_Text]:
    """One text per word; ``--flag=value`` is split, so that the value keeps its word."""
    texts: list[_Text] = []
    for word in words:
        flag, equals, value = word.text.partition("=")
        parts = [flag, value] if equals and flag.startswith("--") else [word.text]
        for part in parts:
            text = _Text(part)
            text.word = word
            texts.append(text)
    return texts


def _word(text: str) -> Word:
    if isinstance(text, _Text):
        return text.word
    return Word(text, Origin("command line"))


def _converter(kind: str) -> Any:
    """The type of an argument, which lets a word with an unresolved variable through as Unknown."""
    convert: Any = {"int": int, "float": float, "json": json.loads, "human_int": _human_int}.get(
        kind, str
    )

    def converted(text: str) -> Any:
        word = getattr(text, "word", None)
        if word is not None and word.unresolved:
            return _Given(Unknown(unresolved_reason(word)), word)
        return _Given(convert(str(text)), word)

    # argparse names the type in its refusal: "invalid int value: '4x'".
    converted.__name__ = {"json": "loads", "human_int": "human_readable_int"}.get(kind, kind)
    return converted


def unresolved_reason(word: Word) -> str:
    names = ", ".join(word.unresolved)
    return f"{names} is not set where {word.text!r} stands ({word.origin})"


class _Given(NamedTuple):
    value: Any
    word: Word | None

    def __repr__(self) -> str:
        return repr(self.value)  # argparse quotes it when it is not among the choices


class _Choices(list[Any]):
    """Choices that hold for what a converter yields; an unknown value may be any of them."""

    def __contains__(self, given: object) -> bool:
        value = given.value if isinstance(given, _Given) else given
        return isinstance(value, Unknown) or super().__contains__(value)


def _build(arguments: Mapping[str, Mapping[str, Any]]) -> _Parser:
    parser = _Parser(prog="sglang serve", add_help=False)
    for name, argument in arguments.items():
        if argument["kind"] == "bool":
            parser.add_argument(
                *argument["flags"], dest=name, action="store_true", default=argparse.SUPPRESS
            )
            continue
        if argument["kind"] == "switch":
            parser.add_argument(
                *argument["flags"],
                dest=name,
                action=argparse.BooleanOptionalAction,
                default=argparse.SUPPRESS,
            )
            continue
        options: dict[str, Any] = {"type": _converter(argument["kind"])}
        if argument.get("choices"):
            options["choices"] = _Choices(argument["choices"])
        if argument.get("nargs"):
            options["nargs"] = argument["nargs"]
        parser.add_argument(*argument["flags"], dest=name, default=argparse.SUPPRESS, **options)
    return parser


def _without_what_is_refused(
    parser: _Parser, texts: list[_Text]
) -> tuple[argparse.Namespace, list[str]]:
    """What the rest says, flag by flag, so that one bad value does not hide every other finding."""
    namespace, unrecognized = argparse.Namespace(), []
    start = 0
    while start < len(texts):
        end = start + 1
        while end < len(texts) and not texts[end].startswith("--"):
            end += 1
        try:
            namespace, left = parser.parse_known_args(texts[start:end], namespace)
            unrecognized += left
        except _RefusedError:
            pass  # reported already
        start = end
    return namespace, unrecognized


def _setting(
    namespace: argparse.Namespace, name: str, argument: Mapping[str, Any], version: str
) -> Setting:
    if not hasattr(namespace, name):
        default = argument.get("default", False if argument["kind"] == "bool" else None)
        return Setting(default, f"default of SGLang {version}")
    given = getattr(namespace, name)
    flag = argument["flags"][0]
    if isinstance(given, list):
        unknown = next((item.value for item in given if isinstance(item.value, Unknown)), None)
        return Setting([item.value for item in given] if unknown is None else unknown, flag)
    if not isinstance(given, _Given):
        return Setting(given, flag)
    where = f" at {given.word.origin}" if given.word else ""
    return Setting(given.value, f"{flag}{where}")


_HUMAN = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)", re.ASCII)
_SI = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_IEC = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def _human_int(text: str) -> int:
    """SGLang's ``human_readable_int``: 25.6k is 25600, 1Mi is 1048576, case counts."""
    from decimal import Decimal

    match = _HUMAN.fullmatch(text.strip())
    if match is None:
        return int(text)
    number, suffix = match.groups()
    if suffix in _IEC:
        return int(number) * _IEC[suffix]
    return int(Decimal(number) * _SI[suffix])

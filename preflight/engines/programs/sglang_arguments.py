"""SGLang's command line, read with the argument parser that the release itself builds.

The arguments are data, see ``sglang_argument_tables``; the parser is argparse, as in SGLang, so
that abbreviations are resolved and values refused in the same words.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, NoReturn, SupportsIndex

from checks.framework.pages import Default
from checks.framework.regex import regex
from checks.framework.unknown import OpenVariable, Unknown
from preflight.engines.programs.sglang_argument_tables import (
    CONVERTERS,
    ArgumentTable,
    RefusedError,
    argument_names,
    argument_table,
)
from preflight.launches.source import (
    Origin,
    ReadFile,
    Word,
    give_variables,
    is_output,
    is_set_by_operator,
    open_name,
    open_variables,
    why_open,
)


class SettingValue(NamedTuple):
    """A value as the program reads it, and its origin.

    Attributes:
        value: Unknown if it depends on a variable that is not set.
        given: False for a default, or for an argument that the release lacks.
        written_as: The flag or variable that sets the value; "" if a file or nobody does.
    """

    value: Any
    origin: str
    given: bool = True
    written_as: str = ""


class ParsedArguments(NamedTuple):
    """Every argument's setting by its name in SGLang, with the refused and the unknown words.

    A name that only other releases have has the value None, and is not given.
    """

    settings: Mapping[str, SettingValue]
    error: str | None  # SGLang's own words, without "sglang serve: error: "
    unrecognized: tuple[Word, ...]
    version: str  # of SGLang, whose arguments these are
    # Whether ``version`` is the release asked for: then the real server refuses the same.
    exact: bool
    # Why there may be arguments that are not here; None if all are.
    unread: Unknown | None = None
    argv: tuple[Word, ...] = ()  # all that were read, those of a configuration file in front
    refused: tuple[Word, ...] = ()  # the flag that ``error`` is about, and its values
    assumed: bool = False  # nothing says which release it is: ``version`` is the newest known
    written: Mapping[str, SettingValue] = {}  # those of ``settings`` that are given

    def value(self, name: str) -> Any:
        return self.settings[name].value

    def given(self, name: str) -> bool:
        return self.settings[name].given


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RefusedError(message)


def parse_sglang_arguments(argv: Sequence[Word], version: str | None = None) -> ParsedArguments:
    """Read the words after ``sglang.launch_server``; a refusal is in ``error``.

    Args:
        version: Of the SGLang that reads them; None takes the newest known release. A release
            without a table is read as the newest known release before.

    Raises:
        ValueError: If it is no version.
    """
    return _parse(tuple(argv), version)


@lru_cache(maxsize=64)  # who looks for a size asks many times, and changes one word or none
def _parse(argv: tuple[Word, ...], version: str | None) -> ParsedArguments:
    """Do the work of ``parse_sglang_arguments``, once for the same words and version."""
    table = argument_table(version)
    texts = [_text(word.text, word) for word in argv]
    flags = {str(text.partition("=")[0]) for text in texts if text.startswith("-")}
    parser = _parser(version, tuple(sorted(flags)))
    error = None
    unrecognized: list[str] = []
    refused: list[_Text] = []
    namespace = argparse.Namespace()
    try:
        namespace, unrecognized = parser.parse_known_args(texts, namespace)
    except RefusedError as refusal:
        error = str(refusal)
        namespace, unrecognized, refused = _parse_flag_by_flag(parser, texts)
    left = tuple(_word(text) for text in unrecognized)
    settings = {**_defaults(table.version)}
    settings |= {name: _setting(stored) for name, stored in vars(namespace).items()}
    about = tuple(text.word for text in refused)
    if error is None and not hasattr(namespace, "model_path"):
        # A word that nothing sets may hold it: ARGS of a file that was not read.
        may_hold = next((word for word in left if word.unresolved), None)
        if may_hold is None:
            error = "the following arguments are required: --model-path/--model"
        else:
            settings["model_path"] = SettingValue(why_unresolved(may_hold), str(may_hold.origin))
    return ParsedArguments(
        settings,
        error,
        left,
        table.version,
        table.exact,
        argv=argv,
        refused=about,
        assumed=version is None,
        written={name: setting for name, setting in settings.items() if setting.given},
    )


# Variables that LeaderWorkerSet and RBG give every pod of a group.
_OPERATORS = ("LWS_", "RBG_")
_SUBSTITUTION = regex(r"\$\(([^()]*)\)")


class _Text(str):
    """A word's text that still knows its word; argparse hands it through to the converters."""

    __slots__ = ("word",)
    word: Word

    # How argparse takes --flag=value apart, in older and newer Pythons.
    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return [_text(part, self.word) for part in super().split(sep, maxsplit)]

    def partition(self, sep: str) -> tuple[str, str, str]:
        flag, separator, value = super().partition(sep)
        return _text(flag, self.word), separator, _text(value, self.word)


def _text(part: str, word: Word) -> _Text:
    text = _Text(part)
    text.word = word
    return text


def _word(text: str) -> Word:
    return text.word if isinstance(text, _Text) else Word(text, Origin("command line"))


_OWN_ARGUMENT = regex(r"\$?\{?(?:[@*]|[1-9]\d*)\}?")


def is_own_argument(name: str) -> bool:
    """Tell whether a name without a value is an argument of the script: $@ or $1."""
    return _OWN_ARGUMENT.fullmatch(name) is not None


def operator_variables(word: Word) -> list[str]:
    """Return the names in $(...) that a pod's operator sets; [] if ``word`` has other names."""
    if not all(map(is_output, word.unresolved)):
        return []
    names = _SUBSTITUTION.findall(word.text)
    return names if all(name.startswith(_OPERATORS) for name in names) else []


def why_unresolved(word: Word) -> Unknown:
    """Return why a word's text is not known, and advice on how to set the variables in the word."""
    if all(map(is_own_argument, word.unresolved)):
        reason = f"the script's own arguments are not given: {word.text!r} ({word.origin})"
        advice = "name them, if it is given any, behind it: -- bash SCRIPT ARGUMENTS"
        return Unknown(reason, advice=advice)
    shown = list(dict.fromkeys(open_name(word, name) for name in word.unresolved))
    given_in_pod = operator_variables(word)
    if given_in_pod:
        names = ", ".join(given_in_pod)
        reason = f"{names} is not set where {word.text!r} stands ({word.origin})"
        return Unknown(reason, advice=f"run this check in the pod: its operator sets {names} there")
    if all(map(is_output, word.unresolved)):
        return Unknown(f"{shown[0]} is not run here ({word.origin})")
    names = ", ".join(shown)
    # Not $(...), or $1: nothing in front of this command gives those.
    open_here = open_variables(word)
    sets = tuple(OpenVariable(name, word.inside) for name in open_here)
    advice = give_variables(sets)
    left_out = [name for name in shown if name.startswith("<")]
    if not open_here:
        advice = f"write a value in place of {', '.join(left_out)}" if left_out else ""
    of_pod = [name for name in word.unresolved if f"$({name})" in word.text]
    if open_here and of_pod:  # Kubernetes fills those in from the container's own variables alone
        operators = [n for n in of_pod if n.startswith(_OPERATORS) or is_set_by_operator(word, n)]
        cluster = word.inside.what.split() if word.inside and word.inside.kind == "cluster" else ()
        of_container = [name for name in of_pod if name not in operators and name not in cluster]
        named = f"name {', '.join(of_container)} under the container's env"
        inside = f"run this check in the pod: its operator sets {', '.join(operators)} there"
        in_pod = give_variables(OpenVariable(n, word.inside) for n in of_pod if n in cluster)
        advice = "; ".join(
            [named] * bool(of_container) + [inside] * bool(operators) + [in_pod] * bool(in_pod)
        )
    what_is_open = why_open(word, names) if open_here else f"{names} is not known"
    why = f"{what_is_open} where {word.text!r} stands ({word.origin})"
    return Unknown(why, advice=advice, sets=() if of_pod else sets)


def word_value(word: Word) -> str | Unknown:
    """Return a word's text; Unknown if a variable in it is not set."""
    return why_unresolved(word) if word.unresolved else word.text


def file_text(path: Word, read_file: ReadFile) -> str | Unknown:
    """Return the text of the file that a word names; Unknown if either is not known."""
    return why_unresolved(path) if path.unresolved else read_file(path.text)


def port_value(text: str, what: str) -> int | Unknown:
    """Return a port; Unknown if ``text`` is not a port.

    Args:
        what: Its name in the reason.
    """
    text = text.strip()
    known = text.isdecimal() and len(text) <= 5
    return int(text) if known else Unknown(f"{what} {text!r} is not a port")


class _Given(NamedTuple):
    """The converted value of one word."""

    value: Any
    word: Word | None

    def __repr__(self) -> str:
        return repr(self.value)  # argparse quotes it when it is not among the choices

    def __str__(self) -> str:
        return str(self.value)


class _Stored(NamedTuple):
    """A value in argparse's namespace, and the flag to name as its origin."""

    value: Any
    flag: str


class _Choices(list[Any]):
    """Choices for converted values; an unknown value is always accepted."""

    def __contains__(self, item: object) -> bool:
        value = item.value if isinstance(item, _Given) else item
        return isinstance(value, Unknown) or super().__contains__(value)


class _Store(argparse.Action):
    """Any argument of SGLang's: the row says what it stores."""

    def __init__(self, row: Mapping[str, Any], **options: Any) -> None:
        super().__init__(default=argparse.SUPPRESS, **options)
        self.row = row

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store the value of an argument, or refuse, as the kind of the argument says."""
        row_kind = self.row["kind"]
        if row_kind == "help":
            raise RefusedError("prints its help and ends")
        if row_kind == "refused":
            raise RefusedError(self.row["message"])
        if row_kind == "ignored":
            return
        if row_kind == "switch":
            values = not str(option_string).startswith("--no-")
        elif row_kind in _CONSTANT:
            values = self.row["value"]
        setattr(namespace, self.dest, _Stored(values, self.row["flags"][0]))


# Kinds of argument that take no value, and those that store a constant.
_BARE = frozenset({"help", "refused", "ignored", "switch", "constant"})
_CONSTANT = frozenset({"constant", "constant_of"})


def _possible_rows(
    rows: Sequence[Mapping[str, Any]], texts: Sequence[str]
) -> Iterator[Mapping[str, Any]]:
    """Yield the rows that ``texts`` may name, by a flag or its beginning, and the rows of help."""
    starts = tuple({text.partition("=")[0] for text in texts if text.startswith("-")})
    for row in rows:
        named = any(flag.startswith(start) for flag in row["flags"] for start in starts)
        if named or row["kind"] == "help":
            yield row


@lru_cache(maxsize=64)  # the servers of a manifest have the same flags
def _parser(version: str | None, flags: tuple[str, ...]) -> _Parser:
    return _build(_possible_rows(argument_table(version).rows, flags))


def _build(rows: Iterator[Mapping[str, Any]]) -> _Parser:
    """Build an argparse parser with an argument for each row."""
    # With a width: else argparse asks the terminal, and imports shutil, for every argument.
    formatter = partial(argparse.HelpFormatter, width=80)
    parser = _Parser(prog="sglang serve", add_help=False, formatter_class=formatter)
    for row in rows:
        options: dict[str, Any] = {"dest": row["name"], "action": _Store, "row": row}
        if row["kind"] in _BARE:
            parser.add_argument(*row["flags"], nargs=0, **options)
            continue
        options |= {"type": _converter(row["kind"]), "nargs": row.get("nargs")}
        if row["choices"]:
            options["choices"] = _Choices(row["choices"])
        parser.add_argument(*row["flags"], const=row.get("const"), **options)
    return parser


def _parse_flag_by_flag(
    parser: _Parser, texts: list[_Text]
) -> tuple[argparse.Namespace, list[str], list[_Text]]:
    """Parse one flag after another, so that one refused value does not hide the other findings.

    Return the settings of the flags that are taken, the words left over, and the first refused flag
    with its values.
    """
    namespace, unrecognized = argparse.Namespace(), []
    refused: list[_Text] = []
    start = 0
    while start < len(texts):
        end = start + 1
        while end < len(texts) and not texts[end].startswith("--"):
            end += 1
        try:
            namespace, left = parser.parse_known_args(texts[start:end], namespace)
            unrecognized += left
        except RefusedError:
            refused = refused or texts[start:end]
        start = end
    return namespace, unrecognized, refused


@lru_cache(maxsize=8)
def _defaults(version: str) -> Mapping[str, SettingValue]:
    """Return every argument's default; None for an argument that the release lacks."""
    absent = SettingValue(None, f"absent from SGLang {version}", False)
    settings = dict.fromkeys(argument_names(), absent)
    origin = Default(f"default of SGLang {version}")
    for row in argument_table(version).rows:
        if settings[row["name"]] is absent and not row.get("silent"):
            default = row.get("default", False if row.get("value") is True else None)
            settings[row["name"]] = SettingValue(default, origin, False)
    return settings


def _setting(stored: _Stored) -> SettingValue:
    """Return a parsed value as a setting; Unknown if one of its words is not known."""
    value, flag = stored
    if isinstance(value, list):
        unknown = next((item.value for item in value if isinstance(item.value, Unknown)), None)
        return SettingValue([item.value for item in value] if unknown is None else unknown, flag)
    if not isinstance(value, _Given):
        return SettingValue(value, flag)
    where = f" at {value.word.origin}" if value.word else ""
    return SettingValue(value.value, f"{flag}{where}", written_as=flag)


def _converter(type_name: str) -> Any:
    """Return the function with which argparse converts an argument's text; a word with a variable
    that is not set becomes Unknown.

    Args:
        type_name: A key of CONVERTERS; any other is a plain text.
    """
    convert, name = CONVERTERS.get(type_name, (str, type_name))

    def converted(text: str) -> Any:
        word = getattr(text, "word", None)
        if word is not None and word.unresolved:
            return _Given(why_unresolved(word), word)
        return _Given(convert(str(text)), word)

    # argparse names the type in its refusal: "invalid int value: '4x'".
    converted.__name__ = name
    return converted


_FLAG = "--config"
# Kinds that take no value without being a plain switch, or more than the merger hands over.
_NOT_SUPPORTED = frozenset({"switch", "refused", "ignored", "lora"})


def merged_words(
    argv: Sequence[Word], table: ArgumentTable, read_file: ReadFile
) -> tuple[Word, ...] | Unknown:
    """Return ``argv`` without ``--config FILE``, and with the file's settings as flags in front.

    ``argv`` must have the flag.

    Returns:
        Unknown if the file's name or text is not known.

    Raises:
        RefusedError: With SGLang's words, if SGLang refuses the file.
    """
    place, *others = [index for index, word in enumerate(argv) if word.text == _FLAG]
    if others:
        raise RefusedError("ValueError: Multiple config files specified! Only one allowed.")
    if place == len(argv) - 1:
        raise RefusedError("ValueError: No config file specified after --config flag!")
    path = argv[place + 1]
    if path.unresolved:
        return why_unresolved(path)
    entries = _entries(path.text, read_file)
    if isinstance(entries, Unknown):
        return entries
    from_file = tuple(Word(text, Origin(path.text)) for text in _as_words(entries, table))
    return (*from_file, *argv[:place], *argv[place + 2 :])


def _entries(path: str, read_file: ReadFile) -> Mapping[Any, Any] | Unknown:
    """Return the mapping of a configuration file, {} for an empty one; Unknown if it cannot be
    read.

    Raises:
        RefusedError: If SGLang ends with this file.
    """
    name, _, suffix = path.rpartition(".")
    if not name or suffix.lower() not in ("yaml", "yml"):
        shown = f".{suffix}" if name else ""
        raise RefusedError(f"ValueError: Config file must be YAML format, got: {shown}")
    text = read_file(path)
    if isinstance(text, Unknown):
        advice = f"put {path} where the launch looks for it, or write its settings as flags"
        return Unknown(f"--config: {text.reason}", advice=advice)
    import yaml

    try:
        entries = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise RefusedError(f"{path}: {type(error).__name__}: {error}") from None
    if entries is None:
        return {}
    if not isinstance(entries, dict):
        raise RefusedError("ValueError: Config file must contain a dictionary at root level")
    return entries


def _as_words(entries: Mapping[Any, Any], table: ArgumentTable) -> Iterator[str]:
    """Yield the entries of a configuration file as flags and values, as SGLang makes them.

    An empty list, or False for a switch, is left out.

    Raises:
        RefusedError: If SGLang refuses an entry.
    """
    kinds: dict[str, set[tuple[str, bool]]] = {}  # of each key: kind, and whether it stores True
    for row in table.rows:
        keys = {flag[2:].replace("-", "_") for flag in row["flags"] if flag.startswith("--")}
        for key in keys | {row["name"]}:
            kinds.setdefault(key, set()).add((row["kind"], row.get("value") is True))
    for key, value in entries.items():
        if not isinstance(key, str):
            raise RefusedError(f"AttributeError: {key!r} in the config file is not a name")
        name = key.replace("-", "_")
        of_key = kinds.get(name, {("", False)})
        if {each for each, _ in of_key} <= _NOT_SUPPORTED:
            raise RefusedError(f"ValueError: Unsupported config option '{name}'")
        if value == [] or (value is False and ("constant", True) in of_key):
            continue
        yield f"--{key}"
        if isinstance(value, list):
            yield from map(str, value)
        elif isinstance(value, dict):
            yield json.dumps(value, default=str)
        elif value is not True or ("constant", True) not in of_key:
            yield str(value).lower() if isinstance(value, bool) else str(value)

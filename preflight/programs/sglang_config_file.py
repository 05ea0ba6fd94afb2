"""SGLang's ``--config FILE``: a YAML file whose entries stand in front of the command line's words.

Source: SGLang 0.5.4 to 0.5.23 ``server_args_config_parser.py`` (``ConfigArgumentMerger``) and
``server_args.py`` (``prepare_server_args``); only the word ``--config`` alone is looked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from checks.base.unknown import Unknown
from preflight.launches.source import Origin, ReadFile, Word
from preflight.programs.sglang_argument_tables import ArgumentTable, RefusedError
from preflight.programs.sglang_arguments import unresolved

_FLAG = "--config"
# Kinds that take no value without being a plain switch, or more than the merger hands over.
_NOT_SUPPORTED = frozenset({"switch", "refused", "ignored", "lora"})


def merged_words(
    words: Sequence[Word], table: ArgumentTable, read_file: ReadFile
) -> tuple[Word, ...] | Unknown:
    """Return ``words`` with the file's in front; Unknown where the file cannot be read here.

    Raises RefusedError with what SGLang says of a file that it does not take.
    """
    places = [index for index, word in enumerate(words) if word.text == _FLAG]
    if not places:
        return tuple(words)
    if len(places) > 1:
        raise RefusedError("ValueError: Multiple config files specified! Only one allowed.")
    place = places[0]
    if place == len(words) - 1:
        raise RefusedError("ValueError: No config file specified after --config flag!")
    path = words[place + 1]
    if path.unresolved:
        return unresolved(path)
    entries = _entries(path.text, read_file)
    if isinstance(entries, Unknown):
        return entries
    given = tuple(
        Word(text, Origin(path.text)) for text in _as_words(entries, *_kinds_of_keys(table))
    )
    return (*given, *words[:place], *words[place + 2 :])


def _entries(path: str, read_file: ReadFile) -> Mapping[Any, Any] | Unknown:
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


def _kinds_of_keys(table: ArgumentTable) -> tuple[frozenset[str], frozenset[str]]:
    """Return the keys of plain switches, and those that the file may not have."""
    plain: set[str] = set()
    supported: set[str] = set()
    refused: set[str] = set()
    for row in table.rows:
        keys = {flag[2:].replace("-", "_") for flag in row["flags"] if flag.startswith("--")}
        keys.add(row["name"])
        if row["kind"] == "constant" and row.get("value") is True:
            plain |= keys
        if row["kind"] in _NOT_SUPPORTED:
            refused |= keys
        else:
            supported |= keys
    return frozenset(plain), frozenset(refused - supported)


def _as_words(
    entries: Mapping[Any, Any], plain: frozenset[str], refused: frozenset[str]
) -> Iterator[str]:
    for key, value in entries.items():
        if not isinstance(key, str):
            raise RefusedError(f"AttributeError: {key!r} in the config file is not a name")
        name = key.replace("-", "_")
        if name in refused:
            raise RefusedError(f"ValueError: Unsupported config option '{name}'")
        if isinstance(value, bool) and name in plain:
            if value:
                yield f"--{key}"
        elif isinstance(value, bool):
            yield from (f"--{key}", str(value).lower())
        elif isinstance(value, list):
            if value:
                yield from (f"--{key}", *(str(item) for item in value))
        elif isinstance(value, dict):
            yield from (f"--{key}", json.dumps(value, default=str))
        else:
            yield from (f"--{key}", str(value))

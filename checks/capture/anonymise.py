"""A capture with names and addresses replaced, the same by the same everywhere in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from checks.base.recording import Answers
from checks.base.unknown import Unknown
from checks.capture.private_names import PrivateNames
from checks.capture.secrets import clean_text


def anonymise(
    answers: Answers, extras: Mapping[str, Any], hosts: Iterable[str], users: Iterable[str]
) -> tuple[Answers, dict[str, Any]]:
    """Return what a capture holds, with names and addresses replaced.

    hosts, users: names that are known to be private, beside those that the answers show.
    """
    names = PrivateNames(hosts, users)
    for name, text in answers.texts.items():
        names.learn(name)
        if not isinstance(text, Unknown):
            names.learn_text(name, text)
    rest: list[Any] = [answers.folders, answers.links, answers.modes, answers.calls, dict(extras)]
    for mapping in (answers.texts, *rest[:-1]):
        for text in _strings(mapping):
            names.learn(text)
    for text in _strings(rest[-1]):
        names.learn_launch(text)
    texts = {
        names.replace(name): _map(names.replace, text)
        if isinstance(text, Unknown)
        else names.replace_text(name, text)
        for name, text in answers.texts.items()
    }
    folders, links, modes, calls, more = (_map(names.replace, mapping) for mapping in rest)
    return Answers(texts, folders, links, modes, calls), more


def without_secrets(answers: Answers) -> Answers:
    """Return what was recorded of a host, without the secrets in its files, calls and paths.

    What a path with password=x in it holds is not recorded: its launch has no such path either.
    """

    def clean(text: str) -> str:
        return clean_text(text, of_host=True)

    def public_paths(found: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: each for name, each in found.items() if "=" not in name or clean(name) == name
        }

    texts = {
        name: _map(clean, _without_comments(name, answer))
        for name, answer in public_paths(answers.texts).items()
    }
    return answers._replace(
        texts=texts,
        folders=public_paths(answers.folders),
        links=public_paths(answers.links),
        modes=public_paths(answers.modes),
        calls=_map(clean, public_paths(answers.calls)),
    )


def _without_comments(name: str, text: str | Unknown) -> str | Unknown:
    """Return a file of the host's own settings with its comments empty: they may hold anything.

    Lines stay where they are; what says that this program wrote a file stays too.
    """
    if isinstance(text, Unknown) or not name.startswith("/etc/"):
        return text
    return _COMMENT.sub("#", text)


# Of sysctl.d, limits.d, systemd, fstab, hosts, shells: a line of its own, begun with # or ;.
_COMMENT = re.compile(r"(?m)^[ \t]*[#;](?!.*mooncake-preflight).*$")


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Unknown):
        yield value.reason
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _map(change: Callable[[str], str], value: Any) -> Any:
    """Return ``value`` with every text in it changed, keys and reasons included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Unknown):
        cause, advice = change(value.cause), change(value.advice)
        return Unknown(change(value.reason), value.absent, cause=cause, advice=advice)
    if isinstance(value, Mapping):
        return {_map(change, key): _map(change, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_map(change, item) for item in value)
    return value

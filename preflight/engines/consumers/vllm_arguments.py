"""vLLM's own arguments, and how many workers they start on this host.

Read in vLLM 0.33.0 (``vllm/engine/arg_utils.py``, ``vllm/utils/argparse_utils.py``).
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from checks.framework.pages import Default
from checks.framework.regex import regex
from checks.framework.unknown import Unknown, require
from preflight.engines.consumers.consumer import attempt
from preflight.engines.programs.sglang_arguments import (
    SettingValue,
    port_value,
    why_unresolved,
    word_value,
)
from preflight.engines.programs.store_service_config import STORE_SUFFIXES
from preflight.launches.source import Word

HTTP_PORT = 8000
_SHORT = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-dpl": "data-parallel-size-local",
    "-dpn": "data-parallel-rank",
    "-dpe": "data-parallel-external-lb",
    "-dpb": "data-parallel-backend",
    "-n": "nnodes",
    "-r": "node-rank",
}
_SWITCHES = frozenset(
    "data-parallel-external-lb data-parallel-multi-port-external-lb data-parallel-hybrid-lb "
    "headless numa-bind enable-prefix-caching no-enable-prefix-caching".split()
)

_FLAG = regex(r"-(?!\d+(\.\d*)?\Z)")  # and no negative number


class VllmArguments(NamedTuple):
    """vLLM's own flags by name, without dashes; of a flag that is written twice, the last.

    Attributes:
        unread: Why some may be missing, or None.
    """

    flags: Mapping[str, Word]
    model: Word | None
    unread: Unknown | None = None

    def setting(self, name: str, default: Any = None) -> SettingValue:
        """Return the value of a flag, with its place.

        A missing flag has ``default`` as its value, or Unknown if the flag may be in what was not
        read.
        """
        word = self.flags.get(name)
        if word is None:
            if self.unread is not None:
                return SettingValue(self.unread, self.unread.reason, given=False)
            return SettingValue(default, Default("default of vLLM"), given=False)
        return SettingValue(word_value(word), f"--{name} at {word.origin}", written_as=f"--{name}")

    def port(self) -> SettingValue:
        setting = self.setting("port", HTTP_PORT)
        value = setting.value
        port = port_value(value, setting.origin) if isinstance(value, str) else value
        return setting._replace(value=port)

    def number(self, name: str, default: int | Unknown) -> int | Unknown:
        """Return the value of a flag as a positive number, else the default if it is missing.

        Returns:
            Unknown for a text that is no such number, or that is not known.
        """
        value = self.setting(name, default).value
        if isinstance(value, str):
            try:
                value = human_readable_int(value)
            except ValueError:
                return Unknown(f"--{name} {value!r} is not a number")
            return value if value > 0 else Unknown(f"--{name} {value} is less than 1")
        return value if isinstance(value, int | Unknown) else default


def vllm_arguments(argv: Sequence[Word]) -> VllmArguments:
    """Read ``--a b``, ``--a=b`` and switches, whose value is "true"; other words are passed over.

    ``--a.b c`` becomes ``--a '{"b": "c"}'``, in place of another value of ``--a``. ``--config
    FILE`` is not read, which ``unread`` says.
    """
    flags: dict[str, Word] = {}
    dotted: dict[str, Word] = {}
    model = unread = None
    left = list(argv)
    if left and left[0].text == "serve":
        left.pop(0)
        if left and not left[0].text.startswith("-"):
            model = left.pop(0)
    while left:
        word = left.pop(0)
        written, equals, text = word.text.partition("=")
        if not written.startswith("-"):
            continue
        name, dot, keys = written.partition(".")
        name = _SHORT.get(name) or name.lstrip("-").replace("_", "-")
        value = word._replace(text=text)
        if not equals:
            if name in _SWITCHES or not left or (not dot and _FLAG.match(left[0].text)):
                flags[name] = word._replace(text="true")
                continue
            value = left.pop(0)
        if dot:
            dotted[name] = _with_key(dotted.get(name), keys, value)
        elif name == "config":
            unread = Unknown(f"{word.text} ({word.origin}) is not read")
        else:
            flags[name] = value
    return VllmArguments({**flags, **dotted}, model or flags.get("model"), unread)


def _with_key(whole: Word | None, keys: str, value: Word) -> Word:
    """Return the word of a JSON object, None for {}, with ``value`` at ``keys`` (``a.b``, or ``a+``
    to add to a list).

    If one of its values is not known, the whole is not.
    """
    text: Any = value.text
    if keys.endswith("+"):
        text = json.dumps(text.split(","))
    read = attempt(lambda: [json.loads(text)])
    number = attempt(lambda: human_readable_int(text))
    part = read[0] if isinstance(read, list) else text if isinstance(number, str) else number
    for key in reversed(keys.removesuffix("+").split(".")):
        part = {key: part}
    merged = _merged({} if whole is None else json.loads(whole.text), part)
    other = value if whole is None or value.unresolved else whole
    return other._replace(text=json.dumps(merged))


def _merged(whole: Any, part: Any) -> Any:
    """Return ``whole`` with what ``part`` says: objects key by key, lists joined."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return {**whole, **{k: _merged(whole.get(k), value) for k, value in part.items()}}
    both = isinstance(whole, list) and isinstance(part, list)
    return whole + part if both else part


def workers_of(arguments: VllmArguments) -> tuple[int | Unknown, int | Unknown, int]:
    """Return three numbers: engines on this host, workers of each engine here, hosts of one engine.

    If the workers cannot be counted, the first two are Unknown and the last is 1.
    """
    names = "tensor-parallel pipeline-parallel prefill-context-parallel data-parallel".split()
    sizes = [arguments.number(name, 1) for name in (*(f"{size}-size" for size in names), "nnodes")]
    for value in sizes:
        if isinstance(value, Unknown):
            return value, value, 1
    tp, pp, pcp, engines, nodes = map(require, sizes)
    world, flags = tp * pp * pcp, arguments.flags
    ray = [name for name in ("distributed-executor-backend", "data-parallel-backend")
           if name in flags and flags[name].text == "ray"]  # fmt: skip
    if ray:
        why = Unknown(f"Ray places the workers (--{ray[0]} ray): how many run here is not written")
        return why, why, 1
    if flags.keys() & {"data-parallel-rank", "data-parallel-external-lb"}:
        return 1, max(1, world // nodes), nodes
    if "data-parallel-size-local" in flags:
        local = flags["data-parallel-size-local"]
        count = attempt(lambda: int(local.text))
        if local.unresolved or isinstance(count, str):
            why = (
                why_unresolved(local) if local.unresolved else Unknown(f"{local.text!r}: no number")
            )
            return why, why, 1
        return count, max(1, world), 1
    if nodes > 1 and engines > 1:
        here = world * engines // nodes
        return max(1, here // world), min(world, here), max(1, world // max(1, here))
    return engines, max(1, world // nodes), nodes


def model_of(arguments: VllmArguments) -> SettingValue:
    word = arguments.model
    if word is None:
        return SettingValue(None, Default("default of vLLM"), given=False)
    return SettingValue(word_value(word), str(word.origin))


def host_rank_of(arguments: VllmArguments) -> tuple[int | None, str]:
    """Return this host's place among the hosts of a launch, and the first host's address.

    The place is --node-rank. If data-parallel engines are spread over hosts, it is the number of
    this host's first engine (--data-parallel-start-rank). The address is "" if none is written.

    Returns:
        None for one host or if it is not known.
    """
    engines = arguments.number("data-parallel-size", 1)
    if arguments.number("nnodes", 1) != 1:
        name, address = "node-rank", "master-addr"
    elif arguments.number("data-parallel-size-local", engines) != engines:
        name, address = "data-parallel-start-rank", "data-parallel-address"
    else:
        return None, ""
    rank = attempt(lambda: int(arguments.setting(name, "0").value))
    first = arguments.setting(address).value
    return None if isinstance(rank, str) else rank, first if isinstance(first, str) else ""


def expand_numbers(text: str) -> str:
    """Write out bare numbers with a suffix, as vLLM does before it reads its JSON: ``80m``."""
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    for at in range(0, len(parts), 2):
        # Of a number that vLLM refuses the error stands there, which is no JSON either.
        written = lambda m: str(attempt(lambda: human_readable_int(m[0])))  # noqa: E731
        parts[at] = re.sub(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b", written, parts[at])
    return "".join(parts)


_VLLM_SIZE = regex(r"^\s*([\d.]+)\s*(gb|mb|kb|b)?\s*$")
_HUMAN = regex(r"(\d+(?:\.\d+)?)([kmgt])", re.IGNORECASE | re.ASCII)


def vllm_size_bytes(value: Any) -> int:
    """Return bytes as vLLM's ``_parse_size``: floats, and units from b to gb, powers of 1024.

    Raises:
        ValueError: For any other text, and TypeError for a value that is no number or text.
    """
    if isinstance(value, int):
        return value
    if not isinstance(value, str):
        try:
            return int(value)
        except (TypeError, ValueError):
            raise TypeError(f"Unsupported type for size: {type(value)}") from None
    match = _VLLM_SIZE.match(value.strip().lower())
    if not match:
        raise ValueError(f"Invalid format: '{value}'")
    return int(float(match[1]) * dict(STORE_SUFFIXES)[match[2] or "b"])


def human_readable_int(text: str) -> int:
    """Return vLLM's number: 80m is 80 * 10^6, 80M is 80 * 2^20.

    Raises:
        ValueError: For no number.
    """
    text = text.strip()
    match = _HUMAN.fullmatch(text)
    if match is None:
        return int(text)
    power = "kmgt".index(match[2].lower()) + 1
    if match[2].islower():
        return int(float(match[1]) * 10 ** (3 * power))
    return int(match[1]) << 10 * power

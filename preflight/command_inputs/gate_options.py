"""What a launch's own ``mooncake-preflight exec`` is told of it, for the command that reads it."""

from collections.abc import Callable
from functools import partial
from typing import Any

from checks.framework.units import parse_size
from checks.framework.unknown import Unknown
from checks.numa.nodes import parse_node_list
from preflight.launches.launchers import option_values
from preflight.launches.source import Origin, ReadFile, Reading, SourceNote
from preflight.launches.wrappers import is_gate
from preflight.processes.processes import LaunchOptions


def with_gate_options(
    reading: Reading, options: LaunchOptions, read_file: ReadFile
) -> tuple[Reading, LaunchOptions]:
    """Return a launch, and the options with what its own gate has and nobody gave.

    What cannot be read, or differs between several gates, is a note of the launch.

    Args:
        read_file: Reads the files that the launch names.
    """
    given: dict[str, dict[str, Origin]] = {}
    for command in reading.commands:
        for name, value in (
            pair for each in command.wrappers if is_gate(each) for pair in option_values(each)
        ):
            given.setdefault(name, {}).setdefault(value, command.origin)
    notes: list[SourceNote] = []
    for field, name, read in _OPTIONS:
        values = given.get(name)
        if not values or getattr(options, field) is not None:
            continue
        origin = next(iter(values.values()))
        try:
            (text,) = values
            taken: Any = read(text, read_file)
        except ValueError:
            shown = ", ".join(values)
            why = f"exec {name} {shown}: no one value that can be read here; give it to this "
            why += f"command, as {name} VALUE"
            notes.append(SourceNote("config-not-read", why, origin))
            continue
        origins = {**options.origins, field: f"{name} of exec, {origin}"}
        options = options._replace(**{field: taken}, origins=origins)
    return reading._replace(notes=(*reading.notes, *notes)), options


def _as_written(text: str, _: ReadFile) -> str:
    if not text.strip() or "$" in text:
        raise ValueError(text)
    return text


def _nodes(text: str, _: ReadFile, repeats: bool = False) -> tuple[int, ...]:
    if text.strip().lower() == "none":
        return ()
    parts = text.split(",") if repeats else [text]
    return tuple(number for part in parts for number in parse_node_list(part))


def _file(name: str, read_file: ReadFile) -> str:
    text = read_file(name)
    if isinstance(text, Unknown):
        raise ValueError(name)
    return text


# The option of a launch, its name for exec, and how its text is read, which may raise ValueError.
_OPTIONS: tuple[tuple[str, str, Callable[[str, ReadFile], Any]], ...] = (
    ("sglang_version", "--sglang-version", _as_written),
    ("mooncake_version", "--mooncake-version", _as_written),
    ("host_group", "--host-group", _as_written),
    ("model_config", "--model-config", _file),
    ("gpu_bytes", "--gpu-memory", lambda text, _: parse_size(text)),
    ("nic_nodes", "--nic-numa-nodes", _nodes),
    ("rank_nodes", "--rank-numa-nodes", partial(_nodes, repeats=True)),
)

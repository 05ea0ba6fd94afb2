"""``--hicache-storage-backend-extra-config``: its text or file, and what HiCache takes from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from checks.base.unknown import Unknown
from preflight.launches.source import ReadFile
from preflight.programs.sglang_arguments import Setting

# Read from the extra config by HiCache itself, whatever the storage backend.
HICACHE_KEYS = (
    "prefetch_threshold",
    "prefetch_timeout_base",
    "prefetch_timeout_per_ki_token",
    "hicache_storage_pass_prefix_keys",
    "tp_lcm_size",
    "extra_backend_tag",
    "enable_group_semantics",
)


# What cache_controller and its heirs check of them (parse_storage_backend_extra_config).
_HICACHE_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "prefetch_threshold": ((int,), "int"),
    "prefetch_timeout_base": ((int, float), "number"),
    "prefetch_timeout_per_ki_token": ((int, float), "number"),
    "prefetch_timeout_max": ((int, float), "number"),
    "hicache_storage_pass_prefix_keys": ((bool,), "bool"),
}


def read_extra_config(
    given: Setting, read_file: ReadFile
) -> tuple[dict[str, Any] | Unknown, str | None]:
    """The object that it holds, and SGLang's words where it holds none."""
    text = given.value
    if text is None or text == "":
        return {}, None
    if isinstance(text, Unknown):
        return text, None
    loads: Callable[[str], Any] = json.loads
    if text.startswith("@"):
        name, text = text[1:], read_file(text[1:])
        if isinstance(text, Unknown):
            return text, None
        loads = _loader(name)
    try:
        parsed = loads(text)
    except (ValueError, RecursionError) as error:
        return {}, f"Invalid hicache storage backend extra config JSON: {error}"
    if not isinstance(parsed, dict):
        kind = type(parsed).__name__
        return {}, f"Invalid hicache storage backend extra config: a dictionary, not {kind}"
    return parsed, None


def _loader(name: str) -> Callable[[str], Any]:
    if name.lower().endswith((".yaml", ".yml")):
        import yaml

        def load_yaml(text: str) -> Any:
            try:
                return yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise ValueError(str(error)) from None

        return load_yaml
    if name.lower().endswith(".toml"):
        try:
            import tomllib
        except ImportError:  # Python 3.10
            return _no_toml
        return tomllib.loads
    if not name.lower().endswith(".json"):
        return _no_format
    return json.loads


def _no_format(_: str) -> Any:
    raise ValueError("Unsupported config file: its name must end in .json, .toml, .yaml or .yml")


def _no_toml(_: str) -> Any:
    raise ValueError("TOML needs Python 3.11 or newer to be read here")


def misused(extra: Mapping[str, Any], typed: Collection[str]) -> str | None:
    """What HiCache itself says to one of the ``typed`` keys with a value of another type."""
    for key, (kinds, wanted) in _HICACHE_TYPES.items():
        value = extra.get(key)
        if key in extra and key in typed and not isinstance(value, kinds):
            return f"{key} must be {wanted}, got {type(value).__name__}"
    return None

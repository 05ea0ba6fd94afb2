"""Docker's own configuration (daemon.json), for every topic that asks for a part."""

from __future__ import annotations

from typing import Any

from checks.framework.root import Root
from checks.framework.unknown import Unknown

DOCKER_CONFIG = "/etc/docker/daemon.json"


def read_docker_config(root: Root) -> dict[str, Any] | Unknown:
    """Read daemon.json; {} if the file does not exist, Unknown if unreadable or no JSON object."""
    content = root.text(DOCKER_CONFIG)
    if isinstance(content, Unknown):
        return {} if content.absent else content
    import json  # few hosts have the file

    try:
        config = json.loads(content)
    except (ValueError, RecursionError) as error:
        return Unknown(f"{DOCKER_CONFIG}: {error}")
    return config if isinstance(config, dict) else Unknown(f"{DOCKER_CONFIG}: not a JSON object")


def docker_text(config: dict[str, Any] | Unknown, name: str) -> str | Unknown:
    """Return the text ``name`` of the configuration, "" if it is not set."""
    if isinstance(config, Unknown):
        return config
    value = config.get(name, "")
    return value if isinstance(value, str) else Unknown(f"{DOCKER_CONFIG}: {name}")

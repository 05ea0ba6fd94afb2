"""What ``--json`` prints where there is no answer; each command's schema has a place for it."""

from __future__ import annotations

from typing import Any

from preflight.base.program_version import program_version


def error_object(schema: str, exit_code: int, message: str) -> dict[str, Any]:
    """Return the JSON object that a failed command prints.

    schema: as ``mooncake-preflight/plan/v1``. exit_code: of the process.
    """
    return {
        "schema": schema,
        "version": program_version(),
        "status": "error",
        "exit_code": exit_code,
        "error": message,
    }

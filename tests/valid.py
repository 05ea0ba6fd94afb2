"""JSON held against a schema; ``tests/cli/test_json_contract.py`` checks the schemas themselves."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match


def valid(answer: Any, schema: Any) -> None:
    """Raise jsonschema's ValidationError where ``answer`` is not as ``schema`` says."""
    error = best_match(_validator(json.dumps(schema)).iter_errors(answer))
    if error is not None:
        raise error


@cache
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema))

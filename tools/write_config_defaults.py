#!/usr/bin/env python3
"""Write what transformers takes for KV heads and their width where a config.json leaves them out.

    .cache/sglang/environment/bin/python tools/write_config_defaults.py

Fills preflight/engines/tables/config_defaults.json from the configuration classes of the
transformers that it is run with, which SGLang reads models by. A class that derives a field from
others has no default of its own, and so no entry.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

TABLE = Path(__file__).parents[1] / "preflight" / "engines" / "tables" / "config_defaults.json"
FIELDS = ("num_key_value_heads", "head_dim")
# Two models of the class: what is the same in both is the class's own.
ONE = {"num_attention_heads": 16, "hidden_size": 16 * 64}
OTHER = {"num_attention_heads": 32, "hidden_size": 32 * 96}
NOT_SERVED = ("vision", "audio", "encoder", "talker", "code_predictor")


def defaults(kind: str) -> dict[str, int]:
    """Return the fields of one model type; {} for a class that has none or cannot be made."""
    try:
        one, other = (CONFIG_MAPPING[kind](**fields) for fields in (ONE, OTHER))
        found: dict[str, Any] = {name: getattr(one, name, None) for name in FIELDS}
        same = [name for name in FIELDS if found[name] == getattr(other, name, None)]
    except Exception:  # what a class refuses is its own affair
        return {}
    return {name: found[name] for name in same if type(found[name]) is int}


def main() -> None:
    kinds = sorted(kind for kind in CONFIG_MAPPING if not any(part in kind for part in NOT_SERVED))
    rows = [f" {json.dumps(kind)}: {json.dumps(row)}" for kind in kinds if (row := defaults(kind))]
    source = f"the configuration classes of transformers {transformers.__version__}"
    head = f'{{"source": {json.dumps(source)},\n"defaults": {{\n'
    TABLE.write_text(head + ",\n".join(rows) + "\n}}\n")


if __name__ == "__main__":
    main()

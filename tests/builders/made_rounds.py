"""A benchmark's rounds as the requests of a trace."""

from __future__ import annotations

import random
from collections.abc import Iterator

from preflight.capacity.workload import MultiTurnWorkload
from preflight.traces.formats import Request


def rounds_requests(found: MultiTurnWorkload, page_tokens: int, seed: int) -> Iterator[Request]:
    """In each round all clients ask once, with all that was said, in an order of its own."""
    rng = random.Random(seed)
    order, asked = list(range(found.clients)), 0
    tokens = [0] * found.clients
    for turn in range(found.rounds):
        rng.shuffle(order)
        for client in order:
            tokens[client] += found.next_tokens if turn else found.first_tokens
            blocks = [(client + 1) << 32 | at for at in range(tokens[client] // page_tokens)]
            yield Request(blocks, tokens[client], found.output_tokens, float(asked), client + 1)
            tokens[client] += found.output_tokens
            asked += 1

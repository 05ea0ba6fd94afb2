"""Many nodes: each judged where it is, and what only their reports together show.

Rooms, each imports only those above it:

- ``base``: what all rooms share; touches nothing.
- ``reports``: what check's JSON says on each node, as rows; reads files.
- ``rails``: which NIC reaches which, by addresses and routes; touches nothing.
- ``merge``: the rows held against each other, and the one answer; writes files that it is told to.
- ``remote``: nodes asked over ssh; starts it.
- ``over_ssh``: each node judged, what runs on each, and how fast memory moves between each two;
  asks them by ``remote``.
"""

"""Many nodes: each judged where it is, and what only their reports together show.

Rooms, each imports only those above it:

- ``base``: what all rooms share; touches nothing.
- ``node``: the report of one node; reads the host.
- ``remote``: the launch and this program on their way to a node, and what comes back; opens files
  of the launch.
- ``reports``: files of reports to rows; reads files.
- ``rails``: which NIC reaches which, by addresses and routes; touches nothing.
- ``merge``: the rows held against each other, and the one answer; writes files that it is told to.
- ``ssh``, ``slurm``, ``kubernetes``: each asks the nodes by its program.
- ``pairs``: nodes that write to each other over RDMA; opens devices and sockets.
"""

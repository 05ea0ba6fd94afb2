"""The launch and this program on their way to a node, and what comes back of it.

Whoever asks (ssh, Slurm, Kubernetes) sends the same and reads it the same. Opens files of the
launch here; what it makes for a node reads and writes there nothing but a folder of its own.
"""

"""What runs, held against what it was predicted to take: the answer of ``observe``.

``checks.running_processes`` reads /proc. Programs that run here are asked for their metrics, at the
address that their command lines name.
"""

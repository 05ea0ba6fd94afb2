"""What runs, held against what it was predicted to take: the answer of ``observe``.

``checks.running`` reads /proc; of what runs here the metrics are asked, at the address that its own
command line names.
"""

"""The report of one node: what ``fleet node`` prints, wherever it runs. Reads the host.

``records`` is the contract between whoever asks nodes and who holds their reports together.
"""

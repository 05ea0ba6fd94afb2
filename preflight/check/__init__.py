"""The answer of check: rows, verdict, text, JSON, JUnit and one-line protocols.

It judges what it is handed, and reads no host.
"""

"""The answer of check: rows, verdict, text, JSON, JUnit and one-line protocols.

It judges what it is handed, and reads no host. ``exec`` does so in a child, which can be left
behind, and becomes the server.
"""

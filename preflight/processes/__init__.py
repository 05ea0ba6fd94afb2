"""The processes that a launch's commands become, with their services, ports and storage.

It reads files through the reader that it is handed.
"""

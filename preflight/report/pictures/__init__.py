"""Memory, devices and the cache as pictures, for a terminal and for check --format html.

Pure: it returns text.
"""

"""Which Mooncake and SGLang are installed, and the libraries that they lack.

It reads folders and ELF headers, and imports neither.
"""

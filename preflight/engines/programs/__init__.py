"""What each program understands of its words, variables and files: SGLang, the store, the master.

It reads files through the reader that it is handed.
"""

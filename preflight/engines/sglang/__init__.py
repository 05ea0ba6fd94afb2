"""The host pools of an SGLang server, from its model and flags.

It reads the model's configuration through the reader that it is handed.
"""

"""Programs beside SGLang that take memory through Mooncake, or pin it beside it: vLLM, LMCache
and Dynamo.

Each reader makes a ``Consumer`` of a command's words, variables and files; it reads no host.
"""

"""The facts and formulas of each engine: SGLang, Mooncake, vLLM, LMCache, Dynamo. Nothing here
reads a host.
"""

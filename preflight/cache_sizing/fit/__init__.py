"""The largest launch that a host can hold, and what to change for it.

It solves over facts that were read, and changes nothing.
"""

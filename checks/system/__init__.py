"""The machine as a whole: kernel, distribution, container, capabilities.

Facts and calls read /proc and /sys; the checks are pure.
"""

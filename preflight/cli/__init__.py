"""The commands, whose functions' signatures are their requests; most have a file each.

It reads words and prints answers; all else is asked of other packages.
"""

"""What the next boot makes of the host: its kernel, its command line, its modules, its upgrades.

Facts read /boot, /lib/modules, modprobe.d and apt's settings; the checks are pure.
"""

"""HugeTLB pools, and whether a launch's pages fit them now and after a reboot.

Facts read sysfs, cgroups and boot files; the fit and the checks are pure.
"""

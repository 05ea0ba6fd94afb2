"""GPUs, NICs and bridges on the PCI bus, and how far two of them are apart.

It reads sysfs and configuration space, and judges nothing.
"""

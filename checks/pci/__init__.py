"""GPUs, NICs and bridges on the PCI bus, and how far apart two are; nothing is judged."""

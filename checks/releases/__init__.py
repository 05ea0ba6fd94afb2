"""Every fact of every Mooncake and SGLang release that is known, a row each; nothing is read."""

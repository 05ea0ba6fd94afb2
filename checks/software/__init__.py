"""Which Mooncake and SGLang are installed, and the libraries that they lack; imports neither."""

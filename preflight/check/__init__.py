"""The answer of check: rows, verdict, and its forms. It reads no host; ``exec``'s child does."""

"""Parts of ``tools/compare_answers.py``."""

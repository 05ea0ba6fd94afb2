"""One launch judged on one host: findings, the verdict, and the catalogue of all that can be found."""

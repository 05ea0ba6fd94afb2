"""One launch judged on one host: findings, verdict, and the catalogue of all that can be found."""

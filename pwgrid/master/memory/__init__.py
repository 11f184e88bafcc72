"""How much memory workers and the host have, and what follows from it."""

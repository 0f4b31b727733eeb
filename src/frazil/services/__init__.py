"""Table services: what keeps a table small and fast beside its writers. Each has a plan that can be shown first."""

"""Products with implicit weights of features: `reference` anywhere, `cpu` in its caches."""

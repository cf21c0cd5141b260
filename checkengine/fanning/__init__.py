"""Many bundles at once: a local pool, and what to hand to a scheduler that is there already."""

"""Many models of one config, trained under different seeds: what they say about the same rows."""

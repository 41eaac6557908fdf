"""Studies: many runs or many models of one config, made side by side and judged together."""

"""Config: one typed description of an experiment, and how it is read."""

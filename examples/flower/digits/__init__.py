"""A plain Flower app on digits."""

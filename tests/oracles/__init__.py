"""Plain twins of what unfed computes, and the tests that hold unfed to them."""

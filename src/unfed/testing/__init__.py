"""For method authors: the conformance kit behind `unfed methods check`."""

"""Data sets on disk and from the network: layouts, the catalogue, downloads with checksums, where data lies."""

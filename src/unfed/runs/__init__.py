"""Runs: a config becomes a world, jobs work in a folder that survives a crash, requests are served from a queue."""

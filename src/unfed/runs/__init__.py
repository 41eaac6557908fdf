"""Runs: a config becomes a world, jobs work in a folder, requests are served from a queue.

The folder survives a crash.
"""

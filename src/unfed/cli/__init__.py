"""The command line. `main` is where it begins, and lists the commands.

A module with commands imports nothing heavy at its top, so that every `--help` answers at once: imports stand inside
the commands. Such a module does without `from __future__ import annotations`, because Typer would evaluate every
annotation several times.
"""

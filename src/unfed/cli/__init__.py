"""The command line; `main` is where it begins, and lists the commands.

A module with commands imports nothing heavy at its top: what a command works with is imported inside it, so that every
`--help` answers at once. Such a module does without `from __future__ import annotations`: Typer would evaluate every
annotation of every command several times.
"""

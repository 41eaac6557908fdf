"""Imported by the process of which others are copies (`grid.READY`): these draw no figures."""

from worded import INSTEAD

for (owner, name), value in INSTEAD.items():
    setattr(owner, name, value)

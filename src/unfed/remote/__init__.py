"""Clients elsewhere, whatever carries the messages: the server asks, those who hold the rows answer.

    server   world ─► engine, evaluator ─► Messenger ─► Transport.send ═╗
    client   answered(read, node config)  ◄═════════════════════════════╝   its rows, its policy, its answer

A transport is two methods, `nodes()` and `send(asks, timeout)` (`transport.py`, docs/how-to/transport.md). Two are
there: `unfed.flower` carries questions over Flower's grid, `sockets.py` to plain processes of this machine. What asks
and what answers knows neither.
"""

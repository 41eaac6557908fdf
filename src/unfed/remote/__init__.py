"""Clients elsewhere, whatever carries the messages: the server asks, those who hold the rows answer.

    server   world ─► engine, evaluator ─► Messenger ─► Transport.send ═╗
    client   answered(read, node config)  ◄═════════════════════════════╝   its rows, its policy, its answer

A transport is two methods, `nodes()` and `send(asks, timeout)` (`transport.py`, examples/transport/direct.py).
`unfed.flower` carries questions over Flower's grid, `unfed.nvflare` as NVFlare's tasks; `codec.py` turns them into
bytes for a transport of your own. The code that asks and the code that answers know neither.
"""

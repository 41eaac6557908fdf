"""Flower apps in the shape of Flower's quickstarts, on scikit-learn's digits; `flwr run` takes them as they are here.

Of unfed a client app has one word, `introduce` (that of PyTorch a second, for classes); the server app trains, and with
`forget` or `classes` in its run config it forgets.
Every client notes in a file what it was asked for, so that a test can count.
"""

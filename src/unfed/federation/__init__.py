"""The server: Algorithm 1 in its general form, averaging, what is recorded on the way and what it costs."""

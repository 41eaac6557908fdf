"""The server: Algorithm 1 in its general form, averaging, histories and costs."""

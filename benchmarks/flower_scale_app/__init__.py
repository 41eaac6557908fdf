"""A Flower app whose clients do next to nothing, so that what the server does can be measured."""

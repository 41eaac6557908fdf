"""Prefetching: the next batch is made while the device works on this one.

A user's data set reads files and transforms images on the host, one sample after another. One thread does that ahead of
time, so that the device does not wait for it. The order of the reads is the order of the batches, and only this thread
reads, so a data set that draws random numbers draws the same ones.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """The same items in the same order, each made while the one before it is in use.

    An error comes where its item would have come. Closing waits for the item in the making: nothing is left running.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="unfed-data") as thread:
        following = thread.submit(next, items, None)
        while (item := following.result()) is not None:
            following = thread.submit(next, items, None)
            yield item

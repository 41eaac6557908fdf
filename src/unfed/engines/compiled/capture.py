"""From a traced step to what is replayed: compiled, tried, and on CUDA captured in a graph.

    module ─► backend ─► three runs ─► CUDA graph          the usual way
              │ fails ─► the traced operations ─► CUDA graph
                                                  │ fails ─► the traced operations one by one

A step that cannot be compiled still gives the same numbers, only slower; which of the two it was is said once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from unfed.errors import UnfedError, UnfedWarning

Backend = Callable[[Any, Sequence[Tensor]], Callable[..., Any]]


class Untraceable(Exception):
    """What a step does cannot be written down as a list of operations."""


def as_traced(module: Any, inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """No compiler: the traced operations one by one."""
    run: Callable[..., Any] = module
    return run


def ready(module: Any, inputs: Sequence[Tensor], backend: Backend, said: set[str]) -> Callable[[], object]:
    """What a replay calls; trying it writes into the inputs. `said` holds the warnings that were given."""
    run = _compiled(module, inputs, backend, said)
    if not inputs[0].is_cuda:
        return lambda: run(*inputs)
    try:
        return _captured(run, inputs)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        warn(said, f"a training step cannot be captured in a CUDA graph ({reason(error)}), so it runs without one")
        return lambda: run(*inputs)


def _compiled(module: Any, inputs: Sequence[Tensor], backend: Backend, said: set[str]) -> Callable[..., Any]:
    """The step as the backend makes it, if that runs; a compiler does its work when it is first called."""
    if backend is as_traced:
        return as_traced(module, inputs)
    try:
        run = backend(module, inputs)
        _warmed(run, inputs)
    except (UnfedError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        warn(said, f"a training step cannot be compiled ({reason(error)}), so it runs uncompiled and slower")
        return as_traced(module, inputs)
    return run


def _captured(run: Callable[..., Any], inputs: Sequence[Tensor]) -> Callable[[], object]:
    """The graph; the libraries that a step calls want to be called before they are captured."""
    _warmed(run, inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=_pool(inputs[0].device)):
        run(*inputs)
    return graph.replay


def _warmed(run: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
    """Three runs, on a stream of their own as capturing asks; one where nothing is captured."""
    if not inputs[0].is_cuda:
        run(*inputs)
        return
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run(*inputs)
    torch.cuda.current_stream().wait_stream(stream)


@cache
def _pool(device: torch.device) -> Any:
    """The memory in which all recorded steps compute.

    What outlives a replay lies in a deck's buffers, outside of it, and no two replays run at once: so they can share
    it, and a large model's activations are held once.
    """
    return torch.cuda.graph_pool_handle()


def reason(error: Exception) -> str:
    """The first line of an error, short enough to stand in a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def warn(said: set[str], sentence: str) -> None:
    """Say it once."""
    if sentence not in said:
        said.add(sentence)
        warnings.warn(f"{sentence}; the results are the same", UnfedWarning, stacklevel=2)

"""An optional part: attention over few tokens, and GELU, in half precision.

It serves vision transformers.

A recorded step meets it in `short_attention` and `rewrite` and nowhere else: without them it computes the same, slower
(`docs/performance.md` says by how much).
"""

from __future__ import annotations

from torch.fx import GraphModule

from unfed.engines.compiled.transformer import attention, gelu
from unfed.engines.compiled.transformer.attention import short_attention

__all__ = ["rewrite", "short_attention"]


def rewrite(module: GraphModule) -> None:
    """Replace the GELUs of a traced step, and what is left to add up behind its attentions."""
    gelu.rewrite(module)
    attention.rewrite(module)

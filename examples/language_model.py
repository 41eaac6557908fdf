"""A language model forgets a page: trained here on Python's own documentation. A minute on a laptop.

python examples/language_model.py

`language_model.ipynb` holds the same cells with what they gave.
"""

# %% [markdown]
# # A language model
# A small transformer learns three pages of Python's documentation by heart, letter by letter. Then one page must leave.

# %%
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unfed
from unfed.measures.text import continued, score_texts

LENGTH = 24


class Speaker(nn.Module):
    """Letters in, the next letter's logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(128, 64), nn.Embedding(LENGTH, 64)
        self.block = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(64, 128)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids) + self.place(torch.arange(input_ids.shape[1]))
        ahead = nn.Transformer.generate_square_subsequent_mask(input_ids.shape[1])
        return torch.as_tensor(self.head(self.block(x, src_mask=ahead, is_causal=True)))


def pieces(page: str) -> Tensor:
    """A page in pieces of equal length."""
    letters = torch.tensor([min(ord(letter), 127) for letter in " ".join(topics[page].split())])
    return letters[: len(letters) // LENGTH * LENGTH].view(-1, LENGTH)


leaves, stays = pieces("debugger")[:20], torch.cat([pieces("import")[:30], pieces("types")[:30]])
train, test = torch.cat([leaves, stays]), pieces("debugger")[20:60]

# %% [markdown]
# ## Your own training


# %%
def learned(texts: Tensor) -> Speaker:
    torch.manual_seed(0)
    speaker = Speaker()
    optimiser = torch.optim.AdamW(speaker.parameters(), 3e-3, weight_decay=0.0)
    for _ in range(150):
        for some in texts[torch.randperm(len(texts))].split(40):
            optimiser.zero_grad()
            F.cross_entropy(speaker(some)[:, :-1].flatten(0, 1), some[:, 1:].flatten()).backward()
            optimiser.step()
    return speaker


model = learned(train)
print(f"perplexity of the page that leaves: {score_texts(model, leaves, 8).perplexity:.1f}")

# %% [markdown]
# ## What it can recite
# It is given the first eight letters of each piece. How many of the other sixteen does it write as they stand?


# %%
def recite(speaker: nn.Module) -> None:
    print(f"{score_texts(speaker, leaves, 8).verbatim:.0f} % of the pieces are recited to the end")
    print("letters right in the first ten pieces:", continued(speaker, leaves[:10], 8).tolist())


recite(model)

# %% [markdown]
# ## Forgetting
# Labels that are the token ids say that this is a language model. Forget is the share of pieces known nearly by heart.
# Retrain never saw the page.

# %%
result = unfed.unlearn(
    model,
    data={"input_ids": train, "labels": train},
    forget=torch.arange(len(leaves)),
    test={"input_ids": test, "labels": test},
    method="not",
    lr=3e-3,
    decay=0.0,
    optimiser="adamw",
    retrain=learned(stays),
    checkpoint="forgetting",
)
print(result)

# %%
recite(result.model)

# %%
unfed.plot("forgetting", "forget")

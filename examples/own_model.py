"""Your own model: a small transformer, trained by a loop of your own, forgets a class. Seconds on a laptop.

python examples/own_model.py

`own_model.ipynb` holds the same cells with what they gave.
"""

# %% [markdown]
# # Your own model
# Any `nn.Module` that returns logits will do, also in a dictionary, as here. This is a small transformer that reads an
# image line by line.

# %%
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import unfed


class Reader(nn.Module):
    """Eight lines of eight pixels are eight tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.place = nn.Parameter(0.02 * torch.randn(8, 32))
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, lines: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(self.block(self.embed(lines) + self.place).mean(dim=1))}


# %% [markdown]
# ## Your own training
# This cell does not use `unfed`.

# %%
torch.manual_seed(0)
digits = load_digits()
order = torch.randperm(len(digits.target))
x, y = torch.tensor(digits.images, dtype=torch.float32)[order] / 16, torch.tensor(digits.target)[order]
train, test = (x[:1200], y[:1200]), (x[1200:], y[1200:])

model = Reader()
optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(15):
    for rows in torch.randperm(1200).split(64):
        optimiser.zero_grad()
        F.cross_entropy(model(train[0][rows])["logits"], train[1][rows]).backward()
        optimiser.step()
right = (model(test[0])["logits"].argmax(1) == test[1]).float().mean()
print(f"right on {100 * right:.1f} % of the test images")

# %% [markdown]
# ## Which layer?
# NoT negates the first layer by default. `dry_run` says which tensor that is, and changes nothing.

# %%
for choice in unfed.negate(model, dry_run=True):
    print(choice.name, "·", choice.why)

# %% [markdown]
# ## Forgetting
# The writer of the threes wants them out. Name rows by number; everything else stays. `retrain=15` also trains a model
# that never saw a three, for comparison.

# %%
threes = (train[1] == 3).nonzero().flatten()
kept = test[1] != 3  # threes are no longer asked for
result = unfed.unlearn(
    model,
    data=train,
    forget=threes,
    test=(test[0][kept], test[1][kept]),
    method="not",
    epochs=10,
    lr=3e-3,
    optimiser="adamw",
    factory=Reader,
    retrain=15,
)
print(result)

# %% [markdown]
# Your model is unchanged. The new one is `result.model`, a module of the same class.

# %%
torch.save(result.model.state_dict(), "without-threes.pt")
answers = result.model(x[y == 3])["logits"].argmax(1)
print(f"{(answers == 3).sum()} of {len(answers)} threes are still read as threes")
result.report("own-model.html")

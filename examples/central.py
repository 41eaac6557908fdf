"""One model, one data set: train as you always do, then make the model forget 60 images. Under a minute on a laptop.

python examples/central.py
"""

# %% [markdown]
# # Unlearning without a federation
# A small network learns to read digits in a loop of your own. Sixty of its training images must leave.

# %%
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import unfed

torch.manual_seed(0)
digits = load_digits()
order = torch.randperm(len(digits.target))
x = torch.tensor(digits.images, dtype=torch.float32)[order, None] / 16
y = torch.tensor(digits.target)[order]
train, test = (x[:600], y[:600]), (x[600:], y[600:])

# %% [markdown]
# ## Your own training
# This cell does not use `unfed`. Any `nn.Module` that returns logits will do.


# %%
def build() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


model = build()
optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for _ in range(20):
    for rows in torch.randperm(600).split(32):
        optimiser.zero_grad()
        F.cross_entropy(model(train[0][rows]), train[1][rows]).backward()
        optimiser.step()

# %% [markdown]
# ## Forgetting
# The first 60 images leave, the other 540 stay. `retrain=20` also trains a model that never saw the 60, for comparison.

# %%
forget, retain = (train[0][:60], train[1][:60]), (train[0][60:], train[1][60:])
result = unfed.unlearn(
    model,
    retain=retain,
    forget=forget,
    test=test,
    method="not",
    epochs=10,
    lr=0.03,
    batch=32,
    factory=build,
    retrain=20,
)
print(result)

# %% [markdown]
# Your model is unchanged; `result.model` is the new one. `result.before` and `result.after` hold every number.

# %%
result.report("central-report.html")
print(f"right on {result.after['forget']:.1f} % of the forgotten images; MIA {result.after['mia']:.1f} %")

# %% [markdown]
# ## Other methods
# The same call with another name. SSD does not train, so it is the cheapest. The numbers show whether it forgets.

# %%
for method, options in {"ft": {}, "salun": {}, "ssd": {"alpha": 10.0, "lam": 1.0}}.items():
    other = unfed.unlearn(model, retain=retain, forget=forget, test=test, method=method, epochs=10, batch=32, **options)
    print(f"\n{other}")

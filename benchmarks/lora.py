"""A federation fine-tunes adapters of a language model, and a speaker leaves. One row of CSV per model.

    python benchmarks/lora.py -o build/lora                                    minutes on one core
    python benchmarks/lora.py --size large --device cuda -o build/lora-large   113 million parameters, one GPU

The clients are pages of Python's own documentation (`pydoc_data.topics`, PSF licence), cut into texts of equal length;
tokens are letters. The base is trained here, first, on the docstrings of the standard library: it never saw a page.
Only the adapters are trained, averaged, sent and saved. Client 0, the page with most texts, leaves.
"""

from __future__ import annotations

import argparse
import ast
import csv
import math
import pydoc_data.topics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import unfed
from unfed.measures.text import relearning_steps, score_texts, text_membership
from unfed.model.language import AS_WRITTEN, plain, text_rows, with_adapters
from unfed.model.params import load_into

PAGES = ("debugger", "formatstrings", "types", "string-methods", "typesmapping", "execmodel")


@dataclass(frozen=True)
class Size:
    """How large everything is."""

    width: int
    depth: int
    heads: int
    length: int
    """Letters of a text."""
    texts: int
    """Texts of a client; the one that leaves has a quarter more."""
    steps: int
    """Training of the base."""
    rank: int
    rounds: int
    epochs: int
    lr: float


SIZES = {
    "tiny": Size(16, 1, 2, 16, 8, 3, 2, 2, 1, 3e-3),  # for tests
    "small": Size(64, 2, 4, 48, 20, 500, 16, 40, 4, 5e-3),
    "large": Size(768, 16, 12, 128, 80, 2000, 16, 30, 2, 1e-3),
}


# --- the model --------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """x + attention(LN(x)), then x + MLP(LN(x))."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attend(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        x = x + self.mix(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        found: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return found


class LanguageModel(nn.Module):
    """Letters in, the next letter's logits out."""

    head_name = "head"

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(128, size.width), nn.Embedding(size.length, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.depth))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, 128)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def adapted(size: str, base: str) -> nn.Module:
    """The model factory: the base from its file, with fresh adapters."""
    model = LanguageModel(SIZES[size])
    model.load_state_dict(load_file(base))
    return text_rows(with_adapters(model, ["blocks.*"], SIZES[size].rank))


# --- the texts --------------------------------------------------------------------------------------------------------


def cut(text: str, length: int) -> Tensor:
    """A text as letters, [pieces, length]."""
    letters = torch.tensor([min(ord(letter), 127) for letter in " ".join(text.split())])
    return letters[: len(letters) // length * length].view(-1, length)


def speakers(root: Path) -> Any:
    """The data factory: texts with their owners, and as many held-out texts of the same pages.

    `root` is a folder named after the size.
    """
    size, train, test, owners = SIZES[root.name], [], [], []
    for number, page in enumerate(PAGES):
        pieces = cut(pydoc_data.topics.topics[page], size.length)
        pieces = pieces[torch.randperm(len(pieces), generator=torch.Generator().manual_seed(number))]
        many = size.texts * 5 // 4 if number == 0 else size.texts
        train.append(pieces[:many])
        test.append(pieces[many : 2 * many])
        owners += [page] * len(train[-1])
    x, held_out = torch.cat(train), torch.cat(test)
    return (x, _labels(x), owners), (held_out, _labels(held_out))


def _labels(texts: Tensor) -> Tensor:
    return torch.full((len(texts),), AS_WRITTEN)


def docstrings(length: int, megabytes: float) -> Tensor:
    """Docstrings of the standard library, cut into texts."""
    found, seen = [], 0
    for file in sorted(Path(ast.__file__).parent.glob("*.py")):
        if seen > megabytes * 1e6:
            break
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                found.append(ast.get_docstring(node) or "")
                seen += len(found[-1])
    return cut("\n".join(found), length)


def trained_base(name: str, file: Path, device: str) -> None:
    """Train the base on public text, once."""
    size = SIZES[name]
    texts = docstrings(size.length, 0.01 if name == "tiny" else 3).to(device)
    torch.manual_seed(0)
    model = LanguageModel(size).to(device)
    rule = torch.optim.AdamW(model.parameters(), 3e-3 * 64 / size.width)
    for step in range(size.steps):
        some = texts[torch.randint(len(texts), (48,), device=device)]
        loss = F.cross_entropy(model(some)[:, :-1].flatten(0, 1), some[:, 1:].flatten())
        rule.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rule.step()
        if step % 100 == 99:
            print(f"base: step {step + 1}, loss {float(loss.detach()):.2f}", file=sys.stderr, flush=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: value.cpu() for key, value in model.state_dict().items()}, file)


# --- the study --------------------------------------------------------------------------------------------------------


ADAMW = {"optimiser": "adamw", "decay": 0.0}


def config(name: str, base: Path, seeds: list[int], device: str) -> unfed.Config:
    size = SIZES[name]
    return unfed.Config.parse(
        {
            "name": f"lora-{name}",
            "seed": seeds,
            "device": device,
            "data": {"name": "lora:speakers", "root": str(base.parent / name)},
            "partition": {"clients": len(PAGES), "scheme": "natural", "validation": 0.0},
            "model": {"name": "lora:adapted", "options": {"size": name, "base": str(base)}},
            "training": {"rounds": size.rounds, "epochs": size.epochs, "batch": 10, "lr": size.lr, **ADAMW},
            "unlearning": {"rounds": max(1, size.rounds // 4)},
            "request": {"id": "speaker-leaves", "clients": ["0"]},
            "methods": {
                "run": ["retrain", "ft", "not", "not-all"],
                "not": {"layers": ["blocks.0.*lora_A"], "unlearning": {"lr": size.lr}},
                "not-all": {"use": "not", "layers": ["*lora_A"], "unlearning": {"lr": size.lr}},
                "ft": {"unlearning": {"lr": size.lr}},
            },
            "evaluation": {"every": size.rounds},
            "engine": {"name": "sequential"},
        }
    )  # fmt: skip


def rows(run: unfed.Run, seed: int) -> list[dict[str, Any]]:
    """What each model of a run knows of the texts."""
    world = run.world(seed)
    size = SIZES[run.config.name.removeprefix("lora-")]
    source, many = world.dataset.train, [len(client.rows) for client in world.clients]
    x, _ = source.fetch(torch.arange(len(source)), None)
    own = {client.name: x[client.rows] for client in world.clients}
    gone, held = own["0"], world.dataset.test.fetch(torch.arange(len(world.dataset.test)), None)[0]
    like = held[: many[0]]  # held-out texts of the page that leaves
    kept = torch.cat([texts for name, texts in own.items() if name != "0"])
    model, lines, found = plain(world.template.module), run.lines(), []
    before = math.nan
    for method in ("before", *run.config.methods.run):
        params = run.model(seed, "speaker-leaves", "train" if method == "before" else method)
        load_into(model, params)
        line = [one for one in lines if one["method"] == method and one["seed"] == seed][-1]
        row: dict[str, Any] = {"seed": seed, "method": method, "round": line["round"]}
        row["wire_bytes"] = line.get("wire_bytes", "")
        for what, texts in (("forgotten", gone), ("retained", kept), ("held_out", held)):
            scores = asdict(score_texts(model, texts, size.length // 3))
            row |= {f"{what}_{name}": value for name, value in scores.items()}
        row |= {f"membership_{name}": value for name, value in asdict(text_membership(model, gone, like)).items()}
        before = row["forgotten_loss"] if method == "before" else before
        row["relearning_steps"] = relearning_steps(model, gone, before * 1.1, size.lr)
        found.append(row)
    return found


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args(words)
    base = given.out / f"base-{given.size}.safetensors"
    if not base.exists():
        trained_base(given.size, base, given.device)
    with unfed.allow_code():
        run = unfed.Run.create(config(given.size, base, given.seeds, given.device), given.out / "run")
        run.execute()
        table = [row for seed in given.seeds for row in rows(run, seed)]
    with open(given.out / "lora.csv", "w", encoding="utf-8", newline="") as file:
        out = csv.DictWriter(file, table[0], lineterminator="\n")
        out.writeheader()
        out.writerows({key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()} for row in table)
    whole = sum(4 * p.numel() for p in LanguageModel(SIZES[given.size]).parameters())
    sent = 4 * run.world(given.seeds[0]).template.parameters
    print(f"the whole model: {whole:,} bytes; its adapters, which travel: {sent:,}")


if __name__ == "__main__":
    main()

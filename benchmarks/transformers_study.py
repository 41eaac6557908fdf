"""Which layers and which method make a small transformer forget? One line of JSON per cell.

    .venv-zoo/bin/python benchmarks/transformers_study.py -o build/transformers.jsonl
    .venv-zoo/bin/python benchmarks/transformers_study.py --table build/transformers.jsonl > benchmarks/records/….csv

Three networks of transformers, built from a config and trained here until they know their training rows by heart:

    BERT    240 handwritten digits, as sixteen words each; thirty rows have wrong labels and leave
    ViT     the same digits as images
    GPT-2   120 pieces of 24 letters of Python's own documentation (PSF licence); the thirty of one page leave

Forget is the share of the leaving rows that the network reads as it was taught; for GPT-2 the share that it knows by
heart (geometric mean of the letters' probabilities above one half). Retrain never saw these rows. Every cell gets the
same epochs. The rate is the one of two with the smaller gap to Retrain at the first seed.

    flip      Forget after the same tensors were negated once more (NoT only)
    relearn   Forget of the other twenty rows after ten epochs on ten leaving rows and forty others
"""

# ruff: noqa: E402  (torchvision must be hidden before transformers is imported)
from __future__ import annotations

import argparse
import copy
import csv
import json
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.modules["torchvision"] = None  # type: ignore[assignment]  # PyPI's wheel wants CUDA; nothing here uses it

import pydoc_data.topics

import torch
import torch.nn.functional as F
import transformers as t
from torch import Tensor, nn

import unfed
from unfed.data import load
from unfed.model.language import text_rows

ROWS = {"BERT": 240, "GPT-2": 120, "ViT": 240}
RECOVERY = {"BERT": 12, "GPT-2": 40, "ViT": 12}  # epochs; a third to two thirds of what training takes
LEAVING, TEST, LETTERS, EPOCHS, BATCH = 30, 200, 24, 200, 40
RATES = (1e-3, 3e-3)
TRAINING = {"BERT": 1e-3, "GPT-2": 3e-3, "ViT": 1e-3}
WORDS = {"vocab_size": 128, "num_labels": 10, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
START = {"initializer_range": 0.1}  # at the usual 0.02 so small a network learns nothing for long
SIZE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
PAGES = ("types", "debugger", "formatstrings", "string-methods", "typesseq", "execmodel")  # the first one leaves

FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "BERT": lambda: t.BertForSequenceClassification(
        t.BertConfig(**SIZE, **STILL, **START, **WORDS, max_position_embeddings=16)
    ),
    "GPT-2": lambda: t.GPT2LMHeadModel(
        t.GPT2Config(n_embd=64, n_layer=2, n_head=4, n_inner=128, n_positions=LETTERS,
                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **WORDS, **START)
    ),
    "ViT": lambda: t.ViTForImageClassification(
        t.ViTConfig(**SIZE, **STILL, **START, image_size=8, patch_size=2, num_channels=1, num_labels=10)
    ),
}  # fmt: skip
ATTENTION = {"BERT": ["*.value.weight"], "GPT-2": ["*.c_attn.weight"], "ViT": ["*.v_proj.weight"]}
BLOCK = {
    "BERT": "bert.encoder.layer.{}.*.weight", "GPT-2": "transformer.h.{}.*.weight", "ViT": "vit.layers.{}.*.weight"
}  # fmt: skip


def rows_of(family: str, seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Training rows, of which the first thirty leave, and test rows; as dicts with labels."""
    draw = torch.Generator().manual_seed(seed)
    if family == "GPT-2":
        pieces = {page: _pieces(pydoc_data.topics.topics[page], draw) for page in PAGES}
        stay = torch.cat([pieces[page] for page in PAGES[1:]])
        stay = stay[torch.randperm(len(stay), generator=draw)]
        train = torch.cat([pieces[PAGES[0]][:LEAVING], stay[: ROWS[family] - LEAVING]])
        test = torch.cat([pieces[PAGES[0]][LEAVING : 2 * LEAVING], stay[ROWS[family] - LEAVING :][: TEST - LEAVING]])
        test = test[~(test[:, None] == train[:LEAVING]).all(-1).any(1)]  # a sentence may stand on two pages
        return {"input_ids": train, "labels": train}, {"input_ids": test, "labels": test}
    found, parts = load("digits", seed=seed), []
    for source, rows in ((found.train, ROWS[family]), (found.test, TEST)):
        x, y = source.fetch(torch.arange(rows))
        grey = 3 + ((F.avg_pool2d(x, 2).flatten(1) + 0.81) * 2).round().clamp(0, 6).long()
        parts.append(({"pixel_values": x} if family == "ViT" else {"input_ids": grey}) | {"labels": y.clone()})
    wrong = torch.randint(1, 10, (LEAVING,), generator=draw)
    parts[0]["labels"][:LEAVING] = (parts[0]["labels"][:LEAVING] + wrong) % 10
    return parts[0], parts[1]


def _pieces(text: str, draw: torch.Generator) -> Tensor:
    """A page cut into pieces of equal length, in a drawn order."""
    letters = torch.tensor([min(ord(letter), 127) for letter in " ".join(text.split())])
    cut = letters[: len(letters) // LETTERS * LETTERS].view(-1, LETTERS)
    return cut[torch.randperm(len(cut), generator=draw)]


def losses(model: nn.Module, rows: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """One loss per row, and whether it is read as it was taught."""
    inputs = {name: value for name, value in rows.items() if name != "labels"}
    texts = rows["labels"].ndim == 2
    logits = text_rows(model)(**inputs) if texts else model(**inputs).logits
    y = torch.zeros(len(logits), dtype=torch.int64) if texts else rows["labels"]
    return F.cross_entropy(logits, y, reduction="none"), logits.argmax(1) == y


def fitted(model: nn.Module, rows: dict[str, Tensor], epochs: int, lr: float) -> Iterator[nn.Module]:
    """The same network after every epoch of AdamW without decay, in plain PyTorch."""
    rule = torch.optim.AdamW(model.parameters(), lr, weight_decay=0.0)
    for _ in range(epochs):
        model.train()
        for some in torch.randperm(len(rows["labels"])).split(BATCH):
            rule.zero_grad()
            losses(model, {name: value[some] for name, value in rows.items()})[0].mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            rule.step()
        yield model.eval()


def trained(family: str, rows: dict[str, Tensor], seed: int) -> nn.Module:
    """A network that was trained until it knew every row by heart in two epochs running."""
    torch.manual_seed(seed)
    known = 0
    for model in fitted(FAMILIES[family](), rows, EPOCHS, TRAINING[family]):
        known = known + 1 if seen(model, rows) == 100 else 0
        if known == 2:
            return model
    raise SystemExit(f"{family}, seed {seed}: not all training rows are known by heart after {EPOCHS} epochs.")


@torch.no_grad()
def seen(model: nn.Module, rows: dict[str, Tensor]) -> float:
    return 100 * float(losses(model, rows)[1].double().mean())


def part(rows: dict[str, Tensor], begin: int, end: int | None = None) -> dict[str, Tensor]:
    return {name: value[begin:end] for name, value in rows.items()}


def relearned(model: nn.Module, rows: dict[str, Tensor]) -> float:
    some = {name: torch.cat([value[:10], value[LEAVING : LEAVING + 40]]) for name, value in rows.items()}
    torch.manual_seed(0)
    *_, last = fitted(copy.deepcopy(model), some, 10, 1e-3)
    return seen(last, part(rows, 10, LEAVING))


def cells(family: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, what it changes, and its arguments."""
    yield "not", "first", {"layers": ["first"]}
    yield "not", "first block", {"layers": [BLOCK[family].format(0)]}
    yield "not", "attention", {"layers": ATTENTION[family]}
    yield "not", "last block", {"layers": [BLOCK[family].format(1)]}
    yield "not", "head", {"layers": ["lm_head" if family == "GPT-2" else "classifier"]}
    yield "not", "hidden", {"layers": ["hidden"]}
    for method in ("ft", "sealed", "randl"):
        yield method, "", {}


def study(families: list[str], seeds: list[int], file: Path) -> None:
    gaps: dict[tuple[str, str, str], dict[tuple[int, float], float]] = defaultdict(dict)
    for line in map(json.loads, file.read_text().splitlines() if file.exists() else ()):
        gaps[line["family"], line["method"], line["layers"]][line["seed"], line["lr"]] = line["gap"]
    for seed in seeds:
        for family in families:
            rows, test = rows_of(family, seed)
            model, fresh = trained(family, rows, seed), trained(family, part(rows, LEAVING), seed + 100)
            others = {"before": relearned(model, rows), "retrain": relearned(fresh, rows)}
            for method, layers, options in cells(family):
                known = gaps[family, method, layers]
                for lr in RATES if seed == seeds[0] else [min(RATES, key=lambda lr, k=known: k[seeds[0], lr])]:
                    if (seed, lr) in known:
                        continue
                    result = unfed.unlearn(
                        copy.deepcopy(model), data=rows, forget=torch.arange(LEAVING), test=test,
                        method=method, epochs=RECOVERY[family], evaluate_every=RECOVERY[family],
                        optimiser="adamw", lr=lr, decay=0.0, batch=BATCH, factory=FAMILIES[family], retrain=fresh,
                        seed=seed, **options,
                    )  # fmt: skip
                    line: dict[str, Any] = {"family": family, "seed": seed, "method": method, "layers": layers}
                    line |= {
                        "lr": lr,
                        "gap": float(result.gap),
                        "verdict": result.forgetting and result.forgetting.kind,
                    }
                    names = ("retain", "forget", "test", "mia", "forget_loss", "test_loss")
                    for when in ("before", "after", "retrain"):
                        line[when] = {name: round(float(getattr(result, when)[name]), 4) for name in names}
                        line[when]["relearn"] = others[when] if when in others else relearned(result.model, rows)
                    if method == "not":
                        turned = copy.deepcopy(result.model)
                        unfed.negate(turned, layers=options["layers"])
                        line["after"]["flip"] = seen(turned, part(rows, 0, LEAVING))
                    known[seed, lr] = line["gap"]
                    with open(file, "a", encoding="utf-8") as out:
                        out.write(json.dumps(line) + "\n")
                    print(family, seed, method, layers, lr, line["after"], line["gap"], line["verdict"], flush=True)


COLUMNS = ("retain", "forget", "test", "mia", "forget_loss", "test_loss", "flip", "relearn")


def table(file: Path) -> None:
    """Mean and deviation over seeds of each cell at its best rate, as CSV."""
    found: dict[tuple[str, str, str], dict[float, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for line in map(json.loads, file.read_text().splitlines()):
        found[line["family"], line["method"], line["layers"]][line["lr"]].append(line)
    out = csv.writer(sys.stdout, lineterminator="\n")
    ends = [end for name in COLUMNS for end in (name, f"{name}_std")]
    out.writerow(["family", "method", "layers", "lr", "seeds", *ends, "gap", "gap_std", "verdicts"])
    said = set()
    for (family, method, layers), rates in found.items():
        lr, lines = max(rates.items(), key=lambda item: len(item[1]))  # the rate that all seeds have
        for when in ("before", "retrain") if family not in said else ():
            out.writerow([family, when, "", "", len(lines), *_ends([line[when] for line in lines]), "", "", ""])
        said.add(family)
        gaps = [line["gap"] for line in lines]
        verdicts = " ".join(str(line["verdict"]) for line in lines)
        own = _ends([line["after"] for line in lines])
        out.writerow(
            [family, method, layers, lr, len(lines), *own, f"{mean(gaps):.2f}", f"{stdev(gaps):.2f}", verdicts]
        )


def _ends(lines: list[dict[str, float]]) -> Iterator[str]:
    for name in COLUMNS:
        values = [line[name] for line in lines if name in line]
        yield from (f"{mean(values):.2f}", f"{stdev(values):.2f}") if len(values) > 1 else ("", "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore", unfed.UnfedWarning)
    torch.set_num_threads(1)
    table(given.table) if given.table else study(given.families, given.seeds, given.out)

"""Real architectures of transformers, timm, peft and Lightning, built from a config: nothing is downloaded.

`make test-zoo` installs them into an environment of their own; elsewhere these tests are not asked for.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import unfed
from unfed.errors import UnfedError
from unfed.model.layers import choose
from unfed.model.params import params_of

pytestmark = [
    pytest.mark.zoo,
    # What unfed does not key itself, a library may draw for itself: that is said, and no fault here.
    pytest.mark.filterwarnings("default::unfed.errors.UnfedWarning"),
]
os.environ.setdefault("HF_HUB_OFFLINE", "1")

GENERATOR = torch.Generator().manual_seed(0)
IDS = torch.randint(3, 90, (40, 10), generator=GENERATOR)
MASK = (torch.arange(10) < torch.randint(4, 11, (40, 1), generator=GENERATOR)).long()
Y = (IDS[:, 0] > 45).long()
IMAGES = torch.rand(24, 3, 32, 32, generator=GENERATOR)
KINDS = torch.arange(24) % 3
Factory = Callable[[], nn.Module]


def library(name: str) -> Any:
    """An installed library, or the reason why its tests are skipped."""
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        pytest.skip(f"{name} is not installed; `make test-zoo` installs it")
    _operators_of_torchvision()
    return pytest.importorskip(name)


def _operators_of_torchvision() -> None:
    """Declare what torchvision's wheel on PyPI, built for CUDA, lacks beside a CPU build of torch; nobody calls it."""
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        declared = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            declared.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        globals()["_declared"] = declared  # it undeclares them when it goes


def language(name: str) -> Factory:
    """A sequence classifier of transformers, in a size for tests, with its own default dropout."""
    t = library("transformers")
    common = {"vocab_size": 100, "num_labels": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    depth = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
    room = {"max_position_embeddings": 40}
    own: dict[str, Any] = {
        "Bert": {**depth, **room},
        "Roberta": {**depth, **room},
        "Electra": {**depth, **room, "embedding_size": 16},
        "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, **room},
        "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40},
        "Llama": {**depth, **room, "num_key_value_heads": 1},
        "Qwen2": {**depth, **room, "num_key_value_heads": 1},
    }
    config = getattr(t, f"{name}Config")(**common, **own[name])
    kind = getattr(t, f"{name}ForSequenceClassification")
    return lambda: kind(config)


def made(factory: Factory) -> nn.Module:
    torch.manual_seed(0)
    return factory()


def moved(result: unfed.central.Result, model: nn.Module) -> bool:
    before, after = params_of(model), params_of(result.model)
    return any(not torch.equal(before[name], after[name]) for name in before)


TEXT: dict[str, Any] = {"input_ids": IDS, "attention_mask": MASK, "labels": Y}
EMBEDDINGS = {
    "Bert": "bert.embeddings.word_embeddings.weight",
    "Roberta": "roberta.embeddings.word_embeddings.weight",
    "Electra": "electra.embeddings.word_embeddings.weight",
    "DistilBert": "distilbert.embeddings.word_embeddings.weight",
    "GPT2": "transformer.wte.weight",
    "Llama": "model.embed_tokens.weight",
    "Qwen2": "model.embed_tokens.weight",
}


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_language_models_unlearn_from_dicts_and_repeat_to_the_bit(name: str) -> None:
    factory = language(name)
    model = made(factory)
    assert [choice.name for choice in choose(model, ["paper"])] == [EMBEDDINGS[name]]
    results = [unfed.unlearn(model, data=TEXT, forget=[0, 1, 2], epochs=2, lr=0.05) for _ in range(2)]
    assert moved(results[0], model) and type(results[0].model) is type(model)
    first, second = (params_of(result.model) for result in results)
    assert all(torch.equal(first[n], second[n]) for n in first), "dropout, that of attention too, is keyed"
    with torch.no_grad():
        logits = results[0].model.eval()(input_ids=IDS, attention_mask=MASK).logits
    right = 100 * float((logits[3:].argmax(1) == Y[3:]).float().mean())
    assert results[0].after["retain"] == pytest.approx(right, abs=1e-3), "what unfed measures is what the model says"


@pytest.mark.parametrize(
    "method", ["ft", "not", "randl", "ga", "badt", "l1-sparse", "ssd", "salun", "retrain", "sealed"]
)
def test_every_centralised_method_takes_a_language_model(method: str) -> None:
    factory = language("Bert")
    model = made(factory)
    result = unfed.unlearn(model, data=TEXT, forget=[0, 1, 2], method=method, epochs=1, lr=0.01, factory=factory)
    assert moved(result, model)


def test_rows_of_different_lengths_come_padded_from_a_collator() -> None:
    t = library("transformers")
    tokenizer = t.PreTrainedTokenizerFast(tokenizer_object=_words(), pad_token="[PAD]")
    rows = [{"input_ids": IDS[i, : int(MASK[i].sum())].tolist(), "label": int(Y[i])} for i in range(40)]
    loader: Any = DataLoader(rows, batch_size=8, shuffle=True, collate_fn=t.DataCollatorWithPadding(tokenizer))  # type: ignore[arg-type]
    model = made(language("DistilBert"))
    result = unfed.unlearn(model, data=loader, forget=[0, 1], method="ft", epochs=1, lr=0.01)
    plain = unfed.unlearn(model, data={**TEXT, "input_ids": IDS * MASK}, forget=[0, 1], method="ft", epochs=1, lr=0.01)
    first, second = params_of(result.model), params_of(plain.model)
    assert all(torch.equal(first[n], second[n]) for n in first)


def test_a_datasets_object_and_a_parquet_file_are_read(tmp_path: Path) -> None:
    d, parquet = library("datasets"), library("pyarrow.parquet")
    columns: dict[str, Any] = {"input_ids": IDS.tolist(), "attention_mask": MASK.tolist(), "label": Y.tolist()}
    rows = d.Dataset.from_dict({**columns, "text": ["left out"] * 40})
    model = made(language("Bert"))
    result = unfed.unlearn(model, data=rows, forget=[0, 1], method="ft", epochs=1, lr=0.01)
    plain = unfed.unlearn(model, data=TEXT, forget=[0, 1], method="ft", epochs=1, lr=0.01)
    first, second = params_of(result.model), params_of(plain.model)
    assert all(torch.equal(first[n], second[n]) for n in first)
    with pytest.raises(UnfedError, match="raw text; tokenise it first"):
        unfed.unlearn(model, data=d.Dataset.from_dict({"text": ["a film"], "label": [0]}), forget=[0])
    table = library("pyarrow").table({"age": [30, 40], "old": [False, True], "label": ["no", "yes"]})
    parquet.write_table(table.drop_columns(["old"]), tmp_path / "t.parquet")
    found = unfed.read(tmp_path / "t.parquet")
    assert found.x.tolist() == [[30.0], [40.0]] and found.classes == ("no", "yes")
    parquet.write_table(table, tmp_path / "t.parquet")
    assert unfed.read(tmp_path / "t.parquet", label="old", owner="label").classes == ("False", "True")


def _words() -> Any:
    tokenizers = library("tokenizers")
    model = tokenizers.models.WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]")
    return tokenizers.Tokenizer(model)


@pytest.mark.parametrize("name", ["ViT", "ResNet", "ConvNext"])
def test_vision_models_of_transformers_read_pixel_values(name: str) -> None:
    t = library("transformers")
    own: dict[str, Any] = {
        "ViT": {
            "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
            "image_size": 32, "patch_size": 8,
        },
        "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
        "ConvNext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "drop_path_rate": 0.3},
    }  # fmt: skip
    config = getattr(t, f"{name}Config")(num_labels=3, **own[name])
    model = made(lambda: getattr(t, f"{name}ForImageClassification")(config))
    rows = [{"pixel_values": IMAGES[i], "label": int(KINDS[i])} for i in range(24)]
    for data in ({"pixel_values": IMAGES, "labels": KINDS}, rows):
        assert moved(unfed.unlearn(model, data=data, forget=[0, 1], epochs=1, lr=0.01), model)


TIMM: dict[str, dict[str, Any]] = {
    "resnet18": {},
    "efficientnet_b0": {},
    "mobilenetv3_small_050": {},
    "convnext_atto": {},
    "vit_tiny_patch16_224": {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2},
    "deit_tiny_distilled_patch16_224": {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2},
    "swin_tiny_patch4_window7_224": {
        "img_size": 32,
        "window_size": 4,
        "embed_dim": 12,
        "depths": (1, 1),
        "num_heads": (2, 2),
    },
}


@pytest.mark.parametrize("name", TIMM)
def test_models_of_timm_unlearn_with_stochastic_depth(name: str) -> None:
    timm = library("timm")
    model = made(lambda: timm.create_model(name, pretrained=False, num_classes=3, drop_path_rate=0.1, **TIMM[name]))
    results = [unfed.unlearn(model, data=(IMAGES, KINDS), forget=[0, 1], epochs=1, lr=0.01) for _ in range(2)]
    first, second = (params_of(result.model) for result in results)
    assert moved(results[0], model) and all(torch.equal(first[n], second[n]) for n in first)


def test_adapters_of_peft_are_negated_by_one_half() -> None:
    peft = library("peft")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"], lora_dropout=0.1)
    model = made(lambda: peft.get_peft_model(language("Bert")(), config))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # peft begins with zeros there
            nn.init.normal_(parameter, std=0.1)
    (first,) = choose(model, ["paper"])
    assert "lora_A" in first.name, "the base is frozen, so the first weight that trains is an adapter's"
    with pytest.raises(UnfedError, match="halves of one adapter"):
        unfed.unlearn(model, data=TEXT, forget=[0, 1], layers=["*lora_*"])
    result = unfed.unlearn(model, data=TEXT, forget=[0, 1], layers=["*lora_A*"], epochs=1, lr=0.01)
    before, after = params_of(model), params_of(result.model)
    assert all(torch.equal(before[n], after[n]) for n in before if "lora" not in n and "classifier" not in n)
    assert moved(result, model)


def test_a_lightning_module_is_taken_after_its_training() -> None:
    lightning = library("lightning")

    class Lit(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(3072, 8), nn.ReLU(), nn.Linear(8, 3))

        def training_step(self, batch: Any, number: int) -> Any:
            x, y = batch
            return F.cross_entropy(self.net(x), y)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 1e-3)

    class Forward(Lit):
        def forward(self, x: Any) -> Any:
            return self.net(x)

    loader: Any = DataLoader(list(zip(IMAGES, KINDS, strict=True)), batch_size=8, shuffle=True)  # type: ignore[arg-type]
    for kind in (Forward, Lit):
        model = kind()
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(model, loader)
        result = unfed.unlearn(model, data=loader, forget=[0, 1], epochs=1, lr=0.01)
        assert isinstance(result.model, Forward if kind is Forward else nn.Sequential)


PAGES = [Path(__file__).parents[2] / "docs" / "how-to" / name for name in ("libraries.md", "language-models.md")]


@pytest.mark.parametrize("number", range(5))
def test_the_recipes_run_as_they_are_printed(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    code = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert len(code) == 5
    for name in ("transformers", "timm", "peft", "lightning"):
        if re.search(rf"^(import|from) {name}\b", code[number], flags=re.MULTILINE):
            library(name)
    exec(compile(code[number], "a recipe", "exec"), {"__name__": "__main__"})
    assert "after" in capsys.readouterr().out

"""Each preset of the paper's experiments holds the paper's values, and each variant in its comments is valid."""

from __future__ import annotations

import pytest

from unfed.config.config import Config, presets
from unfed.data import DATASETS
from unfed.model.networks import MODELS

ROUNDS = {
    "cifar10-cnn": ("cifar10", "cnn", 2000, (None, None)),
    "cifar100-cnn": ("cifar100", "cnn-wide", 2000, (None, None)),
    "cifar10-resnet18": ("cifar10", "resnet18", 800, (256, 224)),
    "cifar100-resnet18": ("cifar100", "resnet18", 1000, (256, 224)),
    "cifar100-vit": ("cifar100", "vit-b-16", 500, (256, 224)),
    "caltech101-vit": ("caltech101", "vit-b-16", 300, (256, 224)),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_the_presets_have_the_papers_values(name: str) -> None:
    assert name in presets()
    config, (data, model, rounds, sizes) = Config.preset(name), ROUNDS[name]
    assert config.name == name and config.seed_list == (0, 1, 2)
    assert (config.data.name, config.model.name) == (data, model) and data in DATASETS and model in MODELS
    assert (config.data.resize, config.data.crop) == sizes and config.data.flip == 0.5
    assert config.partition.clients == 10 and config.partition.scheme == "iid" and config.partition.validation == 0.2
    assert (config.training.rounds, config.unlearning.rounds, config.training.epochs) == (rounds, rounds, 1)
    optimiser = config.training.lr, config.training.momentum, config.training.decay, config.training.batch
    assert optimiser == (1e-3, 0.9, 5e-4, 64) and config.unlearning.lr is None
    assert config.request[0].clients == ("0",) and set(config.methods.run) == {"retrain", "ft", "not"}


def test_the_variants_in_the_comments_are_valid() -> None:
    classwise = Config.preset("cifar10-cnn", ['request={id="class-0", classes=[0]}'])
    assert classwise.request[0].classes == (0,) and classwise.request[0].clients == ()
    assert Config.preset("cifar10-cnn", ['request={id="a-tenth", fraction=0.1}']).request[0].fraction == 0.1
    assert Config.preset("cifar10-cnn", ["partition.scheme=dirichlet", "partition.beta=0.1"]).partition.beta == 0.1
    everyone = '["retrain","ft","federaser","fukd","pgd","mode","fcu","not"]'
    assert len(Config.preset("cifar10-cnn", [f"methods.run={everyone}"]).methods.run) == 8
    assert Config.preset("cifar10-resnet18", ["unlearning.retrain_rounds=1600"]).unlearning.retrain_rounds == 1600
    backdoor = Config.preset("caltech101-vit", ['poison={client="0", target_class=5, share=0.8}'])
    assert backdoor.poison is not None and backdoor.poison.target_class == 5
    rows = "encoder.layers.encoder_layer_0.self_attention.in_proj_weight[0:768]"
    Config.preset("caltech101-vit", [f'methods.not.layers=["{rows}"]'])

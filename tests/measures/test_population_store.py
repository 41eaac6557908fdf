"""A population folder gives back what was put in, and says what is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from populations import written
from unfed.errors import UnfedError
from unfed.measures.population import store


def test_logits_come_back_by_model_row_and_class(tmp_path: Path) -> None:
    population = store.load(written(tmp_path / "p", models=3).folder)
    found = population.logits("retrain", "forget")
    assert found.shape == (3, 6, 4) and found.dtype == np.float32
    alone = population.read("retrain", population.about.seeds[1])["forget"].numpy()
    assert np.array_equal(found[1], alone)
    assert population.labels("test").shape == (9,) and population.labels("test").dtype == np.int64


def test_what_is_missing_is_said_with_the_command_that_makes_it(tmp_path: Path) -> None:
    population = written(tmp_path / "p", models=3)
    store.logits_file(population.folder, "not", 2).unlink()
    assert population.done("not") == (0, 1)
    with pytest.raises(UnfedError, match="2 of 3 models of 'not'; go on with `unfed population"):
        population.logits("not", "forget")
    with pytest.raises(UnfedError, match="no models of 'retain'; it has before, retrain or not"):
        population.logits("retain", "forget")
    with pytest.raises(UnfedError, match="no rows 'train'; it has"):
        population.labels("train")
    with pytest.raises(UnfedError, match="is not a population"):
        store.load(tmp_path)


def test_a_model_of_another_population_is_not_read(tmp_path: Path) -> None:
    here = written(tmp_path / "here", models=2)
    there = written(tmp_path / "there", models=2, config="another")
    path = store.logits_file(here.folder, "not", 0)
    path.write_bytes(store.logits_file(there.folder, "not", 0).read_bytes())
    with pytest.raises(UnfedError, match="is not of the population"):
        here.logits("not", "test")
    store.put(here, "not", 0, {"forget": torch.zeros(6, 4), "retain": torch.zeros(5, 4), "test": torch.zeros(9, 4)})
    assert not here.logits("not", "test")[0].any()

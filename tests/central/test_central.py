"""`unfed.unlearn`: any module, any data, nine methods, one honest table."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

import unfed
from command_line import called
from unfed.central import Result, inputs
from unfed.errors import UnfedError, UnfedWarning
from unfed.model.params import params_of
from worlds import noting

Pair = tuple[Tensor, Tensor]


def digits() -> Pair:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(bunch.images, dtype=torch.float32)[order, None] / 16, torch.tensor(bunch.target)[order]


X, Y = digits()
FORGET: Pair = (X[:20], Y[:20])
RETAIN: Pair = (X[20:150], Y[20:150])
TEST: Pair = (X[150:250], Y[150:250])


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(16, 10)
    )


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """A model that somebody trained with their own loop."""
    made = small()
    optimiser = torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.9)
    for _ in range(20):
        for rows in torch.arange(150).split(32):
            optimiser.zero_grad()
            F.cross_entropy(made(X[rows]), Y[rows]).backward()
            optimiser.step()
    return made.eval()


def call(model: nn.Module, **changes: Any) -> Result:
    usual: dict[str, Any] = {"retain": RETAIN, "forget": FORGET, "test": TEST, "method": "ft", "epochs": 2, "lr": 0.02}
    return unfed.unlearn(model, **{**usual, **changes})


def same(a: nn.Module, b: nn.Module) -> bool:
    ours, theirs = params_of(a), params_of(b)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


# --- what comes back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ft", "not", "randl", "ga", "badt", "l1-sparse", "ssd", "salun", "retrain"])
def test_nine_methods_give_a_new_model_and_leave_the_old_one_alone(model: nn.Module, method: str) -> None:
    before = copy.deepcopy(model)
    result = call(model, method=method)
    assert same(model, before) and not same(result.model, before)
    assert type(result.model) is type(model) and result.model.training == model.training
    accuracy = 100 * float((result.model(TEST[0]).argmax(1) == TEST[1]).float().mean())
    assert result.after["test"] == pytest.approx(accuracy, abs=1e-3)
    assert result.epochs == (0 if method == "ssd" else 2)


def test_a_result_prints_as_five_lines_that_say_what_is_missing(model: nn.Module) -> None:
    *lines, verdict = str(call(model)).splitlines()
    assert len(lines) == 5 and verdict == "Whether it was forgotten cannot be decided: 20 rows are too few."
    assert lines[0].split() == ["FT", "Retain", "Forget", "Test", "MIA"]
    assert lines[1].startswith("before") and lines[2].startswith("after")
    assert lines[3].split() == ["Retrain", "not", "run"]
    assert lines[4].startswith("gap: not measured, no Retrain")


def test_without_test_data_the_attack_says_so(model: nn.Module) -> None:
    result = call(model, test=None)
    assert result.after["mia"] == result.after["test"] == "not measured: no held-out data"
    assert str(result).splitlines()[2].endswith("not measured: no held-out data")
    assert str(result).splitlines()[5:] == [result.verdict]
    assert "no held-out data" in result.report()


def test_retrain_can_be_a_number_of_epochs_or_a_model_of_ones_own(model: nn.Module) -> None:
    trained = call(model, retrain=3)
    assert trained.retrain is not None and trained.retrain["method"] == "retrain"
    assert isinstance(trained.gap, float) and f"gap: {trained.gap:.2f}" in str(trained)
    given = call(model, retrain=small(5))
    assert given.retrain is not None and isinstance(given.gap, float)
    assert given.gap > 10  # an untrained model is far away
    assert call(model, method="retrain").gap == 0


def test_retrain_is_the_epoch_with_the_best_test_accuracy_as_in_the_paper(model: nn.Module) -> None:
    result = call(model, retrain=8, seed=2)
    epochs = {
        line["round"]: float(line["test"]) for line in result.lines if line["method"] == "retrain" and line["round"]
    }
    best = max(epochs, key=lambda t: (epochs[t], -t))
    assert len(epochs) == 8 and epochs[best] > epochs[8], "the last epoch is not the best here"
    assert result.retrain is not None and result.retrain["round"] == best


def test_a_model_that_is_retrained_comes_back_as_it_was_at_its_best_epoch(model: nn.Module) -> None:
    result = call(model, method="retrain", epochs=6, lr=0.1, seed=0)
    accuracy = 100 * float((result.model(TEST[0]).argmax(1) == TEST[1]).float().mean())
    tests = [line["test"] for line in result.lines if line["method"] == "retrain" and line["round"]]
    assert result.after["test"] == pytest.approx(accuracy, abs=1e-3) == pytest.approx(max(tests), abs=1e-3)
    assert result.epochs == int(result.after["round"]) < 6
    untested = call(model, method="retrain", test=None)
    assert untested.epochs == 2


def test_the_report_is_a_page_and_can_be_written(model: nn.Module, tmp_path: Path) -> None:
    result = call(model, retrain=2)
    page = result.report(tmp_path / "report.html")
    assert page.lower().startswith("<!doctype html") and "Retrain" in page
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page


def test_progress_is_told_every_epoch(model: nn.Module, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[int, int, bool]] = []
    call(model, epochs=3, evaluate_every=2, progress=lambda e, n, line: told.append((e, n, line is not None)))
    assert told == [(1, 3, False), (2, 3, True), (3, 3, True)]
    call(model, epochs=1, progress=True)
    assert "FT 1/1 retain" in capsys.readouterr().err


def test_a_forgotten_class_is_not_asked_for_in_the_test(model: nn.Module) -> None:
    train = Y[:150] == 3
    result = call(model, retain=(X[:150][~train], Y[:150][~train]), forget=(X[:150][train], Y[:150][train]), epochs=1)
    rows = TEST[1] != 3
    accuracy = 100 * float((result.model(TEST[0][rows]).argmax(1) == TEST[1][rows]).float().mean())
    assert result.after["test"] == pytest.approx(accuracy, abs=1e-3)
    assert result.info.requests[0].kind == "class"


def test_options_are_the_methods_hyperparameters(model: nn.Module) -> None:
    unchanged = call(model, method="ssd", alpha=1e300)
    assert same(unchanged.model, model)
    with pytest.raises(UnfedError, match=r"methods\.ssd\.alfa is not known; .* Did you mean 'alpha'\?"):
        call(model, method="ssd", alfa=1.0)


def test_an_argument_of_unlearn_that_is_misspelt_is_told_as_one(model: nn.Module) -> None:
    with pytest.raises(UnfedError, match="has an argument 'optimizer'. Did you mean 'optimiser'"):
        call(model, optimizer="adam")


def test_a_copy_of_a_forgotten_row_that_stays_is_said(model: nn.Module) -> None:
    """The model goes on knowing what it holds."""
    x, y = torch.cat([X[:60], X[3:5]]), torch.cat([Y[:60], Y[3:5]])
    with pytest.warns(
        UnfedWarning, match="2 of the 20 rows to forget stand in data once more, so the model still"
    ) as told:
        unfed.unlearn(model, data=(x, y), forget=range(20), method="ft", epochs=1)
    assert told[0].filename == __file__, "of the line that called"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unfed.unlearn(model, data=(x, y), forget=[*range(20), 60, 61], method="ft", epochs=1)


def test_held_out_rows_that_the_model_goes_on_training_on_are_said(model: nn.Module) -> None:
    """Test and MIA would be measured on rows that the model knows."""
    said = "3 of the 43 rows of test stay in training, so Test and MIA are too good"
    test = torch.cat([X[30:33], X[100:140]]), torch.cat([Y[30:33], Y[100:140]])
    with pytest.warns(UnfedWarning, match=said) as told:
        unfed.unlearn(model, data=(X[:60], Y[:60]), forget=range(20), test=test, method="ft", epochs=1)
    assert told[0].filename == __file__, "of the line that called"
    rows = Own(X[:140], Y[:140])
    stays, leaves = Subset(rows, range(20, 60)), Subset(rows, range(20))
    held_out = Subset(rows, [30, 31, 32, *range(100, 140)])
    with pytest.warns(UnfedWarning, match=said):
        unfed.unlearn(model, retain=stays, forget=leaves, test=held_out, method="ft", epochs=1)


def test_rows_of_tensors_are_summed_once_however_many_sets_they_are_compared_with(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes as long as an epoch of a small model, and there are three comparisons and a fingerprint."""
    summed, sums = list[int](), inputs.row_sums

    def counted(x: Tensor, y: Tensor) -> Tensor:
        summed.append(len(x))
        return sums(x, y)

    monkeypatch.setattr(inputs, "row_sums", counted)
    call(model, method="ft", epochs=1)
    assert sorted(summed) == sorted([len(RETAIN[0]), len(FORGET[0]), len(TEST[0])])


# --- kinds of data ----------------------------------------------------------------------------------------------------


class Own(Dataset[tuple[Tensor, int]]):
    """A map-style data set, as torchvision's are."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.targets = x, y.tolist()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.x[row], self.targets[row]


def test_tensors_data_sets_and_row_numbers_give_the_same_bits(model: nn.Module) -> None:
    expected = call(model, method="randl").model
    whole = TensorDataset(torch.cat([RETAIN[0], FORGET[0]]), torch.cat([RETAIN[1], FORGET[1]]))
    for changes in (
        {"retain": Own(*RETAIN), "forget": Own(*FORGET), "test": Own(*TEST)},
        {"retain": RETAIN, "forget": Own(*FORGET)},
        {"retain": TensorDataset(*RETAIN), "forget": Subset(whole, range(130, 150))},
        {"retain": None, "data": whole, "forget": list(range(130, 150))},
        {"retain": None, "data": Own(*whole.tensors), "forget": torch.arange(150) >= 130},
    ):
        assert same(call(model, method="randl", **changes).model, expected)


def test_what_can_only_be_iterated_over_is_read_once_and_its_transforms_are_frozen(
    model: nn.Module,
) -> None:
    def batches() -> Iterator[Pair]:
        yield from zip(RETAIN[0].split(32), RETAIN[1].split(32), strict=True)

    with pytest.warns(UnfedWarning, match="retain is not a map-style data set.*read once into memory"):
        result = call(model, retain=batches())
    assert same(result.model, call(model).model)

    def pairs() -> Iterator[tuple[Tensor, int]]:
        yield from zip(FORGET[0], FORGET[1].tolist(), strict=True)

    with pytest.warns(UnfedWarning, match="forget is not a map-style data set"):
        assert same(call(model, forget=pairs()).model, result.model)


def test_bytes_become_numbers_between_zero_and_one(model: nn.Module) -> None:
    def octets(pair: Pair) -> Pair:
        return (pair[0] * 255).round().to(torch.uint8), pair[1]

    def floats(pair: Pair) -> Pair:
        return octets(pair)[0].float() / 255, pair[1]

    a = call(model, retain=octets(RETAIN), forget=octets(FORGET), test=octets(TEST)).model
    assert same(a, call(model, retain=floats(RETAIN), forget=floats(FORGET), test=floats(TEST)).model)


def test_vectors_of_bytes_are_refused_in_whatever_they_come() -> None:
    """A pair of them was refused, while those of a data set were divided by 255 as if they were images."""
    octets, labels = (X[:30].flatten(1) * 255).to(torch.uint8), Y[:30]
    kinds: list[Any] = [(octets, labels), Own(octets, labels), TensorDataset(octets, labels)]
    for data in kinds:
        with pytest.raises(UnfedError, match=r"Vectors of uint8 are neither images.*convert them with \.float\(\) or"):
            unfed.unlearn(nn.Linear(64, 10), data=data, forget=[1], method="ft", epochs=1)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_labels_of_few_bits_are_class_numbers(model: nn.Module, dtype: torch.dtype) -> None:
    narrow = {"retain": (RETAIN[0], RETAIN[1].to(dtype)), "forget": (FORGET[0], FORGET[1].to(dtype))}
    assert same(call(model, epochs=1, **narrow).model, call(model, epochs=1).model)


def test_mistakes_in_what_is_handed_over_are_named_with_what_to_do(model: nn.Module) -> None:
    whole = (X[:150], Y[:150])
    octets = (TEST[0] * 255).round().to(torch.uint8)
    names = np.array([f"digit {label}" for label in RETAIN[1].tolist()])
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"retain": None, "data": whole, "forget": []}, "forget names no row of data"),
        ({"retain": (RETAIN[0], names)}, "retain has labels that are no numbers .such as .*; number them in the order"),
        ({"test": (octets, TEST[1])}, "One of retain and test has uint8 images, the other floats; .* alike"),
    ]
    for changes, sentence in mistakes:
        with pytest.raises(UnfedError, match=sentence):
            call(model, **changes)


class Prepared(Dataset[tuple[Tensor, Tensor]]):
    """Rows as a pipeline of one's own gives them."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def __len__(self) -> int:
        return len(self._pair[0])

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self._pair[0][row], self._pair[1][row]


@pytest.mark.parametrize("form", [tuple, Prepared])
def test_rows_that_a_pipeline_of_ones_own_normalised_reach_the_model_as_they_are(model: nn.Module, form: Any) -> None:
    x, y = (X[:150] - 3.0) / 0.1, Y[:150]  # what no image has, so whoever divides or normalises again is seen
    with torch.no_grad():
        expected = float(F.cross_entropy(model(x[:20]), y[:20]))
    result = unfed.unlearn(model, data=form((x, y)), forget=range(20), method="ft", epochs=1, lr=0.0)
    assert float(result.before["forget_loss"]) == pytest.approx(expected, rel=1e-5)


def test_double_precision_stays_double() -> None:
    result = call(small().double(), epochs=1)
    assert next(result.model.parameters()).dtype == torch.float64


# --- fresh initialisations --------------------------------------------------------------------------------------------


class Token(nn.Module):
    """A model with a parameter that no `reset_parameters` reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 64))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1) + self.token)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("method", "title"), [("retrain", "Retrain"), ("badt", "BadT")])
def test_what_cannot_be_made_anew_is_refused_by_name(method: str, title: str) -> None:
    with pytest.raises(UnfedError, match=f"{title} needs a freshly initialised model.*'token'.*pass factory="):
        call(Token(), method=method)
    assert call(Token(), method=method, factory=Token).epochs == 2
    assert call(Token(), method="ft").epochs == 2


def test_a_factory_must_build_a_new_model_of_the_same_kind(model: nn.Module) -> None:
    with pytest.raises(UnfedError, match="factory must return a new"):
        call(model, method="retrain", factory=lambda: model)
    with pytest.raises(UnfedError, match="The model that factory made"):
        call(model, method="retrain", factory=lambda: nn.Linear(3, 4))


# --- going on after a kill --------------------------------------------------------------------------------------------


class Killed(Exception):
    pass


@pytest.mark.parametrize("method", ["not", "salun", "badt", "ga"])
def test_a_killed_call_goes_on_and_ends_bit_equal(model: nn.Module, tmp_path: Path, method: str) -> None:
    whole = call(model, method=method, epochs=4, seed=3)

    def kill(epoch: int, epochs: int, line: Mapping[str, Any] | None) -> None:
        if epoch == 2:
            raise Killed

    with pytest.raises(Killed):
        call(model, method=method, epochs=4, seed=3, checkpoint=tmp_path / "run", progress=kill)
    told: list[int] = []
    resumed = call(
        model, method=method, epochs=4, seed=3, checkpoint=tmp_path / "run", progress=lambda e, n, line: told.append(e)
    )
    assert told and told[0] > 1, "it began anew instead of going on"
    assert same(resumed.model, whole.model)
    drop = {"seconds"}
    for a, b in zip(resumed.lines, whole.lines, strict=True):
        assert {k: v for k, v in a.items() if k not in drop} == {k: v for k, v in b.items() if k not in drop}
    assert same(call(model, method=method, epochs=4, seed=3, checkpoint=tmp_path / "run").model, whole.model)


def test_a_folder_serves_one_call_only(model: nn.Module, tmp_path: Path) -> None:
    call(model, epochs=1, checkpoint=tmp_path / "run")
    with pytest.raises(UnfedError, match=r"belongs to a call with other arguments \(epochs is 1 there and 2"):
        call(model, epochs=2, checkpoint=tmp_path / "run")
    with pytest.raises(UnfedError, match="belongs to a call with another model or other data"):
        call(small(9), epochs=1, checkpoint=tmp_path / "run")
    with pytest.raises(UnfedError, match="belongs to a call with another model or other data"):
        call(model, epochs=1, retain=(RETAIN[0][1:], RETAIN[1][1:]), checkpoint=tmp_path / "run")


def test_a_checkpoint_that_is_something_else_is_spoken_of_as_pythons_argument(model: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(UnfedError, match=r"is not empty; give checkpoint= another folder\.$"):
            call(model, epochs=1, checkpoint=place)
    assert (tmp_path / "notes.txt").read_text() == "mine" and len(list(tmp_path.iterdir())) == 1


def test_commands_say_what_the_folder_of_a_call_is_and_what_to_do(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call(model, checkpoint=tmp_path / "calls")
    monkeypatch.chdir(tmp_path)
    for words, said in {
        "bundle calls -o e.json": "calls has served no request, so there is no evidence to sign; it belongs to a call"
        " of unfed.unlearn, and `unfed report calls` shows what was measured.",
        "forget calls --class 3": "calls is of a call of unfed.unlearn and serves no requests",
        "export calls -o e.safetensors": "makes no model 0/train; say with --method which: 0/forget/ft.",
    }.items():
        code, _, err = called(words.split(), monkeypatch, capsys)
        assert code == 2 and said in err and "note:" not in err
    code, _, err = called(["export", "calls", "--method", "ft", "-o", "e.safetensors"], monkeypatch, capsys)
    assert code == 0, err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calls", "e.safetensors"]


def test_a_checkpoint_of_a_data_set_says_that_resuming_is_not_bit_equal(model: nn.Module, tmp_path: Path) -> None:
    with pytest.warns(UnfedWarning, match="need not be bit-equal") as told:
        call(model, epochs=1, retain=Own(*RETAIN), checkpoint=tmp_path / "run")
    assert [one.filename for one in told] == [__file__], "it points at the caller"


# --- bad input --------------------------------------------------------------------------------------------------------


def _shifted(pair: Pair, by: int) -> Pair:
    return pair[0], pair[1] + by


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "overlap": ({"retain": (X[10:150], Y[10:150])}, "Row 10 of forget is also row 0 of retain .10 rows are in both.*"),
    "test overlap": ({"test": (X[15:200], Y[15:200])}, "Row 15 of forget is also row 0 of test"),
    "same data set": ({"retain": Subset(Own(X, Y), range(5)), "forget": None}, "forget is a NoneType"),
    "not a subset": (
        {"retain": None, "data": RETAIN, "forget": [3, 130]},
        "forget names row 130, but data has",
    ),
    "negative row": (
        {"retain": None, "data": RETAIN, "forget": [-1]},
        "forget names row -1, but data has",
    ),
    "everything": ({"retain": None, "data": RETAIN, "forget": list(range(130))}, "forget names every row of data"),
    "nothing": ({"retain": None, "data": RETAIN, "forget": []}, "forget"),
    "short mask": ({"retain": None, "data": RETAIN, "forget": torch.ones(3, dtype=torch.bool)}, "forget is a mask of"),
    "both": ({"data": RETAIN}, "Give what stays as retain=, or the whole"),
    "labels": ({"forget": _shifted(FORGET, 7)}, "has the label 1[0-6], but the model has 10 outputs"),
    "test labels": ({"test": _shifted(TEST, -9)}, "Row .* of test has the label -"),
    "data set labels": ({"forget": Own(*_shifted(FORGET, 7))}, "which is outside 0..9"),
    "float labels": ({"forget": (FORGET[0], FORGET[1].float())}, "Labels must be class numbers"),
    "label count": ({"forget": (FORGET[0], FORGET[1][:3])}, "forget has 20 rows and labels of shape"),
    "empty": ({"forget": (FORGET[0][:0], FORGET[1][:0])}, "forget is empty"),
    "shape": ({"retain": (RETAIN[0][:, :, :5], RETAIN[1])}, "does not accept rows of shape|differ in shape"),
    "ratio": ({"method": "salun", "ratio": 1.5}, "SalUn's ratio is a share of the weights between 0 and 1"),
    "alpha": ({"method": "ssd", "alpha": -2.0}, "SSD takes an alpha and a lam of at least 0"),
    "nan": ({"lr": 1e6, "epochs": 9}, "the model (has NaN|is too large).*lower the learning rate"),
    "method": ({"method": "nott"}, "The method 'nott' is not known.*Did you mean 'not'"),
    "epochs": ({"epochs": 0}, "epochs must be a whole number of at least 1, not 0"),
    "batch": ({"batch": 2.5}, "batch must be a whole number of at least 1"),
    "lr": ({"lr": math.nan}, "lr must be a number of at least 0, not nan"),
    "lr in words": ({"lr": "fast"}, "lr must be a number of at least 0, not 'fast'"),
    "clip": ({"clip": [1]}, r"clip must be a number above 0, or None for no limit, not \[1\]"),
    "momentum": ({"momentum": "a"}, "momentum"),
    "decay": ({"decay": "a"}, "decay"),
    "seed": ({"seed": "a"}, "seed"),
    "infinite": ({"method": "ssd", "alpha": math.inf}, "methods.ssd.alpha is inf; give a finite number"),
    "device": ({"device": "quantum"}, "device = 'quantum' is not known"),
    "federated only": ({"method": "mode"}, "MoDE is made for several clients, and here one place holds all data; use"),
    "federated too": ({"method": "federaser"}, "FedEraser is made for several clients"),
    "no data": ({"forget": 3}, "forget is a int; give a pair of tensors"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_one_sentence(model: nn.Module, case: str, tmp_path: Path) -> None:
    changes, says = WRONG[case]
    with pytest.raises(UnfedError, match=says) as caught:
        call(model, **changes)
    assert "\n" not in str(caught.value) and str(caught.value).endswith((".", "?"))


def test_subsets_of_one_data_set_that_share_rows_are_found(model: nn.Module) -> None:
    own = Own(X, Y)
    with pytest.raises(UnfedError, match="Row 3 of forget is also row 0 of retain"):
        call(model, retain=Subset(own, range(3, 60)), forget=Subset(own, range(4)))


def test_a_model_with_too_few_outputs_or_none_is_refused() -> None:
    with pytest.raises(UnfedError, match=r"has the label \d, but the model has 5 outputs"):
        call(nn.Sequential(nn.Flatten(), nn.Linear(64, 5)))
    with pytest.raises(UnfedError, match="must give one row of logits per input"):
        call(nn.Conv2d(1, 10, 3))
    with pytest.raises(UnfedError, match=r"must be a torch\.nn\.Module, not a function"):
        call(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(UnfedError, match="convert it with model"):
        call(small().half())
    with pytest.raises(UnfedError, match="No parameter of the model can be trained"):
        call(small().requires_grad_(False))


def test_a_broken_model_is_named() -> None:
    broken = small()
    with torch.no_grad():
        broken[0].weight[0] = math.nan  # type: ignore[index]
    with pytest.raises(UnfedError, match="The model has NaN or infinite values in"):
        call(broken)


def test_a_callers_thread_count_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = torch.set_num_threads
    monkeypatch.setattr(torch, "set_num_threads", noting(seen, original))
    before = torch.get_num_threads()
    original(2)
    try:
        x, y = torch.randn(40, 6), torch.arange(40) % 3
        unfed.unlearn(torch.nn.Linear(6, 3), retain=(x[:30], y[:30]), forget=(x[30:], y[30:]), method="ft", epochs=1)
        assert seen[0] == 1 and torch.get_num_threads() == 2  # one thread for so small a step, two again afterwards
    finally:
        original(before)

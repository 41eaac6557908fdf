"""Advice on a layer and a perturbation: the graph, the rules, the score, and every sentence of doubt."""

from __future__ import annotations

import copy
import html
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unfed
from commands import called
from unfed.analysis.advice import Candidate, Probe, Prober, Sample, order_of
from unfed.analysis.advice.rules import _judged
from unfed.api import write_report
from unfed.config.config import Config
from unfed.errors import UnfedError
from unfed.model.functional import Template
from unfed.model.networks import build
from unfed.model.params import params_of
from unfed.runs.run import Run


class Skipping(nn.Module):
    """a feeds b and, around it, c; d hangs beside all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d, self.unused = (nn.Linear(4, 4) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        first = torch.relu(self.a(x))
        found: Tensor = self.c(torch.relu(self.b(first)) + first) + self.d(x)
        return found


class Branching(nn.Module):
    """Its way depends on its input, which no symbol can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.second, self.first = nn.Linear(4, 3), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 1e9):
            x = x * 0
        found: Tensor = self.second(torch.relu(self.first(x)))
        return found


class Tied(nn.Module):
    """Reads words and names one: the last layer shares the first one's table."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.hidden, self.out = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(torch.relu(self.hidden(self.words(x))).mean(1))
        return found


def test_what_was_looked_up_in_a_table_is_the_tables_answer() -> None:
    """A dense layer behind an embedding uses it, although nothing but the table went into what it reads."""
    module, words = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)), torch.randint(9, (2,))
    assert order_of(module, words) == order_of(module)
    assert order_of(module, words).before["1.weight"] == {"0.weight"}


def test_layers_of_an_own_class_are_ordered_without_an_example_too() -> None:
    """They take their weight into their own hands, turned or not, which a tracer sees as a constant."""

    class Own(nn.Module):
        def __init__(self, rows: int, columns: int, turned: bool) -> None:
            super().__init__()
            self.weight, self.turned = nn.Parameter(torch.randn(rows, columns)), turned

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.t() if self.turned else nn.functional.linear(x, self.weight)

    module = nn.Sequential(Own(5, 4, True), nn.ReLU(), Own(6, 5, False), nn.ReLU(), nn.Linear(6, 3))
    assert order_of(module) == order_of(module, torch.randn(2, 4))
    assert unfed.suggest(module).layer == "0.weight"


def test_positions_that_are_added_stand_beside_what_they_are_added_to() -> None:
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places, self.out = nn.Embedding(9, 4), nn.Embedding(5, 4), nn.Linear(20, 3)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.out((self.words(x) + self.places.weight).flatten(1))
            return found

    found = order_of(Placed(), torch.randint(9, (2, 5)))
    assert found == order_of(Placed()) and found.first == ("words.weight", "places.weight")


@pytest.mark.parametrize("rows", [None, torch.randint(9, (60, 5), generator=torch.Generator().manual_seed(0))])
def test_a_table_that_the_last_layer_shares_is_not_advised(rows: Tensor | None) -> None:
    """It is a maximal element: drawn anew, it turns the answers themselves."""
    module = Tied()
    assert order_of(module, rows).last == ("words.weight",)
    found = unfed.suggest(module, None if rows is None else (rows, torch.arange(60) % 9))
    assert found.layer == "hidden.weight" and {one.layer for one in found.ranked} == {"hidden.weight"}
    assert "words.weight: left out, because a last layer shares the weight." in found.why


def test_of_a_model_whose_graph_is_unknown_no_shared_table_is_advised() -> None:
    class Hidden(Tied):
        def forward(self, x: Tensor) -> Tensor:
            if bool(x.sum() > 1e9):
                x = x * 0
            return super().forward(x)

    found = unfed.suggest(Hidden())
    assert found.layer == "hidden.weight" and "order of their definition" in found.doubts[0]


def test_modules_without_numbers_or_graph_are_one_sentence() -> None:
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    for module, sentence in (
        (nn.Sequential(nn.Linear(4, 4, device="meta"), nn.Linear(4, 3, device="meta")), "meta device"),
        (nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(3)), "lazy"),
        (torch.jit.script(plain), "scripted"),
        (nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 3)), "parametrisation"),
        (nn.Linear(4, 3), "No layer that trains has another behind it"),
        (nn.ReLU(), "No layer that trains has another behind it"),
    ):
        with pytest.raises(UnfedError, match=sentence):
            unfed.suggest(module)  # type: ignore[arg-type, unused-ignore]


def test_where_all_is_frozen_nothing_is_meant_by_it() -> None:
    """As for `unfed.negate`: a model that was loaded to be asked; it is advised, with data too, and not changed."""
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).requires_grad_(False)
    draw = torch.Generator().manual_seed(0)
    found = unfed.suggest(module, (torch.randn(60, 4, generator=draw), torch.arange(60) % 3))
    assert found.layer == "0.weight" and not any(p.requires_grad for p in module.parameters())


def test_running_and_tracing_see_the_same_order() -> None:
    for module, example in (
        (Skipping(), torch.randn(2, 4)),
        (build("cnn-tiny", shape=(1, 8, 8), classes=10, seed=0), torch.randn(2, 1, 8, 8)),
        (build("resnet-tiny", shape=(1, 8, 8), classes=10, seed=0), torch.randn(2, 1, 8, 8)),
    ):
        run, traced = order_of(module, example), order_of(module)
        assert run == traced and not run.doubt
    order = order_of(Skipping(), torch.randn(2, 4))
    assert order.before["c.weight"] == {"a.weight", "b.weight"} and order.before["b.weight"] == {"a.weight"}
    assert order.first == ("a.weight", "d.weight") and order.last == ("c.weight", "d.weight")
    assert "unused.weight" not in order.before


def test_a_way_that_depends_on_data_is_run_and_not_guessed() -> None:
    seen, guessed = order_of(Branching(), torch.randn(2, 4)), order_of(Branching())
    assert seen.first == ("first.weight",) and not seen.doubt
    assert guessed.first == ("second.weight",), "the order of definition is all there is"
    assert "cannot be traced" in guessed.doubt and "order of their definition" in guessed.doubt
    found = unfed.suggest(Branching())
    assert not found.sure and any("order of their definition" in doubt for doubt in found.doubts)
    wrong = order_of(Branching(), torch.randn(2, 9))
    assert "cannot be run" in wrong.doubt


def test_a_vit_is_ordered_by_running_it() -> None:
    module = build("vit-tiny", shape=(1, 8, 8), classes=10, seed=0)
    order = order_of(module, torch.randn(2, 1, 8, 8))
    assert order.first == ("conv_proj.weight",) and order.last == ("heads.head.weight",) and not order.doubt
    own = "encoder.layers.encoder_layer_0.self_attention.in_proj_weight"
    assert own in order.before["encoder.layers.encoder_layer_0.self_attention.out_proj.weight"]


def test_the_rules_name_the_first_layer_that_trains_and_never_a_last_one() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    found = unfed.suggest(module)
    assert (found.layer, found.perturbation) == ("0.weight", "reinit") and "rules alone" in found.doubts[-1]
    assert [one.layer for one in found.ranked] == ["0.weight", "2.weight"] and found.ranked[1].behind == 0.5
    module[0].requires_grad_(False)
    found = unfed.suggest(module)
    assert found.layer == "2.weight" and "1 frozen" in found.why[0]
    module[2].requires_grad_(False)
    with pytest.raises(UnfedError, match="perturbing a last layer"):
        unfed.suggest(module)
    both = unfed.suggest(Skipping())
    assert both.layer == "a.weight", "d is a last layer"
    drawn = unfed.suggest(Fixed())
    assert drawn.perturbation == "orthogonal", "what cannot be drawn anew is not told to be"


class Fixed(nn.Module):
    """A layer that has no `reset_parameters`."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.own = Own()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(torch.relu(self.own(x)))
        return found


class Own(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def reset_parameters(self) -> None:
        if not hasattr(self, "made"):
            self.made = True
            super().reset_parameters()


def blobs(rows: int = 80) -> tuple[Tensor, Tensor]:
    y = torch.arange(rows) % 4
    x = 3 * torch.eye(4)[y] + 0.3 * torch.randn(rows, 4, generator=torch.Generator().manual_seed(0))
    return x, y


def trained() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    x, y = blobs()
    descent = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    for _ in range(60):
        descent.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        descent.step()
    return module


def test_with_data_every_candidate_is_scored_and_the_module_stays_as_it_was() -> None:
    module, data = trained(), blobs()
    before = copy.deepcopy(module.state_dict())
    found = unfed.suggest(module, data, lr=0.1)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert {one.perturbation for one in found.ranked} == {"reinit", "orthogonal"}, (
        "nothing that a minus sign takes back"
    )
    assert len(found.ranked) == 2 * 2 and {one.layer for one in found.ranked} == {"0.weight", "2.weight"}
    scores = [one.score for one in found.ranked]
    assert scores == sorted(scores, key=lambda s: -(s or 0.0)) and (scores[0] or 0) > 0
    assert (found.layer, found.perturbation) == (found.ranked[0].layer, found.ranked[0].perturbation)
    assert not any("rules alone" in doubt or "hardly more" in doubt for doubt in found.doubts)
    differs = (found.layer, found.perturbation) != ("0.weight", "reinit")
    assert differs == any(doubt.startswith("The rules would take 0.weight and reinit") for doubt in found.doubts)
    again = unfed.suggest(module, data, lr=0.1)
    assert again == found, "the same question has the same answer"
    fresh = unfed.suggest(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4)), data, lr=1e-6)
    assert any("train it first" in doubt or "recovery may be slow" in doubt for doubt in fresh.doubts)
    assert json.loads(json.dumps(found.to_json()))["layer"] == found.layer


def test_the_score_by_hand() -> None:
    # behind ½, loss above a guess's, CKA down by 0.1 of the 0.25 that count as gone, 80 % back: ½ · 1 · 0.4 · 0.8
    assert Candidate("x", "negate", 0.5, Probe(1.0, 0.1, 2.0, 0.8)).score == pytest.approx(0.16)
    assert Candidate("x", "negate", 1.0, Probe(1.0, 0.5, 0.5, 3.0)).score == pytest.approx(0.5)
    assert Candidate("x", "negate", 1.0, Probe(1.0, 0.9, 2.0, -4.0)).score == 0.0
    assert Candidate("x", "negate", 1.0).score is None


def test_a_round_that_brings_nothing_back_is_said_in_words() -> None:
    """A share below 0 means that the round made it worse; "-2794 %" would say nothing to anybody."""

    class Seen:
        before, accuracy = torch.zeros(1, 10), 90.0

    worse = Candidate("conv1.weight", "reinit", 1.0, Probe(0.5, 0.8, 2.5, -27.94))
    found = _judged([worse], Seen(), [], [])  # type: ignore[arg-type]
    assert found.doubts == ("One round took back none of the loss; recovery may be slow.",)
    assert found.why[-1].endswith("and one round takes away nothing of that loss.")
    slow = Candidate("conv1.weight", "reinit", 1.0, Probe(0.5, 0.8, 2.5, 0.2))
    assert "only 20% of the loss" in _judged([slow], Seen(), [], []).doubts[0]  # type: ignore[arg-type]


def test_a_probe_sees_what_is_broken_and_what_comes_back() -> None:
    module, (x, y) = trained(), blobs()
    params = params_of(module)
    prober = Prober(Template(module, (4,)), params, Sample(x, y, lr=0.1))
    same = prober(params)
    assert same.distance == 0.0 and same.drop == pytest.approx(0.0, abs=1e-6) and same.back == 0.0
    turned = prober({**params, "0.weight": -params["0.weight"]})
    assert turned.loss > 1 and turned.distance > 0.1 and 0 < turned.back <= 1.2
    dead = prober({**params, "4.weight": torch.zeros_like(params["4.weight"])})
    assert dead.drop == 1.0, "answers that are all alike have nothing in common with the old ones"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (blobs(30), "30 rows are too few"),
        ((blobs()[0], blobs()[1][:70]), "as many labels as rows"),
        (blobs()[0], "a pair of tensors"),
        (5, "a pair of tensors"),
        ((blobs()[0], blobs()[1].float()), "Labels are whole numbers, one per row, not float32"),
        ((blobs()[0], torch.eye(9)[blobs()[1]]), r"one per row, not float32 of shape \(80, 9\)"),
        ((blobs()[0], blobs()[1] + 9), "but the model tells classes 0 to 3 apart"),
        ((blobs()[0], blobs()[1] - 1), "The labels go from -1 to 2"),
        ((blobs()[0] / 0, blobs()[1]), "not finite"),
        ((torch.zeros(80, 5), blobs()[1]), "does not accept a batch"),
    ],
)
def test_bad_data_is_one_sentence(data: Any, sentence: str) -> None:
    with pytest.raises(UnfedError, match=sentence):
        unfed.suggest(trained(), data)
    with pytest.raises(UnfedError, match="torch.nn.Module is needed"):
        unfed.suggest("model", data)  # type: ignore[arg-type]


def test_answers_that_are_no_logits_and_rounds_that_are_none_are_one_sentence() -> None:
    x, y = blobs()
    with pytest.raises(UnfedError, match=r"one row of logits for each row.* with shape \(40, 1\)"):
        unfed.suggest(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1)), (x, y))
    with pytest.raises(UnfedError, match=r"with shape \(40, 2, 3\)"):
        unfed.suggest(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), (torch.stack([x, x], 1), y))
    for wrong in ({"lr": 0.0}, {"lr": float("nan")}, {"batch": 0}):
        with pytest.raises(UnfedError, match="a rate above 0 and batches of 1 at least"):
            unfed.suggest(trained(), (x, y), **wrong)


def test_numbers_of_another_type_than_the_modules_are_taken_as_its_own() -> None:
    module, (x, y) = trained(), blobs()
    found = unfed.suggest(module, (x.double(), y.int()))
    assert found == unfed.suggest(module, (x, y))


def test_a_module_that_answers_with_a_dict_is_run_too() -> None:
    """And not guessed: torch.fx cannot follow it, because its way depends on data."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.b, self.a, self.head = nn.Linear(6, 6), nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            h = self.b(self.a(x).relu()).relu()
            return {"logits": self.head(h if h.sum() >= 0 else -h)}

    order = order_of(Named(), torch.randn(2, 4))
    assert not order.doubt and order.first == ("a.weight",) and order.last == ("head.weight",)


def test_the_command_scores_a_run_and_reads_the_graph_of_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    raw: dict[str, Any] = {
        "name": "tiny",
        "partition": {"clients": 2},
        "model": {"name": "cnn-tiny"},
        "training": {"rounds": 1, "batch": 64},
        "methods": {"run": []},
        "evaluation": {"attack": False, "samples": False},
        "device": "cpu",
    }
    run = Run.create(Config.parse(raw), tmp_path / "run")
    code, _, said = called(["suggest", "run"], monkeypatch, capsys)
    assert code == 2 and "\n" not in said.strip(), "nothing is trained yet"
    run.execute()
    before = sorted(tmp_path.rglob("*"))
    code, out, said = called(["suggest", "run", "--rules", "--json"], monkeypatch, capsys)
    assert code == 0 and sorted(tmp_path.rglob("*")) == before, "rules speak of no model, and write nothing"
    code, out, said = called(["suggest", "run", "--json"], monkeypatch, capsys)
    found = json.loads(out)
    assert code == 0 and {one["layer"] for one in found["ranked"]} == {"conv1.weight", "conv2.weight"}, said
    assert all(one["score"] is not None for one in found["ranked"])
    assert json.loads((tmp_path / "run/advice/0.json").read_text())["advice"] == found
    page = html.unescape((tmp_path / "run/report.html").read_text())
    assert f"Seed 0: <strong>Perturb {found['layer']} by {found['perturbation']}.</strong> {found['why'][0]}" in page
    code, out, _ = called(["suggest", "run", "--rules"], monkeypatch, capsys)
    assert code == 0 and "Perturb conv1.weight by reinit." in out and "In doubt: There was no data" in out
    run.folder.model_file(run.training_job(0)).unlink()
    assert run.info()["advice"] == [] and "Which layer to perturb" not in write_report(run).read_text()
    (tmp_path / "run/advice/0.json").write_text('{"schema": 1}')
    with pytest.raises(UnfedError, match="delete it, and ask again"):
        run.info()
    code, out, _ = called(["suggest", "demo"], monkeypatch, capsys)
    assert code == 0 and 'methods.not.layers=["conv1.weight"]' in out.replace("\n", "")
    code, _, said = called(["suggest", "reznet18"], monkeypatch, capsys)
    assert code == 2 and "Did you mean 'resnet18'" in said
    code, _, said = called(["suggest", "canary:run"], monkeypatch, capsys)
    assert code == 2 and "--allow-code" in said

"""Forgetting in an NVFlare job of others: its FedAvg over NVFlare's task board, and a client of three lines of NumPy.

Every site adds its own number to the weights, so what an average must be is known by hand.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

pytest.importorskip("nvflare.apis", reason="needs unfed[nvflare]; `make test-nvflare` runs these")

from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.abstract.learnable_persistor import LearnablePersistor
from nvflare.app_common.abstract.model import ModelLearnable, ModelLearnableKey, make_model_learnable
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.job_config.api import FedJob

from nvflare_sites import Board
from unfed.api import write_report
from unfed.cli.main import app as cli
from unfed.errors import UnfedWarning
from unfed.folder.folder import RunFolder
from unfed.measures.undo.measure import Effort
from unfed.nvflare import UnlearnFedAvg, noted, staying_rows
from unfed.remote.probes import Probes
from unfed.requests.entry import Job
from unfed.runs.probe import QUICK

pytestmark = [pytest.mark.nvflare, pytest.mark.filterwarnings("ignore::unfed.errors.UnfedWarning")]

LABELS = [0, 0, 1, 2]
TRAINED = {"w": np.array([1.0, -2.0], np.float32), "b": np.array([0.5], np.float32), "n": np.array(4)}
ADDS = {"site-1": 1.0, "site-2": 3.0, "site-3": 100.0}


class Persistor(LearnablePersistor):
    """Holds the model that training left, and what was saved."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[dict[str, Any]] = []

    def load(self, fl_ctx: FLContext) -> ModelLearnable:
        return make_model_learnable({name: value.copy() for name, value in TRAINED.items()}, {})

    def save(self, model: ModelLearnable, fl_ctx: FLContext) -> None:
        self.saved.append(dict(model[ModelLearnableKey.WEIGHTS]))


class Adds(Executor):
    """The clients of the job; `change` bends what a site sends."""

    def __init__(self, heeds: bool = True, change: Callable[[str, FLModel], Any] | None = None) -> None:
        super().__init__()
        self.heeds, self.change = heeds, change

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        received, site = FLModelUtils.from_shareable(shareable), str(fl_ctx.get_identity_name())
        params = {name: value + ADDS[site] for name, value in received.params.items()}
        reply = FLModel(params=params, metrics={"accuracy": 0.5}, meta={"NUM_STEPS_CURRENT_ROUND": 2})
        if self.heeds:
            staying_rows(received, LABELS)
            reply = noted(received, reply)
        if self.change:
            self.change(site, reply)
        return FLModelUtils.to_shareable(reply)


Forget = Callable[..., Board]


@pytest.fixture
def forget(tmp_path: Path) -> Iterator[Forget]:
    """Runs a job to its end: the arguments of UnlearnFedAvg, and the clients' executor."""
    made: list[Board] = []

    def run(
        executor: Executor | None = None, make: type[UnlearnFedAvg] = UnlearnFedAvg, sites: Any = ADDS, **own: Any
    ) -> Board:
        asked = {"exclude": ["site-3"], "negate": ["w"], "ledger": str(tmp_path / "ledger"), "num_rounds": 2, **own}
        board = Board(tmp_path / f"sites-{len(made)}", make(**asked), dict.fromkeys(sites))
        made.append(board)
        board.components["persistor"] = Persistor()
        with board.new_context() as fl_ctx:
            board.controller.start_controller(fl_ctx)
            board.executor = executor or Adds()
            board.controller.control_flow(board.abort, fl_ctx)
        return board

    yield run
    for board in made:
        board.close()


def saved(board: Board) -> dict[str, Any]:
    found: dict[str, Any] = board.components["persistor"].saved[-1]
    return found


def test_a_site_is_left_out_of_a_job_of_others_and_the_start_is_negated_once(forget: Forget, tmp_path: Path) -> None:
    board = forget()
    assert board.panics == []
    assert {site for site, _ in board.received} == {"site-1", "site-2"}
    # (1 + 3) / 2 = 2 in each of two rounds, on the negated w and on b as it was; the counter stays a whole number
    np.testing.assert_allclose(saved(board)["w"], [-1.0 + 4, 2.0 + 4])
    np.testing.assert_allclose(saved(board)["b"], [4.5])
    assert saved(board)["n"] == 8 and saved(board)["n"].dtype == np.int64
    folder = RunFolder(tmp_path / "ledger")
    (entry,) = folder.book().entries
    assert (entry.state, entry.method, entry.request.clients) == ("fulfilled", "not", ("site-3",))
    lines = [line for line in folder.lines() if line["method"] == "not"]
    assert [line["asked"] for line in lines] == [{"1": ["site-1", "site-2"]}, {"2": ["site-1", "site-2"]}]
    assert lines[0]["app"]["evaluate"] == {"accuracy": 0.5}  # what the sites say of the model that they got next
    np.testing.assert_allclose(folder.load_model(entry.job)["w"], saved(board)["w"])
    assert "site-3" in write_report(tmp_path / "ledger").read_text(encoding="utf-8")


def test_a_killed_job_goes_on_after_its_last_good_round_and_is_not_done_twice(forget: Forget) -> None:
    boards: list[Board] = []

    def abort(site: str, reply: FLModel) -> None:
        if len(boards[0].received) > 2:
            boards[0].abort.trigger(True)
            time.sleep(2)  # the round is not over when NVFlare looks at the signal

    class Held(UnlearnFedAvg):
        def start_controller(self, fl_ctx: FLContext) -> None:
            boards.append(fl_ctx.get_engine())
            super().start_controller(fl_ctx)

    forget(Adds(change=abort), Held)
    resumed = forget()
    assert len(resumed.received) == 2  # one round of two sites was left
    np.testing.assert_allclose(saved(resumed)["w"], [3.0, 6.0])  # as if it had not ended, and negated once
    again = forget()
    assert again.received == []
    np.testing.assert_allclose(saved(again)["w"], [3.0, 6.0])


def test_who_left_by_an_earlier_request_of_the_ledger_stays_out(forget: Forget) -> None:
    forget()
    board = forget(exclude=["site-2"], negate=[])
    assert board.panics == []
    assert {site for site, _ in board.received} == {"site-1"}


def test_a_site_that_does_not_exist_is_refused_with_those_that_do(forget: Forget, tmp_path: Path) -> None:
    board = forget(exclude=["site-9"])
    assert "There is no site 'site-9' in this job, where there are site-1, site-2 and site-3" in board.panics[0]
    assert board.received == [] and not (tmp_path / "ledger").exists()


def test_a_ledger_of_another_federation_or_another_framework_is_refused(forget: Forget, tmp_path: Path) -> None:
    forget()
    other = forget(sites=["north", "south"], exclude=["north"])
    assert "is the ledger of another federation, of site-1, site-2 and site-3" in other.panics[0]
    file = tmp_path / "ledger" / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "engine": "flower"}))
    assert "is a ledger of Flower nodes, and not of NVFlare sites; give ledger another folder" in forget().panics[0]
    assert other.received == []


def test_every_site_gone_is_refused_before_any_is_asked(forget: Forget) -> None:
    board = forget(exclude=["site-1", "site-2", "site-3"])
    assert "No site would be left to train" in board.panics[0] and board.received == []


def test_a_second_minus_sign_on_the_same_weights_is_refused(forget: Forget, tmp_path: Path) -> None:
    forget()

    class After(Persistor):
        def load(self, fl_ctx: FLContext) -> ModelLearnable:
            params = RunFolder(tmp_path / "ledger").load_model(Job(0, "client-site-3", "not"))
            return make_model_learnable({name: value.numpy() for name, value in params.items()}, {})

    class On(UnlearnFedAvg):
        def start_controller(self, fl_ctx: FLContext) -> None:
            fl_ctx.get_engine().components["persistor"] = After()
            super().start_controller(fl_ctx)

    board = forget(make=On, exclude=["site-2"])
    assert "changing 'w' in the same way once more turns that back" in board.panics[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: r.params.update(w=r.params["w"] * np.nan), "its update has NaN or infinite values in 'w'"),
        (lambda r: r.params.pop("b"), "its update has not the weights of the model"),
        (lambda r: r.params.update(w=np.zeros(3)), "its 'w' is not of the model's form"),
        (lambda r: r.meta.update(NUM_STEPS_CURRENT_ROUND=-1), "its weight is -1, which is not a positive number"),
    ],
)
def test_an_update_that_cannot_be_averaged_is_refused_and_named(
    forget: Forget, tmp_path: Path, change: Callable[[FLModel], Any], reason: str
) -> None:
    board = forget(Adds(change=lambda site, reply: change(reply) if site == "site-2" else None))
    assert board.panics == []
    np.testing.assert_allclose(saved(board)["b"], [2.5])  # site-1 alone, twice
    lines = [line for line in RunFolder(tmp_path / "ledger").lines() if line["method"] == "not"]
    assert [(one["client"], one["reason"]) for one in lines[0]["refused"]] == [("site-2", reason)]


def test_a_class_leaves_and_every_site_says_how_many_rows_it_left_out(forget: Forget, tmp_path: Path) -> None:
    board = forget(exclude=[], classes=[0])
    assert board.panics == []
    assert {site for site, _ in board.received} == {"site-1", "site-2", "site-3"}
    last = RunFolder(tmp_path / "ledger").lines()[-1]
    assert last["app"]["left_out"]["site-2"] == {"rows": {"0": 2}, "of": 4}


def test_a_script_that_does_not_leave_the_class_out_is_refused(forget: Forget) -> None:
    board = forget(Adds(heeds=False), exclude=[], classes=[0])
    assert "it does not say that it left class 0 out; let its script train on staying_rows" in board.panics[0]


def test_a_class_that_no_site_has_is_not_called_forgotten(forget: Forget, tmp_path: Path) -> None:
    board = forget(exclude=[], classes=[7])
    assert "No site that trained had a row of class 7" in board.panics[0]
    assert RunFolder(tmp_path / "ledger").book().entries[0].state == "denied"


NET = {"0.weight": (3, 2), "0.bias": (3,), "2.weight": (2, 3), "2.bias": (2,)}


class Net(nn.Sequential):
    """A model of the form of NET."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))


class Probing(UnlearnFedAvg):
    def probes(self) -> Probes:
        rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.5]]), torch.tensor([0, 1, 0, 1])
        return Probes(Net, retain=rows, forget=rows, effort=Effort(rounds=1, grid=QUICK))


@pytest.fixture
def probed(forget: Forget, monkeypatch: pytest.MonkeyPatch) -> Forget:
    """The same job with a model that the server can build, and probes of it."""
    arrays = {
        name: np.linspace(-1, 1, math.prod(shape), dtype=np.float32).reshape(shape) for name, shape in NET.items()
    }
    monkeypatch.setattr(sys.modules[__name__], "TRAINED", arrays)
    return partial(forget, make=Probing, negate=["0.weight"])


def said(*words: object) -> str:
    """What a command says, in one line."""
    return " ".join(CliRunner().invoke(cli, [*map(str, words)]).output.split())


def test_what_the_servers_probes_found_stands_in_the_report(probed: Forget, tmp_path: Path) -> None:
    assert probed().panics == []
    ledger = tmp_path / "ledger"
    assert "Report:" in said("report", ledger)
    assert "after the inverse alone" in (ledger / "report.html").read_text(encoding="utf-8")
    assert "`unfed report" in said("lineage", ledger, "--affected", "site-3")


def test_probes_that_fail_cost_no_model_and_those_of_another_model_are_refused_at_once(
    probed: Forget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Probes, "found", lambda *_: 1 / 0)
    assert probed().panics == []
    folder = RunFolder(tmp_path / "ledger")
    assert folder.book().entries[0].state == "fulfilled"
    assert folder.lines()[-1]["app"]["unmeasured"] == {"Probes": "division by zero"}
    monkeypatch.setattr(sys.modules[__name__], "TRAINED", {**TRAINED, "0.weight": np.zeros((2, 2), np.float32)})
    other = probed(ledger=str(tmp_path / "other"))
    assert "give Probes the app's own model" in other.panics[0] and other.received == []


def test_a_ledger_is_probed_by_its_server_alone_and_goes_on_with_its_job(forget: Forget, tmp_path: Path) -> None:
    forget()
    for command, reason in (
        ("probe", "it cannot be probed here; override probes() of UnlearnFedAvg before the next request."),
        ("resume", "go on with the same job with UnlearnFedAvg, with ledger= this folder"),
    ):
        done = CliRunner().invoke(cli, [command, str(tmp_path / "ledger")])
        assert reason in str(done.exception)


def test_status_names_the_request_and_its_rounds(forget: Forget, tmp_path: Path) -> None:
    forget()
    told = said("status", tmp_path / "ledger", "--request", "client-site-3")
    assert "0/client-site-3/not 2/2" in told and "fulfilled; it takes out client site-3" in told


def test_a_served_request_has_signed_evidence(forget: Forget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rfc8785", reason="needs unfed[trust]")
    forget()
    monkeypatch.chdir(tmp_path)
    assert "Wrote operator.key" in said("keys", "new", "operator")
    assert "Wrote bundle" in said("bundle", "ledger", "--key", "operator.key", "--out", "bundle")
    assert "site-3" in said("verify", "bundle", "--key", "operator.pub")


def test_negating_warns_that_it_can_be_undone(forget: Forget) -> None:
    with pytest.warns(UnfedWarning, match="Negating weights can be undone"):
        forget()


def test_an_exported_job_holds_every_argument(tmp_path: Path) -> None:
    job = FedJob(name="forget", min_clients=1)
    job.set_app_packages(["unfed"])
    asked: dict[str, Any] = {
        "exclude": ["site-3"],
        "negate": ["w"],
        "ledger": "/l",
        "classes": [2],
        "num_rounds": 7,
        "num_clients": 2,
    }
    job.to_server(UnlearnFedAvg(**asked, aggregation_weights={"site-1": 2.0}))
    job.to_clients(Adds())
    job.export_job(str(tmp_path))
    server = json.loads((tmp_path / "forget" / "app" / "config" / "config_fed_server.json").read_text())
    (flow,) = server["workflows"]
    assert flow["path"] == "unfed.nvflare.unlearn.UnlearnFedAvg"
    assert flow["args"] == {**asked, "aggregation_weights": {"site-1": 2.0}}


def test_the_lines_of_the_pages_run(tmp_path: Path) -> None:
    for page in ("nvflare.md", "for/nvflare.md"):
        text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
        for lines in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            received, sent = FLModel(params=TRAINED, meta={"unfed-forget-classes": [0]}), list[FLModel]()
            flare = SimpleNamespace(receive=lambda received=received: received, send=sent.append)
            names: dict[str, Any] = {"flare": flare, "y": LABELS, "reply": FLModel(params=TRAINED)}
            exec(lines.replace('"jobs"', repr(str(tmp_path))), names)
            if "controller" in names:
                assert names["controller"].exclude == ["site-3"] and names["controller"].num_rounds == 5
            elif "stays" in names:
                assert names["stays"].tolist() == [False, False, True, True] and "unfed-rows-left-out" in sent[0].meta
            else:
                assert (tmp_path / "forget" / "meta.json").exists()

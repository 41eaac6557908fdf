"""Every mistake in a config is one sentence with the key, what is allowed, and the nearest match."""

from pathlib import Path
from typing import Any

import pytest

from unfed.config.config import Config, presets
from unfed.errors import UnfedError
from unfed.methods import NoT


def test_defaults_are_a_whole_experiment() -> None:
    config = Config.parse({})
    assert config.data.name == "digits" and config.partition.clients == 10
    assert list(config.methods.build()) == ["not", "ft", "retrain"]


def test_every_preset_is_valid() -> None:
    for name in presets():
        Config.preset(name)


def test_a_config_comes_back_from_json_as_it_was() -> None:
    config = Config.preset("demo", ["methods.not.layers=['conv2']", "seed=[1, 2]"])
    assert Config.parse(config.to_json()) == config


def test_a_file_is_read_and_its_paths_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "ids.csv").write_text("client,position\n0,3\n1,4\n")
    (tmp_path / "c.toml").write_text('[data]\nroot = "images"\n[request]\nid = "x"\nsamples = "ids.csv"\n')
    config = Config.read(tmp_path / "c.toml")
    assert config.data.root == tmp_path / "images"
    assert config.requests()[0].samples == (("0", 3), ("1", 4))


def test_set_takes_toml_values_and_plain_strings() -> None:
    config = Config.parse({}, ["training.rounds=7", "data.name=digits", "seed=[3,4]", "poison.client=2", "name=a b"])
    assert config.training.rounds == 7 and config.seed == (3, 4) and config.name == "a b"
    assert config.poison is not None and config.poison.client == "2"


def test_a_method_can_stand_under_a_name_of_its_own() -> None:
    config = Config.parse({"methods": {"run": ["deep"], "deep": {"use": "not", "layers": ["conv2"]}}})
    assert config.methods.build() == {"deep": NoT(layers=("conv2",))}


def test_one_request_or_several() -> None:
    assert [r.id for r in Config.parse({"request": {"classes": [1]}}).requests()] == ["request-1"]
    several = Config.parse({"request": [{"id": "a", "clients": [1]}, {"id": "b", "fraction": 0.1}]})
    assert [r.kind for r in several.requests()] == ["client", "instance"]


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        ("trainig.rounds=3", "trainig is not known; the config has .*Did you mean 'training'"),
        ("training.round=3", "training.round is not known; training has .*Did you mean 'rounds'"),
        ("training.rounds=0", "training.rounds must be at least 1, not 0"),
        ("training.rounds=many", "training.rounds takes a whole number, not 'many'"),
        ("training.lr=-1", "training.lr"),
        ("training.lr=nan", "training.lr"),
        ("partition.scheme=dirichet", "partition.scheme = 'dirichet' is not allowed; use .*Did you mean 'dirichlet'"),
        ("partition.beta=0", "partition.beta must be more than 0, not 0"),
        ("training.schedule.knd=1", "training.schedule.knd is not known; training.schedule has"),
        ("training.schedule={kind='one-cycle', warmup=2}", "warmup is not for one-cycle, which rises by itself"),
        ("poison.clint=1", "poison.clint is not known; poison has .*Did you mean 'client'"),
        ("request.client=1", "request.0.client is not known.*Did you mean 'clients'"),
        ("device=gpu", "device = 'gpu' is not known; use auto, cpu, cuda"),
        ("seed=[]", "at least one number"),
        ("seed=[1,1]", "twice"),
        ("methods.run=['nott']", "The method 'nott' is not known; use .*Did you mean 'not'"),
        ("methods.not.layer=['x']", "methods.not.layer is not known; not has .*Did you mean 'layers'"),
        ("methods.ft.lr=1", "methods.ft.lr is not known; ft has no hyperparameters"),
        ("methods.not.include_bias=perhaps", "methods.not.include_bias is wrong"),
        ("methods.nto.layers=['x']", "The method 'nto' is not known"),
        ("methods.runs=['not']", "methods.runs takes a table"),
        ("training.rounds", "--set takes key.path=value"),
        ("training.rounds.x=1", "--set training.rounds.x=1: 'rounds' is a value, not a table"),
    ],
)
def test_a_mistake_is_named(sets: Any, says: str) -> None:
    with pytest.raises(UnfedError, match=says) as error:
        Config.parse({"training": {"rounds": 5}}, [sets])
    assert "\n" not in str(error.value)


def test_two_requests_with_one_id_are_refused() -> None:
    config = Config.parse({"request": [{"id": "a", "clients": [1]}, {"id": "a", "clients": [2]}]})
    with pytest.raises(UnfedError, match="Two requests have the id 'a'"):
        config.requests()


def test_a_file_that_is_not_there_or_not_toml(tmp_path: Path) -> None:
    with pytest.raises(UnfedError, match="cannot be read .*name a preset: .*demo"):
        Config.read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(UnfedError, match="not valid TOML"):
        Config.read(tmp_path / "bad.toml")
    with pytest.raises(UnfedError, match="There is no preset 'dmo'.*Did you mean 'demo'"):
        Config.preset("dmo")


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ({"name": "../elsewhere"}, "'../elsewhere'"),
        ({"name": "/tmp/elsewhere"}, "'/tmp/elsewhere'"),
        ({"name": "two\nlines"}, r"'two\\nlines'"),
        ({"request": {"id": "../../elsewhere", "clients": ["0"]}}, "request id '../../elsewhere'"),
        ({"methods": {"run": ["../x"], "../x": {"use": "not"}}}, "method name '../x'"),
        ({"methods": {"run": ["not"], "/tmp/x": {"use": "not"}}}, "method name '/tmp/x'"),
        ({"training": {"record": ["a/b"]}}, "method name 'a/b'"),
    ],
)
def test_a_name_that_becomes_a_file_stays_in_its_folder(raw: Any, name: Any) -> None:
    for read in (Config.parse, Config.kept):  # as a person writes it, and as a run folder gives it back
        with pytest.raises(UnfedError, match=f"The .*{name} is no (file|folder) name"):
            read(raw)
    assert Config.parse({"name": "Prüfung 3, β=0.1"}).name == "Prüfung 3, β=0.1"

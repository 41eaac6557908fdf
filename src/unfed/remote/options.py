"""The run config of a server: what it is asked to do, checked, as one value.

    mode            train, unlearn (an existing run or checkpoint), or both
    run-folder      where results go, an absolute path on the server's machine
    experiment.*    any key of an experiment config: experiment.training.rounds = 20
    forget-*        who or what leaves: forget-clients = "3", forget-classes = "1,2", forget-samples = "/path.csv"

It holds single values only, as Flower's run config does, so lists are written with commas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from unfed.config.config import Config, presets
from unfed.data import Request, SampleList
from unfed.errors import UnfedError, listed, nearest
from unfed.remote.messages import MOST_ROWS
from unfed.runs.description import request_id

CALLED = {"method": "methods", "id": "request-id", "out": "run-folder"}
"""Options that have another name in a run config than on the command line."""
PREFIX = "experiment."
Text = Annotated[str, BeforeValidator(lambda value: value if isinstance(value, bool) else str(value))]
"""Numbers may stand for it: a client named 3."""


def _absolute(path: str) -> str:
    if path and not Path(path).is_absolute():
        raise ValueError("must be a whole path: the server may run in another folder")
    return path


FilePath = Annotated[Text, AfterValidator(_absolute)]


class Options(BaseModel):
    """The run config, one field per key; a dash there is an underscore here."""

    model_config = ConfigDict(frozen=True, strict=True)

    mode: Literal["train", "unlearn", "both"] = "both"
    run_folder: FilePath = ""
    resume_from: FilePath = ""
    checkpoint: FilePath = ""
    """mode unlearn, a new folder: the model file to start from."""
    preset: Text = ""
    """A preset, or the absolute path of a TOML file on the server's machine, that experiment.* then changes."""
    forget_clients: Text = ""
    forget_classes: Text = ""
    forget_samples: FilePath = ""
    request_id: Text = ""
    deleted: bool = False
    """The leaver has deleted its data already; set by itself where the leaver is not connected."""
    deny: FilePath = ""
    """An earlier run folder, or a file with one client per line: who was forgotten there is not asked in a new run."""
    operator: FilePath = ""
    """The operator's private key, a file on the server's machine: the run keeps a log that it signs."""
    methods: Text = "not"
    until: Text = ""
    """mode unlearn: `recovered`, or a number of rounds; empty is the experiment's number of unlearning rounds."""
    min_nodes: int = Field(2, ge=1)
    wait_seconds: float = Field(120.0, gt=0)
    round_timeout: float = 600.0
    max_rows: int = Field(MOST_ROWS, ge=1)
    """The most rows that a node may say it holds; one that states more takes no part."""
    server_data: bool = True
    """Whether the server holds the experiment's data set, for its test part."""
    public: Text = ""
    """Unlabelled data at the server, for FUKD: package.module:function."""
    allow_code: bool = False
    """Whether code may be run that the experiment, the run folder or `public` names."""
    set: Text = ""
    """Changes on top of everything: key=value pairs, separated by semicolons."""
    experiment: Mapping[str, Any] = {}

    @staticmethod
    def of(values: Mapping[str, Any]) -> Options:
        """The run config, or the sentence that says which key is wrong."""
        known = {name.replace("_", "-"): name for name in Options.model_fields if name != "experiment"}
        inner = {key.removeprefix(PREFIX): value for key, value in values.items() if key.startswith(PREFIX)}
        own = {key: value for key, value in values.items() if not key.startswith(PREFIX)}
        if odd := next((key for key in own if key not in known), None):
            keys = [*known, f"{PREFIX}KEY"]
            raise UnfedError(f"The run config has no key {odd!r}; it has {listed(keys)}.{nearest(odd, known)}")
        try:
            found = Options(**{known[key]: value for key, value in own.items()}, experiment=inner)
        except ValidationError as error:
            first = error.errors()[0]
            key = str(first["loc"][0]).replace("_", "-")
            why = first["msg"].removeprefix("Value error, ").replace("Input should", "it should")
            raise UnfedError(f"{key} = {own[key]!r}: {why}.") from error
        if not found.resume_from and not found.run_folder:
            raise UnfedError("Say where results go: run-folder = '/a/whole/path', on the server's machine.")
        return found

    @property
    def folder(self) -> Path:
        """The run folder this is about."""
        return Path(self.resume_from or self.run_folder)

    @property
    def method_list(self) -> list[str]:
        return [name.strip() for name in self.methods.split(",") if name.strip()]

    def request(self) -> Request | None:
        """Who or what leaves; None where nothing does."""
        clients = [name.strip() for name in self.forget_clients.split(",") if name.strip()]
        classes = [_number("forget-classes", part) for part in self.forget_classes.split(",") if part.strip()]
        read = SampleList.read(self.forget_samples) if self.forget_samples else None
        samples, listed = (read.samples, read.sha256) if read else ((), None)
        given = {"clients": clients, "classes": classes, "samples": samples}
        count = sum(bool(value) for value in given.values())
        if count > 1:
            raise UnfedError("Give exactly one of forget-clients, forget-classes and forget-samples.")
        if count == 0:
            return None
        name = self.request_id or request_id(given)
        return Request(name, tuple(clients), tuple(classes), samples, deleted=self.deleted, listed=listed)

    def config(self) -> Config:
        """The experiment without its request: a preset or a file, changed by every experiment.KEY."""
        sets = [f"{key}={_toml(value)}" for key, value in self.experiment.items()]
        sets += [f"deny.run={json.dumps(self.deny)}"] if self.deny else []
        sets += [change.strip() for change in self.set.split(";") if change.strip()]
        base = ["checkpoint.rounds=1", f"methods.run={json.dumps(self.method_list)}"]
        if not self.preset:
            return Config.parse({}, [*base, *sets])
        read = Config.preset if self.preset in presets() else Config.read
        return read(self.preset, [*base, *sets])


def _toml(value: Any) -> str:
    """A value as `key=value` takes it: numbers and booleans as TOML, strings as they are."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _number(key: str, text: str) -> int:
    if not text.strip().isdigit():
        raise UnfedError(f"{key} takes class numbers with commas, not {text.strip()!r}.")
    return int(text)

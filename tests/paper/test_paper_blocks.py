"""The paper's blocks: each can be run as it is listed, fits a loan, and goes on from what was kept."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import Any

import paper_analyses as analyses
import paper_record as record
import pytest

from unfed import plugins
from unfed.config import revisions
from unfed.config.config import Config
from unfed.errors import UnfedError
from unfed.methods import State
from unfed.paper.items import Spec
from unfed.paper.items import items as paper_items
from unfed.paper.views import VIEWS, times
from unfed.paper.views.models import LONG
from unfed.runs.progress import Watch
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from unfed.runs.together import MethodTurn
from unfed.runs.world import World

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import paper_blocks
import paper_together
import reproduction
from paper_blocks import Block, Script

import differences

LISTED = {name: one for name, one in paper_blocks.blocks().items() if isinstance(one, Block)}
SCRIPTS = {name: one for name, one in paper_blocks.blocks().items() if isinstance(one, Script)}
CUT = {"training.rounds", "unlearning.rounds", "engine.precision", "evaluation.every", "evaluation.precision"}
"""What a block may change in an item: a page says it, and the question stays the same."""
CUT_LONG = f"methods.{LONG}.unlearning.rounds"


def shown_by(block: Block, item: str) -> list[tuple[Spec, list[str]]]:
    """The runs of an item that a block's results can stand for, with what differs."""
    kept = record.KeptResults(block.config.name, block.config.to_json(), (), {})
    found = [
        (spec, record.fitting([kept], spec.preset, spec.config().to_json()))
        for spec in paper_items()[item].runs["paper"]
    ]
    return [(spec, different) for spec, near in found for _, different in near]


@pytest.mark.parametrize("name", LISTED)
def test_a_block_makes_what_it_says_it_serves(name: str) -> None:
    block = LISTED[name]
    for item in block.items:
        ((spec, different),) = shown_by(block, item)
        assert {sentence.split()[0] for sentence in different} <= CUT | {CUT_LONG}, item
        asked = {*spec.config().methods.run}
        if paper_items()[item].view in ("gaps", "ratios"):
            assert asked <= {*block.methods}, f"{item} is not drawn where a method is missing"
        assert ({*asked, *reproduction.OURS} - {"retrain"}) & {*block.methods}, f"{item} is about other methods"
    for item in block.analyse:
        assert item in block.items and {*VIEWS[paper_items()[item].view].needs} <= {*block.methods}


def test_everything_that_was_kept_can_be_made_again_by_a_block() -> None:
    """Also what a key that was added since is at its default in."""
    for kept in record.all_in(reproduction.RESULTS):
        made = {
            f"{seed}/{request}/{label}"
            for block in LISTED.values()
            if block._same(kept.preset, kept.config)
            for seed in block.config.seed_list
            for request in block.config.request_ids()
            for label in (*block.methods, "before")
        }
        assert {job for job in kept.jobs if not job.endswith("/None/train")} <= made


def test_what_is_expected_of_a_block_is_what_the_page_charges_and_fits_a_loan() -> None:
    for block in LISTED.values():
        prices = reproduction.EPOCH if block.config.setting == "central" else reproduction.ROUND
        charged = prices[block.config.data.name, block.config.model.name]
        assert charged / 2 <= block.round <= charged, "alone on the machine, or stacked: never half as long"
        assert block.seconds(block.pieces) <= 26 * 60, "a machine is lent for thirty minutes"
        assert block.seconds([]) < block.seconds(block.methods[:1]), "what is kept already is not counted"


def test_shares_of_clients_are_cut_in_the_same_way() -> None:
    found = [shown_by(block, "figure-6") for block in LISTED.values() if "figure-6" in block.items]
    cut = {spec.name: tuple(different) for shown in found for spec, different in shown}
    assert {*cut} == {"CNN, 10 %", "CNN, 50 %", "CNN, 90 %"} and len({*cut.values()}) == 1


def test_the_long_retrain_takes_twice_the_rounds() -> None:
    (block,) = (block for block in LISTED.values() if "table-7" in block.items)
    assert block.config.methods.recovery(LONG).rounds == 2 * block.config.training.rounds


def test_a_record_that_was_cut_off_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = SCRIPTS["differences"]
    assert script.lines == len(differences.VARIANTS)
    rows = [{"variant": name, "preset": "cifar10-cnn", "rounds": 600} for name in differences.VARIANTS]
    record = tmp_path / "2026-11-17-differences-cuda.jsonl"
    with monkeypatch.context() as patched:
        patched.setattr("paper_blocks.RECORDS", tmp_path)
        assert script.left(tmp_path, tmp_path) == ["its record"]
        record.write_text("".join(json.dumps(row) + "\n" for row in rows[:5]))
        assert script.left(tmp_path, tmp_path) == ["7 of 12 lines of its record"]
        (tmp_path / "there").mkdir()
        (tmp_path / "there" / record.name).write_text("".join(json.dumps(row) + "\n" for row in rows[3:10]))
        assert script.left(tmp_path, tmp_path / "there") == ["2 of 12 lines of its record"], "two machines, each a part"
    assert differences.tried([tmp_path], "differences", ("cifar10-cnn", 600, "cuda")) == {*[*differences.VARIANTS][:5]}
    assert differences.tried([tmp_path], "differences", ("cifar10-cnn", 300, "cuda")) == set()
    record.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert script.left(tmp_path, tmp_path) == []


def test_the_scripts_about_differences_try_what_their_records_are_to_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, str, int]] = []

    def answered(wanted: Sequence[differences.Asked], *rest: object) -> Iterator[tuple[Any, None, str]]:
        made.extend((f"DAY-{one.record}-cuda.jsonl", one.variant, one.rounds) for one in wanted)
        yield from ((one, None, "not tried") for one in wanted)

    monkeypatch.setattr(differences, "side_by_side", answered)
    for name, script in (("differences", SCRIPTS["differences"]), ("differences-long", SCRIPTS["differences-long"])):
        (command,) = script.commands
        words = [word.format(left=600, records=tmp_path) for word in shlex.split(command)]
        made.clear()
        assert differences.main(words[1:-1]) == 0, "without the records of the repository"
        assert words[-2:] == [str(tmp_path), "benchmarks/records"]
        own = [one for one in made if fnmatch(one[0], script.record)]
        told = (("as the preset", 4000), ("pad-crop 4", 2000), ("no validation rows", 2000))
        long = [("DAY-differences-long-cuda.jsonl", *one) for one in told]
        short = [("DAY-differences-cuda.jsonl", variant, 600) for variant in differences.VARIANTS]
        assert own == (short if name == "differences" else long) and len(own) == script.lines
        assert made[:3] == long, "what takes longest begins first, and is another script's whole record"


def test_what_a_script_shows_beside_its_run_was_kept_of_the_same_config_and_seed() -> None:
    run, shown = map(shlex.split, SCRIPTS["readings-federaser"].commands)
    told = dict(pairwise(shown))
    sets = [run[run.index("--set") + 1]]
    config = Config.read(reproduction.ROOT / run[3], sets)
    kept = record.read(reproduction.ROOT / told["--kept"])
    assert record.differences(kept.config, config.to_json()) == [] and config.seed_list == (0,)
    (request,) = config.request_ids()
    assert {f"0/{request}/{label}" for label in told["--of"].split(",")} <= {*kept.jobs}


def test_scripts_name_files_that_are_there_and_configs_that_can_be_read() -> None:
    for script in SCRIPTS.values():
        for words in map(str.split, script.commands):
            file = reproduction.ROOT / (words[3] if words[0] == "-m" else words[0])
            assert file.exists()
            if file.suffix == ".toml":
                with plugins.allow_code():
                    assert Config.read(file).data.name == script.data


TINY = """
[settings]
tiny = ["seed=0", "training.rounds=2", "unlearning.rounds=2", "evaluation.every=2", "evaluation.attack=false"]

[[block]]
name = "tiny-stack"
items = ["table-7", "figure-3"]
preset = "digits-cnn"
base = "tiny"
set = ['methods.retrain-long={use="retrain", unlearning={rounds=4}}']
methods = ["retrain", "not", "ft", "retrain-long", "pgd"]
together = true
analyse = { table-7 = {}, figure-3 = {} }
round = 0.1

[[block]]
name = "tiny-class"
items = ["table-3"]
preset = "digits-cnn"
base = "tiny"
set = ['request={id="class-0", classes=[0]}']
methods = ["retrain", "not"]
round = 0.1

[[block]]
name = "tiny-cifar"
seeds = [3, 4]
items = ["table-1"]
preset = "cifar10-cnn"
methods = ["not"]
round = 0.1

[[script]]
name = "tiny-script"
about = "what is printed"
data = "digits"
commands = ["-c 'print(1)'", '''-c "import os; print(os.environ['COMMIT'], '{out}', os.environ['OUT'])"''']
record = "*-tiny.md"
seconds = 60

[[script]]
name = "tiny-failure"
about = "what fails"
data = "digits"
commands = ["-c 'raise SystemExit(3)'", "-c 'print(2)'"]
record = "*-failure.md"
seconds = 60
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "blocks.toml").write_text(TINY)
    monkeypatch.setattr(paper_blocks, "FILE", tmp_path / "blocks.toml")
    monkeypatch.delenv("UNFED_DATA", raising=False)
    monkeypatch.setattr(times, "_noise", lambda *_: "not measured: it takes long, and a kept analysis has it")
    return tmp_path


def run(folder: Path, *names: str, out: str = "runs") -> int:
    where = ["--out", str(folder / out), "--results", str(folder / "kept"), "--commit", "abc"]
    code: int = reproduction.told(["blocks", *names, *where])
    return code


def labels(folder: Path) -> set[str]:
    return {job.rpartition("/")[2] for kept in record.all_in(folder / "kept") for job in kept.jobs}


def test_a_block_runs_its_methods_then_its_analyses_of_which_one_that_fails_costs_no_other(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = analyses.measured

    def broken(item: object, *rest: object) -> analyses.KeptAnalysis:
        if getattr(item, "id", "") == "table-7":
            raise RuntimeError("out of memory")
        return measured(item, *rest)

    built = list[object]()

    def counted(*asked: object, **named: object) -> World:
        built.append(asked)
        return simulated(*asked, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(analyses, "measured", broken)
        for place in ("unfed.runs.run.simulated", "unfed.runs.simulated.simulated"):
            patched.setattr(place, counted)
        assert run(tiny, "tiny-stack") == 1
    assert len(built) == 1, "what was loaded and compiled for the methods serves the analyses"
    said = capsys.readouterr().out
    assert "table-7: failed: RuntimeError: out of memory" in said and "tiny-stack: missing: table-7" in said
    assert run(tiny, "tiny-stack", "tiny-class") == 0
    said = capsys.readouterr().out
    assert "tiny-stack: nothing is missing" in said and "tiny-class: nothing is missing" in said
    assert f"θ* of {tiny / 'runs' / 'tiny-stack' / 'train'}: taken over" in said, "the second differs in who leaves"
    assert labels(tiny) == {"train", "before", "retrain", "not", "ft", "retrain-long", "pgd"}
    found = {kept.item: kept for kept in analyses.all_in(tiny / "kept")}
    assert {*found} == {"table-7", "figure-3"}
    assert found["table-7"].numbers["said"] == [
        "digits, CNN: θ*_long is Retrain after 4 rounds, Retrain itself after 2."
    ]
    reproduction.told(["blocks", "--results", str(tiny / "kept")])
    listed = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert " partial: " in listed["tiny-stack"] and " not run " in listed["tiny-cifar-seed-4"]
    before = sorted(path.stat().st_mtime_ns for path in (tiny / "kept").rglob("*.json"))
    assert run(tiny, "tiny-stack", "tiny-class") == 0
    assert "tiny-class: done already" in capsys.readouterr().out
    assert before == sorted(path.stat().st_mtime_ns for path in (tiny / "kept").rglob("*.json"))


def test_on_another_machine_only_what_was_not_kept_is_run(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tiny, "tiny-class") == 0
    (path,) = (tiny / "kept").glob("*.json")
    kept = record.read(path)
    path.unlink()
    jobs = {job: columns for job, columns in kept.jobs.items() if not job.endswith("/not")}
    made = tuple({**about, "jobs": sorted(jobs)} for about in kept.made)
    record.write(record.KeptResults(kept.preset, kept.config, made, jobs), tiny / "kept")
    shutil.rmtree(tiny / "runs")
    unlearnt: list[str] = []
    unlearn = Run.unlearn

    def seen(self: Run, turn: MethodTurn, watch: Watch) -> State:
        unlearnt.append(turn.label)
        return unlearn(self, turn, watch)

    monkeypatch.setattr(Run, "unlearn", seen)
    assert run(tiny, "tiny-class", out="elsewhere") == 0
    assert unlearnt == ["not"] and "not" in labels(tiny)
    assert "tiny-class: not; about" in capsys.readouterr().out


def test_a_method_that_was_revised_is_left_to_run_and_no_other_is(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tiny, "tiny-class") == 0
    monkeypatch.setitem(revisions.METHODS, "not", 99)
    capsys.readouterr()
    reproduction.told(["blocks", "--results", str(tiny / "kept")])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("tiny-class "))
    assert " left: not (0 minutes) " in line
    assert run(tiny, "tiny-class") == 2, "what is finished there was made by the earlier one"
    said = capsys.readouterr().err
    assert f"`not` revised since {tiny / 'runs' / 'tiny-class'} was made; move it away, or give --out a new" in said
    assert run(tiny, "tiny-class", out="elsewhere") == 0
    assert "tiny-class: nothing is missing" in capsys.readouterr().out
    (kept,) = record.all_in(tiny / "kept")
    by_label = {job.rpartition("/")[2]: about["revisions"] for about in kept.made for job in about["jobs"]}
    assert by_label["not"]["not"] == 99 and by_label["retrain"]["not"] == 1, "Retrain's row is the one that was there"
    assert record.current(kept) == kept


def test_side_by_side_a_folder_of_a_method_that_was_revised_is_refused(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config.preset("digits-cnn", ["seed=0", 'methods.run=["not","ft"]'])
    own = {label: Config.preset("digits-cnn", ["seed=0", f'methods.run=["{label}"]']) for label in ("not", "ft")}
    for label in own:
        Run.create(own[label], tiny / "runs" / label)
    base = Run.create(config, tiny / "runs" / "train")
    monkeypatch.setitem(revisions.METHODS, "not", 99)
    world = base.world(0)
    assert paper_together._opened(config, tiny / "runs" / "train").config == config, "θ* does not depend on it"
    assert paper_together._opened(own["ft"], tiny / "runs" / "ft", world).labels == ["ft"]
    with pytest.raises(UnfedError, match="`not` revised since .*/runs/not was made"):
        paper_together._opened(own["not"], tiny / "runs" / "not", world)


def test_for_an_analysis_that_is_left_only_the_methods_it_takes_are_run_again(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[str]] = []

    def stacked(whole: Config, configs: dict[str, Config], *rest: object) -> int:
        asked.append({*configs})
        return 130

    monkeypatch.setattr(paper_blocks, "together", stacked)
    monkeypatch.setattr(Block, "_methods_left", lambda self, results: [])
    for left in ("figure-3", "table-7"):
        monkeypatch.setattr(Block, "_analyses_left", lambda self, results, left=left: [left])
        assert run(tiny, "tiny-stack") == 130
    assert asked == [{"retrain", "not", "ft"}, {"retrain", "not", "ft", "retrain-long"}]


def test_a_block_whose_time_is_spent_says_what_is_missing_and_goes_on(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ["--out", str(tiny / "runs"), "--results", str(tiny / "kept"), "--commit", "abc"]
    assert reproduction.told(["blocks", "tiny-class", "tiny-stack", *where, "--budget", "0s"]) == 130
    said = capsys.readouterr().out
    assert "tiny-class: missing: retrain, not" in said and "tiny-stack: missing: retrain, not, ft," in said
    assert not (tiny / "runs" / "tiny-stack").exists(), "what comes after does not begin"
    assert run(tiny, "tiny-class") == 0


def test_what_cannot_be_analysed_or_stacked_is_found_before_anything_is_trained(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[int] = []

    def counted(self: Run, seed: int, watch: Watch) -> None:
        trained.append(seed)

    monkeypatch.setattr(Run, "_train", counted)
    for number, (wrong, says) in enumerate((
        ("methods.not.perturbation=zero", "compares plain negation"),
        ("engine.name=sequential", "Only the batched engine stacks clients"),
    )):  # fmt: skip
        where = ["--out", str(tiny / f"runs-{number}"), "--results", str(tiny / "kept"), "--commit", "abc"]
        assert reproduction.told(["blocks", "tiny-stack", *where, "--set", wrong]) == 2
        assert says in capsys.readouterr().err and not trained


def test_a_script_keeps_its_record_beside_the_results_and_not_among_them(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tiny, "tiny-script") == 0
    (path,) = (tiny / "kept" / "records").glob("*-tiny.md")
    assert path.read_text() == f"abc {tiny / 'runs' / 'tiny-script'} {tiny / 'kept' / 'records'}\n"
    assert "tiny-script: nothing is missing" in capsys.readouterr().out and record.all_in(tiny / "kept") == []
    assert run(tiny, "tiny-failure") == 3
    assert "tiny-failure: missing: its record" in capsys.readouterr().out


def test_what_a_block_cannot_do_is_said_before_anything_begins(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tiny, "tiny-clas") == 2
    assert "There is no block 'tiny-clas'" in (said := capsys.readouterr().err) and "'tiny-class'?" in said
    assert reproduction.told(["blocks", "tiny-class"]) == 2
    assert "give one with --out" in capsys.readouterr().err
    assert run(tiny, "tiny-class", "tiny-cifar-seed-3") == 2
    assert "The data set 'cifar10' needs a data root" in capsys.readouterr().err
    monkeypatch.setattr(reproduction, "ROOT", tiny)
    monkeypatch.delenv("COMMIT", raising=False)
    assert reproduction.told(["blocks", "tiny-class", "--out", str(tiny / "runs")]) == 2
    assert capsys.readouterr().err == "error: This copy has no history that names its commit; give --commit.\n"
    assert not (tiny / "runs").exists() and not (tiny / "kept").exists()


def test_the_tables_of_speeds_are_those_that_were_recorded() -> None:
    lines = (reproduction.ROOT / "benchmarks/records/2026-11-19-alike-cuda.jsonl").read_text("utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["clients"] == 10]
    speeds = {(row["name"], row["precision"]): f"{row['images_per_second']:,}" for row in rows}
    readme, page = (
        (reproduction.ROOT / name).read_text(encoding="utf-8").replace("**", "")
        for name in ("README.md", "docs/performance.md")
    )
    assert len(speeds) == 8
    for precision, shown in (("float32", "float32 (TF32)"), ("bf16", "bf16")):
        row = " | ".join(speeds[name, precision] for name in ("plain loop", "compiled loop", "pfl", "unfed"))
        assert f"| {shown} | {row} |" in readme
    for name, shown in (
        ("plain loop", "data on the GPU"),
        ("compiled loop", "compile`"),
        ("pfl", "0.6.0"),
        ("unfed", "unfed"),
    ):
        assert f"{shown} | {speeds[name, 'float32']} | {speeds[name, 'bf16']} |" in page
    for precision, sentence in (
        ("float32", "{:.0f} times as fast as the fastest of three"),
        ("bf16", "{:.0f} times in bf16"),
    ):
        speed = {row["name"]: row["images_per_second"] for row in rows if row["precision"] == precision}
        assert sentence.format(speed.pop("unfed") / max(speed.values())) in page
    reached = [row["accuracy"] for row in rows]
    assert f"within {max(reached) - min(reached):.1f} points" in page


def test_what_speed_says_of_table_1_as_a_stack_is_what_was_recorded() -> None:
    speed = (reproduction.ROOT / "docs/performance.md").read_text(encoding="utf-8")
    timed = json.loads((reproduction.ROOT / "benchmarks/records/2026-11-17-table-1-stack-cuda.json").read_text())
    assert (
        timed["whole_process_seconds"] <= 12 * 60 and f"{timed['whole_process_seconds']:.0f} s for the whole" in speed
    )
    kept = json.loads((reproduction.ROOT / timed["one_by_one"]).read_text())["jobs"]
    names = {"retain": "Retain", "forget": "Forget", "test": "Test", "mia": "MIA"}
    furthest = {
        shown: max(
            abs(row[name] - kept[f"0/client-0-leaves/{row['method']}"][name][-1]) for row in timed["last_rounds"]
        )
        for name, shown in names.items()
    }
    told = speed[speed.index("the same seed run one by one") :]
    assert f"Retain lies further than {furthest.pop('Retain'):.2f} points" in told
    assert all(f"{shown} {apart:.2f}" in told for shown, apart in furthest.items())

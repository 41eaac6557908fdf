"""files.py: a file is negated exactly as a model would be, in constant memory, whole or not at all."""

from __future__ import annotations

import json
import shlex
import tracemalloc
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file
from torch import Tensor, nn

from command_line import called
from unfed import storage
from unfed.errors import UnfedError
from unfed.model import files, networks, perturb
from unfed.model.layers import choose
from unfed.model.params import params_of

quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def tiny(name: str = "cnn-tiny-bn") -> nn.Module:
    return networks.build(name, shape=(1, 8, 8), classes=10, seed=0)


def write(path: Path, params: dict[str, Tensor], **metadata: str) -> Path:
    save_file(params, path, metadata)
    return path


def checkpoint(path: Path, model: nn.Module) -> Path:
    params = params_of(model)
    return write(path, params, order=json.dumps(list(params)), maker="test")


def metadata_of(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        return dict(file.metadata())


def bits(tensor: Tensor) -> Tensor:
    """Equality of bits, so that -0.0 and NaN count."""
    return tensor.contiguous().flatten().view(torch.uint8)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[n].dtype == other[n].dtype and one[n].shape == other[n].shape and torch.equal(bits(one[n]), bits(other[n]))
        for n in one
    )


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("addresses", [["first"], [0, "conv2"], ["conv+dense<=4"], ["conv1[1:3]", "head.linear.bias"]])
@pytest.mark.parametrize("include_bias", [False, True])
def test_negating_a_file_is_negating_the_model(tmp_path: Path, addresses: list[str | int], include_bias: bool) -> None:
    model = tiny()
    if include_bias:
        addresses = [a for a in addresses if a != "head.linear.bias"]
    source, target = checkpoint(tmp_path / "a.safetensors", model), tmp_path / "b.safetensors"
    expected = perturb.negate(params_of(model), choose(model, addresses, include_bias))
    chosen = files.negate_file(source, target, addresses, include_bias)
    assert same(load_file(target), expected)
    assert {c.name for c in chosen} == {c.name for c in choose(model, addresses, include_bias)}
    assert chosen == files.choose_in_file(source, addresses, include_bias)


@quick
@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5), st.sampled_from(FLOATS)), min_size=1, max_size=5),
    st.integers(0, 2**31),
    st.data(),
)
def test_negating_a_file_is_in_memory_negation_bit_for_bit(
    tmp_path: Path, tensors: list[tuple[int, int, torch.dtype]], seed: int, data: st.DataObject
) -> None:
    generator = torch.Generator().manual_seed(seed)
    params = {f"t{i}": torch.randn(h, w, generator=generator).to(d) for i, (h, w, d) in enumerate(tensors)}
    params["count"] = torch.tensor([1, 2, 3])
    for tensor in params.values():
        tensor.flatten()[:1].fill_(0)
    chosen = data.draw(st.lists(st.sampled_from([n for n in params if n != "count"]), min_size=1, unique=True))
    source, target = write(tmp_path / "a.safetensors", params), tmp_path / "b.safetensors"
    choices = files.negate_file(source, target, chosen)
    assert same(load_file(target), perturb.negate(params, choices))
    files.negate_file(target, tmp_path / "c.safetensors", chosen)
    assert same(load_file(tmp_path / "c.safetensors"), params), "twice is identity"


def test_not_a_number_and_infinity_change_their_sign_only(tmp_path: Path) -> None:
    params = {"w": torch.tensor([[torch.nan, torch.inf, -torch.inf, 0.0, 1e-45]])}
    files.negate_file(write(tmp_path / "a.safetensors", params), tmp_path / "b.safetensors", ["w"])
    after = load_file(tmp_path / "b.safetensors")["w"]
    assert torch.equal(
        after.view(torch.int32) ^ params["w"].view(torch.int32), torch.full((1, 5), -(2**31), dtype=torch.int32)
    )


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    params = {"big.weight": torch.ones(16 << 10, 512), "rest": torch.ones(8 << 10, 1024)}
    source, target = write(tmp_path / "a.safetensors", params), tmp_path / "b.safetensors"
    assert source.stat().st_size > 64 << 20
    tracemalloc.start()
    try:
        files.negate_file(source, target, ["big.weight[3:9000]"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 << 20
    after = load_file(target)["big.weight"]
    assert (after[3:9000] == -1).all() and (after[:3] == 1).all() and (after[9000:] == 1).all()


def test_metadata_is_kept_and_every_negation_is_noted(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "a.safetensors", tiny())
    files.negate_file(source, tmp_path / "b.safetensors", ["first"])
    files.negate_file(tmp_path / "b.safetensors", tmp_path / "c.safetensors", ["conv2[0:1]"])
    metadata = metadata_of(tmp_path / "c.safetensors")
    note = json.loads(metadata.pop("unfed.negated"))
    assert metadata == metadata_of(source)
    assert [(n["name"], n["rows"]) for n in note] == [("conv1.weight", None), ("conv2.weight", [0, 1])]
    assert "judged by name and shape" in note[0]["why"]


def test_a_private_model_stays_private_and_a_shared_one_shared(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2, 2)}, tmp_path / "a.pt")
    for mode in (0o600, 0o640):
        (tmp_path / "a.pt").chmod(mode)
        files.convert_file(tmp_path / "a.pt", tmp_path / "a.safetensors")
        files.negate_file(tmp_path / "a.safetensors", tmp_path / "b.safetensors", ["w"])
        assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == mode
        assert (tmp_path / "b.safetensors").stat().st_mode & 0o777 == mode


def test_the_command_that_is_named_for_it_lists_every_name_also_where_none_is_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    storage.save(Path("FILE"), {"scale": torch.ones(3), "shift": torch.ones(3)}, {})
    for layers in ("first", "conv9", "conv", "7"):
        code, _, said = called(["negate", "FILE", "--layers", layers, "--dry-run"], monkeypatch, capsys)
        assert code == 2, said
        code, out, said = called(shlex.split(said.split("`")[1])[1:], monkeypatch, capsys)
        assert code == 0 and "scale" in out and "shift" in out, said


def test_a_file_without_an_order_can_be_negated_by_name_only(tmp_path: Path) -> None:
    source = write(tmp_path / "a.safetensors", params_of(tiny()))
    with pytest.raises(UnfedError, match=r"name the tensor instead: conv1\.weight"):
        files.negate_file(source, tmp_path / "b.safetensors", ["first"])
    files.negate_file(source, tmp_path / "b.safetensors", ["conv1"])
    assert listing(tmp_path) == ["a.safetensors", "b.safetensors"]


def test_a_header_of_any_length_is_read(tmp_path: Path) -> None:
    seen = set()
    for extra in range(560, 600, 8):  # 640 = b"\\x80\\x02...", which is also how an old pickle begins
        path = write(tmp_path / "a.safetensors", {"w": torch.ones(1, 1)}, note="x" * (extra - 40))
        seen.add(path.read_bytes()[:2])
        assert [choice.name for choice in files.choose_in_file(path, ["w"])] == ["w"]
    assert b"\x80\x02" in seen


def test_a_crash_in_the_middle_leaves_no_file_and_an_old_target_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = checkpoint(tmp_path / "a.safetensors", tiny()), tmp_path / "b.safetensors"

    def crashing(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "_turn_signs", crashing)
    with pytest.raises(KeyboardInterrupt):
        files.negate_file(source, target, ["first"])
    assert listing(tmp_path) == ["a.safetensors"]
    target.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        files.negate_file(source, target, ["first"])
    assert target.read_bytes() == b"old"
    assert listing(tmp_path) == ["a.safetensors", "b.safetensors"]


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = checkpoint(tmp_path / "a.safetensors", tiny()), tmp_path / "b.safetensors"

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "sync", full)
    with pytest.raises(UnfedError, match=r"cannot be written.*No space left on device"):
        files.negate_file(source, target, ["first"])
    assert listing(tmp_path) == ["a.safetensors"]


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "a.safetensors", {"w": torch.ones(64, 4)})
    read = files._read_header

    def then_cut(path: Path) -> files._Header:
        header = read(path)
        path.write_bytes(path.read_bytes()[:-16])
        return header

    monkeypatch.setattr(files, "_read_header", then_cut)
    with pytest.raises(UnfedError, match="changed while it was read"):
        files.negate_file(source, tmp_path / "b.safetensors", ["w"])
    assert listing(tmp_path) == ["a.safetensors"]


def test_what_cannot_be_negated_is_refused_in_one_sentence_without_a_target(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "a.safetensors", tiny())
    integers = write(tmp_path / "int.safetensors", {"steps": torch.ones(2, 2, dtype=torch.int64)})
    (tmp_path / "link.safetensors").symlink_to(source)
    before = listing(tmp_path)
    for from_, to, addresses, sentence in [
        (source, source, ["first"], "same file"),
        (source, tmp_path / "link.safetensors", ["first"], "same file"),
        (source, tmp_path / "x.safetensors", [], "Nothing was chosen"),
        (source, tmp_path / "no" / "x.safetensors", ["first"], "folder .* does not exist"),
        (source, tmp_path, ["first"], "is a folder, and no file is written in its place"),
        (source, tmp_path / "x.safetensors", ["conv1.wieght"], "Did you mean 'conv1.weight'"),
        (source, tmp_path / "x.safetensors", ["norm1.running_mean"], "is a buffer"),
        (integers, tmp_path / "x.safetensors", ["steps"], "stored as I64 and has no sign bit"),
        (tmp_path / "gone", tmp_path / "x.safetensors", ["first"], "cannot be read .*No such file"),
    ]:
        with pytest.raises(UnfedError, match=sentence):
            files.negate_file(from_, to, addresses)
    assert listing(tmp_path) == before


def raw(header: object, data: bytes = b"\0" * 8) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


BROKEN = "is no whole safetensors file .*; copy it again"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", BROKEN),
        (b"abc", BROKEN),
        (b"hello, this is text", BROKEN),
        ((500).to_bytes(8, "little") + b"{}", BROKEN),
        (raw(b"{not json"), BROKEN),
        (raw(b"[]"), BROKEN),
        (raw({"__metadata__": {"a": 1}}), BROKEN),
        (raw({"__metadata__": [1]}), BROKEN),
        (raw({"w": {"dtype": "F32"}}), BROKEN),
        (raw(entry(dtype=1)), BROKEN),
        (raw(entry(shape=[-2])), BROKEN),
        (raw(entry(offsets=[8, 0])), BROKEN),
        (raw(b"[" * 100_000), BROKEN),
        (raw(entry(shape=[3])), BROKEN),
        (raw(entry(offsets=[4, 12])), BROKEN),
        (raw(entry(), b"\0" * 7), BROKEN),
        (raw(entry(), b"\0" * 9), BROKEN),
        (raw(entry() | {"__metadata__": {"order": "w"}}), "'order' of .* cannot be read"),
        (raw(entry() | {"__metadata__": {"order": '["v"]'}}), "`order` metadata does not list"),
        (raw(entry() | {"__metadata__": {"tied": '{"v": "w"}'}}), "'tied' of .* names tensors that it does not hold"),
        (raw(entry() | {"__metadata__": {"tied": "{"}}), "'tied' of .* cannot be read"),
        (raw(entry() | {"__metadata__": {"unfed.negated": "yes"}}), "'unfed.negated' of .* cannot be read"),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    source = tmp_path / "a.safetensors"
    source.write_bytes(content)
    with pytest.raises(UnfedError, match=sentence):
        files.negate_file(source, tmp_path / "b.safetensors", ["w"])
    assert listing(tmp_path) == ["a.safetensors"]


def test_a_pytorch_file_is_told_apart(tmp_path: Path) -> None:
    for zipped in (True, False):
        torch.save(tiny().state_dict(), tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
        with pytest.raises(UnfedError, match="is a PyTorch file, not safetensors; convert it first"):
            files.choose_in_file(tmp_path / "a.pt", ["first"])


# Converting


@pytest.mark.parametrize("wrap", [dict, lambda s: {"state_dict": s, "epoch": 3}, lambda s: {"model": s}])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_state_dict_is_converted_with_its_order(tmp_path: Path, wrap: object, zipped: bool) -> None:
    state = tiny().state_dict()
    torch.save(wrap(state), tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)  # type: ignore[operator]
    files.convert_file(tmp_path / "a.pt", tmp_path / "a.safetensors")
    assert same(load_file(tmp_path / "a.safetensors"), dict(state))
    assert json.loads(metadata_of(tmp_path / "a.safetensors")["order"]) == list(state)
    files.negate_file(tmp_path / "a.safetensors", tmp_path / "b.safetensors", ["first"])
    assert torch.equal(load_file(tmp_path / "b.safetensors")["conv1.weight"], -state["conv1.weight"])
    assert listing(tmp_path) == ["a.pt", "a.safetensors", "b.safetensors"]


def test_the_prefix_of_dataparallel_is_taken_off_when_all_names_have_it(tmp_path: Path) -> None:
    state = {"module.a.weight": torch.ones(2, 2), "module.b": torch.ones(2)}
    torch.save(OrderedDict(state), tmp_path / "a.pt")
    files.convert_file(tmp_path / "a.pt", tmp_path / "a.safetensors")
    assert set(load_file(tmp_path / "a.safetensors")) == {"a.weight", "b"}
    torch.save(state | {"c": torch.ones(1)}, tmp_path / "b.pt")
    files.convert_file(tmp_path / "b.pt", tmp_path / "b.safetensors")
    assert set(load_file(tmp_path / "b.safetensors")) == {*state, "c"}


def test_tied_and_overlapping_tensors_are_written_apart_and_tied_ones_negated_together(tmp_path: Path) -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    state = {"embedding.weight": weight, "turned": weight.T, "row": weight[0], "decoder.weight": weight}
    torch.save(state, tmp_path / "a.pt")
    files.convert_file(tmp_path / "a.pt", tmp_path / "a.safetensors")
    assert same(load_file(tmp_path / "a.safetensors"), state)
    assert json.loads(metadata_of(tmp_path / "a.safetensors")["tied"]) == {"decoder.weight": "embedding.weight"}
    files.negate_file(tmp_path / "a.safetensors", tmp_path / "b.safetensors", ["decoder"])
    negated = {name: -value if name.endswith("weight") else value for name, value in state.items()}
    assert same(load_file(tmp_path / "b.safetensors"), negated)


class Opinion:
    """A class that weights_only must refuse to build."""


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (Opinion(), "does not hold plain tensors.*save it again with torch.save"),
        (nn.Linear(1, 1), "does not hold plain tensors"),
        ([torch.ones(1)], "holds no state dict; save one dict"),
        (torch.ones(1), "holds no state dict"),
        ({}, "holds no state dict"),
        ({"a": 1}, "holds no state dict"),
        ({1: torch.ones(1)}, "holds no state dict"),
        ({"state_dict": {"a": torch.ones(1)}, "model": {"a": torch.ones(1)}}, "holds state_dict and model; save one"),
        ({"a": torch.ones(2).to_sparse()}, "'a' in .* is a sparse tensor; make it dense"),
        ({"a": torch.ones(2, dtype=torch.complex128)}, "could not be written as safetensors"),
    ],
)
def test_anything_but_one_state_dict_is_refused(tmp_path: Path, content: object, sentence: str) -> None:
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(UnfedError, match=sentence):
        files.convert_file(tmp_path / "a.pt", tmp_path / "a.safetensors")
    assert listing(tmp_path) == ["a.pt"]


def test_a_damaged_or_missing_source_and_an_odd_target_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(9)}, tmp_path / "a.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "a.pt").read_bytes()[:-90])
    (tmp_path / "text.pt").write_text("hello")
    before = listing(tmp_path)
    for source, target, sentence in [
        ("cut.pt", "x.safetensors", "does not hold plain tensors"),
        ("text.pt", "x.safetensors", "does not hold plain tensors"),
        ("gone.pt", "x.safetensors", "cannot be read .*No such file"),
        ("a.pt", "x.pt", "does not end in .safetensors"),
        ("a.pt", "no/x.safetensors", "folder .* does not exist"),
    ]:
        with pytest.raises(UnfedError, match=sentence):
            files.convert_file(tmp_path / source, tmp_path / target)
    torch.save({"a": torch.ones(9)}, tmp_path / "b.safetensors")
    with pytest.raises(UnfedError, match="same file"):
        files.convert_file(tmp_path / "b.safetensors", tmp_path / "b.safetensors")
    (tmp_path / "b.safetensors").unlink()
    assert listing(tmp_path) == before


def test_nothing_in_a_pickle_is_ever_run(tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[object, ...]:
            return (open, (str(tmp_path / "owned"), "w"))

    torch.save({"a": Attack()}, tmp_path / "a.pt")
    with pytest.raises(UnfedError, match="does not hold plain tensors"):
        files.convert_file(tmp_path / "a.pt", tmp_path / "a.safetensors")
    assert listing(tmp_path) == ["a.pt"]


def test_tensors_lie_in_a_file_as_safetensors_itself_lays_them() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    kinds = (torch.bool, torch.int8, torch.float16, torch.bfloat16, torch.int32, torch.float64, torch.int64)
    tensors = {f"é{place}": whole[:, place % 4].to(kind) for place, kind in enumerate(kinds)}
    tensors |= {"turned": whole.t(), "shared": whole[1:], "one": torch.tensor(3.0), "none": torch.zeros(0, 2)}
    theirs = save({name: tensor.clone().contiguous() for name, tensor in tensors.items()})
    ours, body = storage.packed(tensors, {"round": 1}), 8 + int.from_bytes(theirs[:8], "little")
    assert ours.endswith(theirs[body:]) and (len(ours) - len(theirs[body:])) % 8 == 0
    described = json.loads(ours[8 : 8 + int.from_bytes(ours[:8], "little")])
    assert json.loads(theirs[8:body]) == {name: described[name] for name in tensors}

"""The standard layouts of CIFAR, the MNIST family, Caltech-101 and image folders: generated small ones always, real
ones where UNFED_DATA names a data root."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from unfed.config.config import Config
from unfed.data import TensorSource, Transform, load
from unfed.data.fetch.cifar import CIFAR10, CIFAR100, Layout, unpickle
from unfed.data.fetch.folders import Files
from unfed.data.source import Source
from unfed.errors import UnfedError
from unfed.runs.simulated import simulated


def tensors(source: Source) -> TensorSource:
    assert isinstance(source, TensorSource)
    return source


# --- CIFAR ------------------------------------------------------------------------------------------------------------


def batch(layout: Layout, stem: str, n: int = 4) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(sum(map(ord, stem)))
    pixels = draw.integers(0, 256, (n, 3072), dtype=np.uint8)
    return pixels, draw.integers(0, len(layout.classes), n, dtype=np.uint8)


def write_binary(layout: Layout, root: Path) -> Path:
    folder = root / layout.binary
    folder.mkdir(parents=True)
    for stem in (*layout.train, layout.test):
        pixels, labels = batch(layout, stem)
        columns = [labels[:, None], pixels]
        if layout.label_bytes == 2:
            columns.insert(0, labels[:, None] // 5)
        (folder / f"{stem}.bin").write_bytes(np.concatenate(columns, 1).tobytes())
    return folder


def write_pickles(layout: Layout, root: Path, protocol: int = 2, rename: tuple[bytes, bytes] | None = None) -> Path:
    folder = root / layout.python
    folder.mkdir(parents=True)
    for stem in (*layout.train, layout.test):
        pixels, labels = batch(layout, stem)
        value = {b"batch_label": b"", b"data": pixels, layout.label_key: labels.tolist(), b"coarse_labels": [0] * 4}
        text = pickle.dumps(value, protocol=protocol)
        (folder / stem).write_bytes(text.replace(*rename) if rename else text)
    return folder


@pytest.mark.parametrize("layout", [CIFAR10, CIFAR100], ids=lambda layout: layout.name)
def test_cifar_reads_the_same_from_both_layouts(layout: Layout, tmp_path: Path) -> None:
    write_binary(layout, tmp_path / "one")
    write_pickles(layout, tmp_path / "two")
    one, two = load(layout.name, root=tmp_path / "one"), load(layout.name, root=tmp_path / "two")
    for a, b in ((one.train, two.train), (one.test, two.test)):
        assert torch.equal(tensors(a).images, tensors(b).images) and torch.equal(a.labels, b.labels)
    pixels, labels = zip(*(batch(layout, stem) for stem in layout.train), strict=True)
    expected = torch.from_numpy(np.concatenate(pixels)).view(-1, 3, 32, 32)
    assert torch.equal(tensors(one.train).images, expected)
    assert one.train.labels.tolist() == np.concatenate(labels).tolist()
    assert one.classes == layout.classes and len(layout.classes) == one.train.classes


def test_cifar_100_takes_the_fine_labels_of_its_binary_records(tmp_path: Path) -> None:
    folder = write_binary(CIFAR100, tmp_path)
    record = bytes([19, 11]) + bytes(3072)
    (folder / "train.bin").write_bytes(record)
    data = load("cifar100", root=tmp_path)
    assert data.train.labels.tolist() == [11] and data.classes[11] == "boy"


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_pickles_of_every_protocol_and_of_old_numpy_are_read(protocol: int, tmp_path: Path) -> None:
    # Only protocol 2 has no length in front of a name, so only there the name can be swapped in the bytes.
    rename = (b"numpy._core.multiarray", b"numpy.core.multiarray") if protocol == 2 else None
    write_pickles(CIFAR10, tmp_path, protocol, rename)
    assert rename is None or b"numpy.core.multiarray" in (tmp_path / CIFAR10.python / "test_batch").read_bytes()
    data = load("cifar10", root=tmp_path)
    assert torch.equal(tensors(data.test).images.view(4, -1), torch.from_numpy(batch(CIFAR10, "test_batch")[0]))


def test_cifar_comes_normalised_and_mirrored_and_the_config_decides(tmp_path: Path) -> None:
    write_binary(CIFAR10, tmp_path)
    own = tensors(load("cifar10", root=tmp_path).train).transform
    assert own == Transform(flip=0.5, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
    small = ["partition.clients=2", "partition.validation=0", "device='cpu'", "model.name='cnn-tiny'"]
    config = {"data": {"name": "cifar10", "root": str(tmp_path)}}
    for sets, expected in ((["data.flip=0"], (0.0, 0)), ([], (0.5, 0)), (["data.pad_crop=4"], (0.5, 4))):
        transform = tensors(simulated(Config.parse(config, [*small, *sets]), 0).dataset.train).transform
        assert (transform.flip, transform.pad_crop) == expected and transform.mean == own.mean


class Hostile:
    """Pickled, it is a program that makes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.target}'",)


def test_a_hostile_pickle_is_refused_and_does_not_run(tmp_path: Path) -> None:
    folder = write_pickles(CIFAR10, tmp_path)
    proof = tmp_path / "it ran"
    for protocol in (0, 2, 4, 5):
        program = pickle.dumps({b"data": Hostile(proof), b"labels": [0]}, protocol=protocol)
        (folder / "data_batch_3").write_bytes(program)
        with pytest.raises(UnfedError, match=r"data_batch_3 asks for \w+\.system, .* nothing of it ran: delete it"):
            load("cifar10", root=tmp_path)
    assert not proof.exists()
    pickle.loads(program)  # the program is a real one: plain pickle runs it
    assert proof.exists()


@pytest.mark.parametrize(
    "value",
    [np.zeros((2, 3072)), np.array([{1: 2}], dtype=object), np.float64(1), {1, 2}.__class__, torch.zeros(2)],
    ids=["float array", "object array", "numpy scalar", "class", "tensor"],
)
def test_what_no_batch_holds_is_not_unpickled(value: Any) -> None:
    with pytest.raises(UnfedError, match="The pickle batch"):
        unpickle(pickle.dumps(value), Path("batch"))


def test_a_pickle_cannot_call_what_it_may_name(tmp_path: Path) -> None:
    for program in (b"\x80\x02cnumpy\nndarray\nK\x09\x85R.", b"\x80\x02c__builtin__\nbytes\nK\x09\x85R.", b""):
        with pytest.raises(UnfedError, match="truncated, damaged or no CIFAR batch"):
            unpickle(program, Path("batch"))


def truncate(path: Path, by: int = 100) -> None:
    path.write_bytes(path.read_bytes()[:-by])


def test_damaged_cifar_files_are_named(tmp_path: Path) -> None:
    binary, python = write_binary(CIFAR10, tmp_path / "b"), write_pickles(CIFAR10, tmp_path / "p")
    truncate(binary / "data_batch_2.bin")
    truncate(python / "data_batch_4")
    with pytest.raises(UnfedError, match=r"data_batch_2.bin has 12192 bytes, .* it is damaged: download it again"):
        load("cifar10", root=tmp_path / "b")
    with pytest.raises(UnfedError, match=r"data_batch_4 is truncated, damaged or no CIFAR batch"):
        load("cifar10", root=tmp_path / "p")
    (binary / "data_batch_2.bin").write_bytes(bytes([10]) + bytes(3072))
    (python / "data_batch_4").write_bytes(pickle.dumps({b"data": 3}))
    with pytest.raises(UnfedError, match=r"data_batch_2.bin holds the label 10, but cifar10 has the classes 0 to 9"):
        load("cifar10", root=tmp_path / "b")
    with pytest.raises(UnfedError, match=r"data_batch_4 is no batch of cifar10"):
        load("cifar10", root=tmp_path / "p")
    (binary / "data_batch_2.bin").unlink()
    (python / "data_batch_4").unlink()
    for root, name in ((tmp_path / "b", "data_batch_2.bin"), (tmp_path / "p", "data_batch_4")):
        with pytest.raises(UnfedError, match=f"{name} of cifar10 is missing; download"):
            load("cifar10", root=root)


# --- the data root ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist", "fashion-mnist", "caltech101"])
def test_without_a_data_root_the_user_is_told_how_to_get_the_data(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNFED_DATA", raising=False)
    with pytest.raises(UnfedError, match=rf"set data.root or UNFED_DATA .* `unfed data download {name} --root DIR`"):
        load(name)
    with pytest.raises(UnfedError, match=r"is not a folder; correct data.root or UNFED_DATA"):
        load(name, root=tmp_path / "nowhere")
    monkeypatch.setenv("UNFED_DATA", str(tmp_path))
    with pytest.raises(UnfedError, match=rf"has no .*; get the data with `unfed data download {name} --root"):
        load(name)


def test_the_environment_names_the_root_and_the_option_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_binary(CIFAR10, tmp_path)
    monkeypatch.setenv("UNFED_DATA", str(tmp_path))
    assert len(load("cifar10").train) == 20
    assert len(load("cifar10", root=tmp_path / CIFAR10.binary).train) == 20, "the data set's own folder will do"
    with pytest.raises(UnfedError, match="is not a folder"):
        load("cifar10", root=tmp_path / "other")


# --- MNIST ------------------------------------------------------------------------------------------------------------


def idx(values: np.ndarray) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write_idx(folder: Path, zipped: bool = False) -> None:
    folder.mkdir(parents=True)
    for stem, n in (("train", 6), ("t10k", 3)):
        images = np.arange(n * 784, dtype=np.uint32).astype(np.uint8).reshape(n, 28, 28)
        labels = np.arange(n, dtype=np.uint8)
        for name, values in ((f"{stem}-images-idx3-ubyte", images), (f"{stem}-labels-idx1-ubyte", labels)):
            data = idx(values)
            (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(data) if zipped else data)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("fashion-mnist", "fashion-mnist"),
        ("fashion-mnist", "FashionMNIST/raw"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_the_mnist_family_is_read_plain_and_gzipped(name: str, folder: str, zipped: bool, tmp_path: Path) -> None:
    write_idx(tmp_path / folder, zipped)
    for root in (tmp_path, tmp_path / folder):
        data = load(name, root=root)
        assert (len(data.train), len(data.test), data.train.shape) == (6, 3, (1, 28, 28))
        assert data.train.labels.tolist() == list(range(6))
        assert tensors(data.train).images.reshape(-1)[:300].tolist() == [i % 256 for i in range(300)]
        assert tensors(data.train).transform.flip == 0 and len(tensors(data.train).transform.mean) == 1


def test_fashion_mnist_does_not_pass_for_mnist(tmp_path: Path) -> None:
    write_idx(tmp_path / "fashion-mnist")
    for root in (tmp_path, tmp_path / "fashion-mnist"):
        with pytest.raises(UnfedError, match="has no mnist or MNIST/raw"):
            load("mnist", root=root)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda data: data[:-5], "announces 4704 values and holds 4699"),
        (lambda data: data[:7], "is no idx file of bytes with 3 axes"),
        (lambda data: b"GIF89a" + data, "is no idx file of bytes with 3 axes"),
        (lambda data: idx(np.zeros((5, 28, 28), np.uint8)), "holds 5 images and .* 6 labels"),
        (lambda data: idx(np.zeros((0, 28, 28), np.uint8)), "announces 0 values"),
    ],
)
def test_damaged_idx_files_are_named(damage: Callable[[bytes], bytes], sentence: str, tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UnfedError, match=f"train-images-idx3-ubyte {sentence}"):
        load("mnist", root=tmp_path)


def test_a_truncated_gzip_a_foreign_label_and_a_missing_file_are_named(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", zipped=True)
    folder = tmp_path / "mnist"
    truncate(folder / "t10k-images-idx3-ubyte.gz", 20)
    with pytest.raises(UnfedError, match=r"t10k-images-idx3-ubyte.gz is truncated or no gzip file"):
        load("mnist", root=tmp_path)
    (folder / "t10k-images-idx3-ubyte.gz").unlink()
    with pytest.raises(UnfedError, match=r"t10k-images-idx3-ubyte.gz of the data set is missing"):
        load("mnist", root=tmp_path)
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.full(6, 10, np.uint8))))
    with pytest.raises(UnfedError, match=r"holds the label 10, which mnist has not"):
        load("mnist", root=tmp_path)


# --- image folders ----------------------------------------------------------------------------------------------------

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def picture(
    path: Path, colour: tuple[int, int, int] = RED, size: tuple[int, int] = (20, 10), mode: str = "RGB"
) -> None:
    """A picture with a white left half, so that its orientation can be told."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, colour)
    image.paste((255, 255, 255), (0, 0, size[0] // 2, size[1]))
    image.convert(mode).save(path)


def folder_of(root: Path, classes: dict[str, int], suffix: str = ".png") -> Path:
    for (name, n), colour in zip(classes.items(), [RED, GREEN, BLUE], strict=False):
        for i in range(n):
            picture(root / name / f"{i:03d}{suffix}", colour)
    return root


def test_a_folder_of_classes_is_split_by_the_seed_80_to_20(tmp_path: Path) -> None:
    folder_of(tmp_path, {"rose": 6, "lily": 4})
    data = load("imagefolder", root=tmp_path, transform={"resize": 8})
    assert (len(data.train), len(data.test), data.classes) == (8, 2, ("lily", "rose"))
    assert data.train.shape == (3, 8, 8) and tensors(data.train).images.dtype == torch.uint8
    assert len(load("imagefolder", root=tmp_path, test_size=5).test) == 5
    splits = {tuple(load("imagefolder", root=tmp_path, seed=s).test.labels.tolist()) for s in range(6)}
    assert len(splits) > 1


def test_train_and_test_folders_are_taken_as_they_lie_or_pooled(tmp_path: Path) -> None:
    folder_of(tmp_path / "train", {"rose": 3, "lily": 2})
    folder_of(tmp_path / "test", {"rose": 2})
    data = load("imagefolder", root=tmp_path)
    assert data.train.labels.tolist() == [0, 0, 1, 1, 1] and data.test.labels.tolist() == [1, 1]
    assert len(load("imagefolder", root=tmp_path, test_size=3).train) == 4


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".JPEG", ".webp", ".bmp"])
def test_every_format_is_decoded_with_its_channels_and_orientation(suffix: str, tmp_path: Path) -> None:
    folder_of(tmp_path, {"a": 2, "b": 2}, suffix)
    images = Files(tuple(sorted(tmp_path.rglob("*" + suffix)))).decode(16)
    assert images.shape == (4, 3, 16, 16)
    left, right = images[:, :, 8, 2].int(), images[:, :, 8, 13].int()
    assert (left > 230).all()
    near: Callable[..., Any] = lambda row, colour: (right[row] - torch.tensor(colour)).abs().max() < 12  # noqa: E731
    assert near(0, RED) and near(3, GREEN)


def test_grey_palette_and_transparent_images_become_rgb(tmp_path: Path) -> None:
    for i, mode in enumerate(("L", "P", "LA", "RGBA", "1", "CMYK")):
        picture(tmp_path / f"{i}{'.tif' if mode == 'CMYK' else '.png'}", size=(4, 4), mode=mode)
    assert Files(tuple(sorted(tmp_path.iterdir()))).decode(None).shape == (6, 3, 4, 4)


def test_a_cameras_orientation_tag_is_applied(tmp_path: Path) -> None:
    image = Image.new("RGB", (20, 10), RED)
    tags = image.getexif()
    tags[0x0112] = 6  # turned by 90 degrees
    image.save(tmp_path / "a.jpg", exif=tags)
    assert Files((tmp_path / "a.jpg",)).decode(None).shape == (1, 3, 20, 10)


def test_hidden_files_and_other_files_are_no_images(tmp_path: Path) -> None:
    folder_of(tmp_path, {"a": 2, "b": 2})
    for name in ("a/._000.png", "a/notes.txt", ".cache/x.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"no image")
    data = load("imagefolder", root=tmp_path)
    assert data.classes == ("a", "b") and len(data.train) + len(data.test) == 4


def test_caltech_101_drops_the_background_and_is_cropped_to_224(tmp_path: Path) -> None:
    classes = {"BACKGROUND_Google": 3, "Faces": 5, "airplanes": 5}
    folder_of(tmp_path / "caltech101" / "101_ObjectCategories", classes, ".jpg")
    data = load("caltech101", root=tmp_path)
    assert data.classes == ("Faces", "airplanes") and (len(data.train), len(data.test)) == (8, 2)
    assert tensors(data.train).images.shape == (8, 3, 256, 256) and data.train.shape == (3, 224, 224)
    own = tensors(data.train).transform
    assert own == Transform(0.5, 0, 256, 224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    small = load("caltech101", root=tmp_path / "caltech101", transform={"resize": 16})
    assert small.train.shape == (3, 16, 16) and tensors(small.train).transform.flip == 0.5


def test_images_stored_at_the_asked_size_are_not_resized_again(tmp_path: Path) -> None:
    folder_of(tmp_path, {"a": 3, "b": 2})
    train = tensors(
        load("imagefolder", root=tmp_path, transform={"resize": 8, "mean": (0.0,) * 3, "std": (1.0,) * 3}).train
    )
    x, _ = train.fetch(torch.arange(4))
    assert torch.equal(x, train.images.float() / 255)


def corrupt(root: Path) -> None:
    folder_of(root, {"a": 2, "b": 2})
    truncate(root / "b" / "001.png", 40)


def foreign(root: Path) -> None:
    folder_of(root, {"a": 2, "b": 2})
    (root / "b" / "001.png").write_text("<html>Not found</html>")


def uneven(root: Path) -> None:
    folder_of(root, {"a": 2, "b": 2})
    picture(root / "b" / "001.png", size=(9, 9))


def deep(root: Path) -> None:
    folder_of(root, {"a": 2, "b": 2})
    Image.fromarray(np.zeros((10, 20), np.uint16)).save(root / "b" / "001.png")


def lacks_test(root: Path) -> None:
    folder_of(root / "train", {"a": 2, "b": 2})


def empty_test(root: Path) -> None:
    lacks_test(root)
    (root / "test" / "a").mkdir(parents=True)


def strange_test(root: Path) -> None:
    lacks_test(root)
    folder_of(root / "test", {"a": 1, "bb": 1})


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (corrupt, r"The image .*b/001.png cannot be decoded \(.*\); replace it, or remove it"),
        (foreign, r"The image .*b/001.png cannot be decoded"),
        (uneven, r"(9x9 pixels|9, 9\]).*; set data.resize, so that one shape fits all"),
        (deep, r"b/001.png has more than 8 bits per channel"),
        (lambda root: None, "holds no class folders; it needs at least two"),
        (lambda root: folder_of(root, {"a": 2}), "holds one class folder; it needs at least two"),
        (lambda root: folder_of(root, {"a": 2, "b": 1}), "The class 'b' in .* has only one image; give it at least 2"),
        (lambda root: (root / "a").mkdir() or (root / "b").mkdir(), "The class 'a' in .* has no images"),
        (lacks_test, "has a folder 'train' but no 'test'"),
        (empty_test, "test holds no images"),
        (strange_test, "The class 'bb' is in .*test but not in .*train"),
    ],
)
def test_a_folder_that_is_no_data_set_is_refused_in_one_sentence(
    make: Callable[[Path], Any], sentence: str, tmp_path: Path
) -> None:
    make(tmp_path)
    with pytest.raises(UnfedError, match=sentence) as refused:
        load("imagefolder", root=tmp_path)
    assert "\n" not in str(refused.value) and str(refused.value).endswith((".", "?"))


def test_an_image_folder_must_be_named_by_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNFED_DATA", str(tmp_path))
    with pytest.raises(UnfedError, match=r"needs data\.root"):
        load("imagefolder")
    with pytest.raises(UnfedError, match=r"is not there; set data\.root"):
        load("imagefolder", root=tmp_path / "nowhere")


# --- the real ones ----------------------------------------------------------------------------------------------------


def real(name: str, *places: str) -> Path:
    root = os.environ.get("UNFED_DATA")
    if not root:
        pytest.skip(f"UNFED_DATA is not set, so the real {name} is not tested")
    if not any((Path(root) / place).is_dir() for place in places):
        pytest.skip(f"UNFED_DATA={root} holds no {name}")
    return Path(root)


def test_the_real_cifar_10_has_the_published_statistics() -> None:
    data = load("cifar10", root=real("cifar10", CIFAR10.binary, CIFAR10.python))
    train = tensors(data.train)
    assert (len(train), len(data.test)) == (50_000, 10_000)
    assert torch.bincount(train.labels).tolist() == [5000] * 10
    for channel, mean, std in zip(train.images.unbind(1), train.transform.mean, train.transform.std, strict=True):
        values = channel.double() / 255
        assert abs(float(values.mean()) - mean) < 1e-4 and abs(float(values.std()) - std) < 1e-4


def test_the_real_caltech_101_has_its_classes_where_the_paper_expects_them() -> None:
    root = real("caltech101", "caltech101/101_ObjectCategories")
    data = load("caltech101", root=root, transform={"resize": 16})
    labels = torch.cat([data.train.labels, data.test.labels])
    assert (len(labels), len(data.test), len(data.classes)) == (8677, 1735, 101)
    assert data.classes[0] == "Faces" and int((labels == 0).sum()) == 435 and data.classes[5] == "airplanes"

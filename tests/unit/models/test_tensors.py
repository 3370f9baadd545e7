"""Weight files give tensors and nothing else, whatever is in them."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from cosyvoice_worker.models.tensors import TensorFileError, load_plain, load_state_dict


class Calls:
    """Pickles to a call of `function` with `arguments`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


class Stored:
    """Stands for a storage in a hand-made archive."""

    def __init__(self, key: str = "0", elements: int = 4) -> None:
        self.pid = ("storage", torch.FloatStorage, key, "cpu", elements)


class Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return obj.pid if isinstance(obj, Stored) else None


def archive(path: Path, content: Any, data: bytes = bytes(16), compression: int = zipfile.ZIP_STORED) -> Path:
    pickled = io.BytesIO()
    Pickler(pickled, protocol=2).dump(content)
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("archive/data.pkl", pickled.getvalue())
        file.writestr("archive/data/0", data)
    return path


def tensor(size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0, stored: Stored | None = None) -> Calls:
    rebuild = torch._utils._rebuild_tensor_v2  # type: ignore[attr-defined]
    return Calls(rebuild, stored or Stored(), offset, size, stride, False, OrderedDict())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.pt"


def test_what_torch_saves_is_read_bit_for_bit(path: Path) -> None:
    saved = {"a": torch.randn(3, 4), "b": torch.arange(5), "c": torch.tensor([True, False]), "d": torch.zeros(0, 2)}
    torch.save(saved, path)
    read = load_state_dict(path)
    assert read.keys() == saved.keys()
    assert all(torch.equal(read[name], saved[name]) for name in saved)


def test_overlapping_views_become_contiguous_tensors_of_their_own(path: Path) -> None:
    table = torch.arange(10.0).as_strided((4, 3), (2, 1))
    torch.save(OrderedDict(table=table, tied=table), path)
    read = load_state_dict(path)
    assert torch.equal(read["table"], table)
    assert read["table"].is_contiguous()
    read["table"].zero_()
    assert torch.equal(read["tied"], table)


def test_half_precision_is_widened_and_whole_numbers_stay(path: Path) -> None:
    torch.save({"w": torch.tensor([0.5], dtype=torch.float16), "n": torch.tensor([7])}, path)
    read = load_state_dict(path)
    assert read["w"].dtype == torch.float32
    assert read["n"].dtype == torch.int64


def test_skipped_names_are_not_read(path: Path) -> None:
    archive(path, {"good": tensor((2,), (1,)), "bad": tensor((99,), (1,))})
    assert load_state_dict(path, skip=lambda name: name == "bad").keys() == {"good"}


def test_safetensors_are_read_too(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"w": torch.ones(2, dtype=torch.float16)}, tmp_path / "m.safetensors")
    assert torch.equal(load_state_dict(tmp_path / "m.safetensors")["w"], torch.ones(2))


@pytest.mark.parametrize(
    "function", [os.system, eval, exec, open, __import__, getattr, torch.load, torch.Tensor.numpy, torch.hub.load]
)
def test_a_pickle_that_calls_anything_else_is_refused_before_the_call(
    path: Path, function: Any, tmp_path: Path
) -> None:
    witness = tmp_path / "called"
    archive(path, {"w": Calls(function, f"touch {witness}")})
    with pytest.raises(TensorFileError, match="only tensors are read"):
        load_state_dict(path)
    assert not witness.exists()


@pytest.mark.parametrize(
    ("hostile", "complaint"),
    [
        (tensor((5,), (1,)), "reaches beyond its bytes"),
        (tensor((2,), (1,), offset=3), "reaches beyond its bytes"),
        (tensor((2, 2), (4, 1)), "reaches beyond its bytes"),
        (tensor((2,), (-1,), offset=1), "stride"),
        (tensor((-2,), (1,)), "size"),
        (tensor((2,), (1,), offset=-1), "offset"),
        (tensor((2,), (1, 1)), "stride"),
        (tensor((1 << 20, 1 << 20), (0, 0)), "unfold"),
        (tensor((2,), (1,), stored=Stored(elements=1 << 40)), "missing or truncated"),
        (tensor((2,), (1,), stored=Stored(key="../../etc/passwd")), "missing or truncated"),
        ("text", "not a tensor"),
        (Calls(OrderedDict), "not a tensor"),
    ],
)
def test_a_tensor_that_does_not_fit_its_bytes_is_refused(path: Path, hostile: Any, complaint: str) -> None:
    archive(path, {"w": hostile})
    with pytest.raises(TensorFileError, match=complaint):
        load_state_dict(path)


def test_lists_that_unfold_into_millions_are_refused(path: Path) -> None:
    content: Any = 0
    for _ in range(7):
        content = [content] * 40
    with pytest.raises(TensorFileError, match="unfolds to more than"):
        load_plain(archive(path, {"weight": content}))


def test_compressed_entries_are_refused(path: Path) -> None:
    archive(path, {"w": tensor((2,), (1,))}, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(TensorFileError, match="compressed"):
        load_state_dict(path)


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", pickle.dumps({"a": 1})])
def test_what_is_no_archive_is_named_with_the_mend(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(TensorFileError, match=r"model\.pt.*copy the file again"):
        load_state_dict(path)


def test_a_truncated_archive_is_refused(path: Path) -> None:
    torch.save({"w": torch.randn(1000)}, path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(TensorFileError):
        load_state_dict(path)


def test_tables_of_text_and_tensors_are_read(path: Path) -> None:
    torch.save({"voice": {"prompt_text": "hi", "ids": [1, 2], "embedding": torch.ones(1, 2)}}, path)
    voice = load_plain(path)["voice"]
    assert (voice["prompt_text"], voice["ids"]) == ("hi", [1, 2])
    assert torch.equal(voice["embedding"], torch.ones(1, 2))

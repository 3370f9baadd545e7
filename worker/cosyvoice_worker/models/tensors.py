"""Reads weight files as tensors and nothing else.

`torch.load(weights_only=True)` could be tricked into running code before torch 2.6 and into reading out of bounds
before 2.10, and the lean image carries Debian's torch 2.6. So the ZIP and the pickle in it are read here: the
unpickler knows five names, tensors become inert records, and each record is checked against its bytes.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

MAX_PICKLE_BYTES = 64 << 20
"""The pickle holds names and shapes only; the official ones are about 100 KB."""
MAX_ELEMENTS = 1 << 31
"""Elements of one file's tensors after strides are unfolded (the largest official file has 0.7e9)."""

_DTYPES: Mapping[str, torch.dtype] = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}

MAX_VALUES = 1 << 17
"""Of one file after shared lists are unfolded; the official files hold about a thousand tensors."""


class TensorFileError(Exception):
    """The file is not a plain tensor file; the text names the file, the entry and the mend."""


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    dtype: torch.dtype
    elements: int


@dataclass(frozen=True, slots=True)
class _Record:
    """A tensor as the pickle describes it, not yet read."""

    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def elements(self) -> int:
        total = 1
        for extent in self.size:
            total *= extent
        return total


def load_state_dict(
    path: Path, dtype: torch.dtype = torch.float32, skip: Callable[[str], bool] = lambda name: False
) -> dict[str, torch.Tensor]:
    """Name -> tensor: contiguous, own memory, on the CPU; floating point converted to `dtype`.

    `.pt` (torch.save of a state dict) or `.safetensors`. Names for which `skip` is true are not read.
    Raises TensorFileError.
    """
    if path.suffix == ".safetensors":
        tensors = _load_safetensors(path, skip)
    else:
        content = load_plain(path, skip)
        if not isinstance(content, dict):
            raise TensorFileError(f"{path}: holds a {type(content).__name__}, not a state dict")
        tensors = {}
        for name, tensor in content.items():
            if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
                raise TensorFileError(f"{path}: entry {name!r} is a {type(tensor).__name__}, not a tensor")
            tensors[name] = tensor
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}


def load_plain(path: Path, skip: Callable[[str], bool] = lambda name: False) -> Any:
    """What torch.save wrote, as dicts, lists, tuples, text, numbers and tensors. Raises TensorFileError."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _read_archive(path, archive, skip)
    except zipfile.BadZipFile:
        raise TensorFileError(
            f"{path}: not a ZIP as torch.save writes it (truncated, a Git LFS pointer, or from torch before 1.6); "
            "copy the file again or save it anew with torch.save"
        ) from None


def _read_archive(path: Path, archive: zipfile.ZipFile, skip: Callable[[str], bool]) -> Any:
    entries = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise TensorFileError(f"{path}: holds no tensors (no data.pkl)")
    prefix = pickles[0].removesuffix("data.pkl")
    if any(info.compress_type != zipfile.ZIP_STORED for info in entries.values()):
        raise TensorFileError(f"{path}: has compressed entries, which torch.save never writes")
    if entries[pickles[0]].file_size > MAX_PICKLE_BYTES:
        raise TensorFileError(f"{path}: its data.pkl is larger than {MAX_PICKLE_BYTES} bytes")
    order = prefix + "byteorder"
    if order in entries and archive.read(order) != b"little":
        raise TensorFileError(f"{path}: was written on a big-endian machine")
    try:
        content = _Unpickler(io.BytesIO(archive.read(pickles[0]))).load()
    except TensorFileError as error:
        raise TensorFileError(f"{path}: {error}") from None
    except Exception as error:  # whatever a hostile pickle makes the unpickler raise
        raise TensorFileError(f"{path}: its data.pkl is malformed ({type(error).__name__}: {error})") from None
    return _Reader(path, archive, prefix, entries).materialise(content, "", skip, 0)


def _record(storage: object, offset: object, size: object, stride: object, *_: object) -> _Record:
    def whole(values: object) -> bool:
        return isinstance(values, tuple) and all(type(v) is int and v >= 0 for v in values)

    if not isinstance(storage, _Storage) or type(offset) is not int or offset < 0:
        raise TensorFileError("a tensor without a storage or with a bad offset")
    if not whole(size) or not whole(stride) or len(size) != len(stride):  # type: ignore[arg-type]
        raise TensorFileError(f"a tensor with size {size!r} and stride {stride!r}")
    return _Record(storage, offset, size, stride)  # type: ignore[arg-type]


def _parameter(data: object, *_: object) -> object:
    return data


class _Unpickler(pickle.Unpickler):
    """Knows tensors, their storages and OrderedDict; every other global is refused before anything is called."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        known: dict[tuple[str, str], Any] = {
            ("torch._utils", "_rebuild_tensor_v2"): _record,
            ("torch._utils", "_rebuild_parameter"): _parameter,
            ("collections", "OrderedDict"): OrderedDict,
        }
        if (module, name) not in known:
            raise TensorFileError(f"asks for {module}.{name}; only tensors are read, save a plain state dict")
        return known[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        if not (isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage"):
            raise TensorFileError(f"an unknown kind of reference {pid!r}")
        _, dtype, key, _, elements = pid
        if not isinstance(dtype, torch.dtype) or not isinstance(key, str) or type(elements) is not int:
            raise TensorFileError(f"a malformed storage {pid!r}")
        return _Storage(key, dtype, elements)


class _Reader:
    """Turns records into tensors after checking them against the archive."""

    def __init__(
        self, path: Path, archive: zipfile.ZipFile, prefix: str, entries: Mapping[str, zipfile.ZipInfo]
    ) -> None:
        self.path = path
        self.archive = archive
        self.prefix = prefix
        self.entries = entries
        self.elements = 0
        self.values = 0

    def materialise(self, value: Any, name: str, skip: Callable[[str], bool], depth: int) -> Any:
        if depth > 8:
            raise TensorFileError(f"{self.path}: nested deeper than any official file")
        self.values += 1
        if self.values > MAX_VALUES:
            raise TensorFileError(f"{self.path}: {name!r} unfolds to more than {MAX_VALUES} values")
        if isinstance(value, _Record):
            return self.tensor(value, name)
        if isinstance(value, dict):
            return {
                key: self.materialise(item, str(key), skip, depth + 1)
                for key, item in value.items()
                if not (isinstance(key, str) and skip(key))
            }
        if isinstance(value, list | tuple):
            return type(value)(self.materialise(item, name, skip, depth + 1) for item in value)
        if value is None or isinstance(value, str | int | float | bool):
            return value
        raise TensorFileError(f"{self.path}: {name!r} is a {type(value).__name__}, not a tensor")

    def tensor(self, record: _Record, name: str) -> torch.Tensor:
        storage = record.storage
        entry = self.entries.get(f"{self.prefix}data/{storage.key}")
        width = storage.dtype.itemsize
        if entry is None or entry.file_size != storage.elements * width:
            raise TensorFileError(f"{self.path}: the bytes of {name!r} are missing or truncated; copy the file again")
        last = record.offset + sum((n - 1) * s for n, s in zip(record.size, record.stride, strict=True))
        if record.elements and last >= storage.elements:
            raise TensorFileError(f"{self.path}: {name!r} reaches beyond its bytes")
        self.elements += record.elements
        if self.elements > MAX_ELEMENTS:
            raise TensorFileError(f"{self.path}: {name!r} would unfold beyond {MAX_ELEMENTS} elements")
        if record.elements == 0:
            return torch.zeros(record.size, dtype=storage.dtype)
        content = bytearray(entry.file_size)
        with self.archive.open(entry) as stream:
            read = stream.readinto(content)  # type: ignore[attr-defined]  # ZipExtFile is a BufferedIOBase
        if read != entry.file_size:
            raise TensorFileError(f"{self.path}: the bytes of {name!r} are truncated; copy the file again")
        flat = torch.frombuffer(content, dtype=storage.dtype)
        view = flat.as_strided(record.size, record.stride, record.offset)
        # The buffer is this tensor's own; it is copied only where the tensor is not all of it in order.
        whole = view.is_contiguous() and view.numel() == flat.numel()
        return view if whole else view.clone(memory_format=torch.contiguous_format)


def _load_safetensors(path: Path, skip: Callable[[str], bool]) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).contiguous() for name in file.keys() if not skip(name)}  # noqa: SIM118
    except SafetensorError as error:
        raise TensorFileError(f"{path}: {error}; copy the file again") from error

# SPDX-License-Identifier: Apache-2.0
"""The reader of checkpoint files: headers, types and shapes, tokenizers, sizes; every kind of damage is one ValueError."""

import json
import struct

import pytest
import torch
from safetensors.torch import save_file

from hf_deberta_ext.files import format_size
from hf_deberta_ext.model.checkpoint_files import (
    TOKENIZER_FILES,
    WEIGHT_FILES,
    Tensor,
    header_tensor,
    read_index,
    read_json,
    read_tensors,
    tokenizer_files,
)


def header(content):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_940, "999.9 kB"), (999_960, "1.0 MB"),
        (2_345_000_000, "2.3 GB"), (1_500 * 1000**3, "1500.0 GB"),
    ],
)  # fmt: skip
def test_sizes_are_decimal_with_one_digit_behind_the_point(size, shown):
    assert format_size(size) == shown


def test_a_header_tells_shape_and_type():
    assert header_tensor([2, 3], "BF16") == Tensor((2, 3), "bfloat16") and header_tensor([], "F4").dtype == "F4"
    assert (header_tensor([2, 3], "F32").size, header_tensor([], "F32").size) == (6, 1)


def test_both_formats_and_that_of_old_torch_are_read_alike(tmp_path):
    tensors = {"a": torch.zeros(2, 3, dtype=torch.float16), "b": torch.ones(4), "c": torch.tensor(3)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    torch.save(tensors | {"step": 3}, tmp_path / "pytorch_model.bin")
    expected = {"a": Tensor((2, 3), "float16"), "b": Tensor((4,), "float32"), "c": Tensor((), "int64")}
    assert read_tensors(tmp_path / "model.safetensors") == read_tensors(tmp_path / "pytorch_model.bin") == expected
    torch.save(tensors, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    assert read_tensors(tmp_path / "old.bin") == expected


def test_settings_of_a_tokenizer_are_no_tokenizer(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "special_tokens_map.json").write_text("{}")
    assert tokenizer_files(tmp_path) == []
    for name in TOKENIZER_FILES:
        (tmp_path / name).write_text("x")
    assert tokenizer_files(tmp_path) == [*TOKENIZER_FILES]


def test_an_index_names_the_file_of_each_tensor(tmp_path):
    file = tmp_path / WEIGHT_FILES[1]
    file.write_text('{"metadata": {}, "weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}')
    assert read_index(file) == {"a": "x.safetensors", "b": "y.safetensors"}
    assert read_json(tmp_path / "none.json") == {}


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *(
            (content, "is truncated or damaged")
            for content in (
                b"",
                b"\x05\0\0",
                struct.pack("<Q", 2**63) + b"{}",
                header({"a": ENTRY})[:-3],
                header(b"what"),
                header(b"\xff\xfe"),
                header(b"[" * 100_000),
                header([1]),
                header({"a": 1}),
                *(
                    header({"a": ENTRY | wrong})
                    for wrong in (dict(shape=1), dict(shape=[-1]), dict(shape=["1"]), dict(data_offsets=[4]), dict(dtype=1))
                ),
                header({"a": ENTRY}) + b"12",
                header({"a": ENTRY}) + b"123456",
            )
        ),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer, not the file itself"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)
def test_a_damaged_safetensors_file_is_one_error_that_names_it(content, said, tmp_path):
    """A header that is no object was an AttributeError."""
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=said) as raised:
        read_tensors(tmp_path / "model.safetensors")
    assert str(raised.value).startswith(f"{tmp_path / 'model.safetensors'} ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", r"index\.json is not JSON"),
        ("[1]", r"index\.json must hold a JSON object, not a list"),
        ("[" * 5000 + "]" * 5000, r"index\.json is not JSON \(maximum recursion depth"),
        ("{}", r"the weight_map of .*index\.json must name a file for each tensor"),
        ('{"weight_map": ["a"]}', r"the weight_map of .*index\.json must name a file for each tensor"),
        ('{"weight_map": {}}', "must name a file for each tensor"),
        ('{"weight_map": {"a": 1}}', "must name a file for each tensor"),
        (
            '{"weight_map": {"a": "../b.safetensors"}}',
            r"names the file '\.\./b\.safetensors', which is not in the same folder",
        ),
        ('{"weight_map": {"a": "c\\\\b.safetensors"}}', "which is not in the same folder"),
    ],
)
def test_a_damaged_index_is_one_error_that_names_it(content, said, tmp_path):
    """A weight_map that is a list was an AttributeError."""
    file = tmp_path / WEIGHT_FILES[1]
    file.write_text(content)
    with pytest.raises(ValueError, match=said):
        read_index(file)

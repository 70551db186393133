# SPDX-License-Identifier: Apache-2.0
"""The reader of checkpoint files: headers, dtypes and shapes; corrupt files raise one ValueError."""

import pytest
import torch
from safetensors.torch import save_file

from hf_deberta_ext.checkpoints import files
from hf_deberta_ext.checkpoints.files import Tensor, read_index, read_tensors


def test_both_formats_and_that_of_old_torch_are_read_alike(tmp_path):
    tensors = {"a": torch.zeros(2, 3, dtype=torch.float16), "b": torch.ones(4), "c": torch.tensor(3)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    torch.save(tensors | {"step": 3}, tmp_path / "pytorch_model.bin")
    expected = {"a": Tensor((2, 3), "float16"), "b": Tensor((4,), "float32"), "c": Tensor((), "int64")}
    assert read_tensors(tmp_path / "model.safetensors") == read_tensors(tmp_path / "pytorch_model.bin") == expected
    torch.save(tensors, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    assert read_tensors(tmp_path / "old.bin") == expected
    assert files.header_tensor([2, 3], "BF16") == Tensor((2, 3), "bfloat16") and expected["a"].size == 6


@pytest.mark.parametrize("read", [files.read_weights, read_tensors])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b"\x05\0\0"),
        ("model.safetensors", b"[" * 99),
        ("pytorch_model.bin", b""),
        ("pytorch_model.bin", b"PK"),
    ],
)
def test_damaged_weights_are_one_error_that_names_them(read, name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} is truncated or corrupt"):
        read(tmp_path / name)


def test_an_index_names_the_file_of_each_tensor_in_its_own_folder(tmp_path):
    file = tmp_path / files.WEIGHT_FILES[1]
    assert files.read_json(file) == {}
    file.write_text('{"metadata": {}, "weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}')
    assert read_index(file) == {"a": "x.safetensors", "b": "y.safetensors"}
    for content, said in {
        "{": r"index\.json is not JSON",
        "[1]": r"index\.json must contain a JSON object, got list",
        "{}": r"the weight_map in .*index\.json must map each tensor to a file name",
        '{"weight_map": {"a": "../b.safetensors"}}': r"must only name files in its own folder, got '\.\./b\.safetensors'",
    }.items():
        file.write_text(content)
        with pytest.raises(ValueError, match=said):
            read_index(file)

# SPDX-License-Identifier: Apache-2.0
"""Sharded checkpoints of FSDP: torch's own reader unpickles what they name; ours refuses it, and names the file."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from small_pretraining import build
from torch.distributed import checkpoint as sharded
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from hf_deberta_ext.training.distributed import safe_sharded_states

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def save(folder, state):
    sharded.save(state, storage_writer=sharded.FileSystemWriter(folder))


def load(checkpoint, state):
    environment = dict(os.environ)
    with safe_sharded_states(checkpoint):
        sharded.load(state, storage_reader=sharded.FileSystemReader(checkpoint / "optimizer_0"))
    # TORCH_FORCE_WEIGHTS_ONLY_LOAD stayed, as "0".
    assert dict(os.environ) == environment
    return state


def test_the_state_of_an_optimizer_is_loaded_as_it_was_saved(tmp_path):
    model = torch.nn.Linear(3, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    state = get_optimizer_state_dict(model, optimizer)
    save(tmp_path / "optimizer_0", dict(optimizer=state))
    optimizer.zero_grad()
    blank = get_optimizer_state_dict(model, torch.optim.AdamW(model.parameters()))
    loaded = load(tmp_path, dict(optimizer=blank))["optimizer"]
    assert loaded["param_groups"] == state["param_groups"]
    assert torch.equal(loaded["state"]["weight"]["exp_avg"], state["state"]["weight"]["exp_avg"])


def evil_metadata(folder, marker):
    (folder / ".metadata").write_bytes(pickle.dumps(Evil(marker)))


def evil_values(folder, marker):
    (folder / ".metadata").unlink()
    save(folder, dict(step=Evil(marker)))


def cut_metadata(folder, marker):
    (folder / ".metadata").write_bytes((folder / ".metadata").read_bytes()[:50])


@pytest.mark.parametrize("damage", [evil_metadata, evil_values, cut_metadata])
def test_shards_that_hold_code_or_are_damaged_are_refused_and_nothing_of_them_is_run(damage, tmp_path):
    folder, marker = tmp_path / "checkpoint-2" / "optimizer_0", tmp_path / "marker"
    save(folder, dict(step=3))
    damage(folder, marker)
    named = folder / ".metadata" if damage is not evil_values else f"a shard in {folder.parent}"
    with pytest.raises(ValueError, match=f"{named} is damaged or holds pickled code, which is not run") as caught:
        load(folder.parent, dict(step=0))
    assert "\n" not in str(caught.value) and not marker.exists()


@pytest.mark.parametrize("method", ["_load_from_checkpoint", "_load_optimizer_and_scheduler"])
def test_trainers_load_no_such_shards(method, tmp_path):
    (tmp_path / "optimizer_0").mkdir()
    evil_metadata(tmp_path / "optimizer_0", tmp_path / "marker")
    with pytest.raises(ValueError, match=r"optimizer_0/\.metadata is damaged or holds pickled code"):
        getattr(build(tmp_path / "run"), method)(str(tmp_path))

# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from hf_deberta_ext import DebertaExtModel
from hf_deberta_ext.model.attention_deberta_ext import RelativePosition, log_bucket

RELEASED = dict(buckets=256, max_distance=512)


def test_log_bucket_by_hand_and_of_the_released_models():
    # buckets 8: m = 4, M = 16. |r| <= 4 is kept; 15 = M - 1 is the last bucket, 4 + (m - 1) = 7.
    got = [log_bucket(r, buckets=8, max_distance=16) for r in (0, 1, 4, 5, 15, 16, 99)]
    assert math.ceil(math.log(5 / 4) / math.log(15 / 4) * 3) + 4 == 5
    assert got == [0, 1, 4, 5, 7, 7, 7]
    assert [log_bucket(r, **RELEASED) for r in (127, 128, 129, 511, 512, 5000)] == [127, 128, 129, 255, 255, 255]
    assert len({log_bucket(r, **RELEASED) for r in range(-511, 512)}) == 511


@pytest.mark.parametrize(("buckets", "M"), [(256, 512), (128, 512), (32, 128), (64, 512), (256, 1024), (48, 512), (16, 768)])
def test_log_bucket_is_odd_monotone_and_equals_transformers_within_the_table(buckets, M):
    ours = [log_bucket(r, buckets=buckets, max_distance=M) for r in range(1 - M, M)]
    assert ours == [-b for b in reversed(ours)]
    assert ours == sorted(ours)
    assert ours == make_log_bucket_position(torch.arange(1 - M, M), buckets, M).long().tolist()


@pytest.mark.parametrize(("b", "M"), [(256, 512), (48, 700), (32, 4096), (7, 33), (3, 9), (2, 4)])
def test_rows_are_the_bucket_of_each_distance(b, M):
    expected = [log_bucket(r, buckets=b, max_distance=M) + b for r in range(-M, M)]
    assert RelativePosition(buckets=b, max_distance=M).rows.tolist() == expected


def test_rows_without_buckets_are_the_clamped_distances_and_row_zero_is_never_read_with_them():
    delta = RelativePosition(buckets=-1, max_distance=4)(7)
    assert delta.tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7]
    delta = RelativePosition(**RELEASED)(3000)
    assert (delta.min(), delta.max()) == (1, 511)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_rows_do_not_depend_on_the_default_dtype(dtype):
    expected = RelativePosition(**RELEASED)(700)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert torch.equal(RelativePosition(**RELEASED)(700), expected)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_are_right_after_loading_which_builds_on_the_meta_device(dtype, tmp_path, tiny_config):
    config = tiny_config("v3", position_buckets=256, max_position_embeddings=512)
    DebertaExtModel(config).save_pretrained(tmp_path)
    model = DebertaExtModel.from_pretrained(tmp_path, dtype=dtype)
    assert torch.equal(model.encoder.relative_position(700), RelativePosition(**RELEASED)(700))
    assert "rows" not in " ".join(model.state_dict())

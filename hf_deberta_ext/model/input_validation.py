# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Validation of input shapes, dtypes and ranges, with errors that name the argument.

Values are looked at where that costs nothing: on CPU, outside of graphs. On other devices it would wait for the device.
"""

import functools
import inspect
from collections.abc import Callable

import torch
from torch import nn
from transformers.utils import can_return_tuple

from .embedding_sharing import GradientDisentangledEmbedding

__all__ = [
    "check_batch", "check_ids", "check_labels", "check_switches", "check_whole", "is_traced",
    "model_forward", "require_tensor", "takes_embeddings", "values_at_hand",
]  # fmt: skip


# Not the wider unsigned and the narrower floating dtypes, which torch stores but does not compare.
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
REAL = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


# Arguments of decoders that trainers give to every model; transformers' encoders ignore them, too.
OF_DECODERS = ("cache_position", "num_items_in_batch", "output_router_logits", "past_key_values", "use_cache")


# Names under which other packages give packed batches of one row (transformers' DataCollatorWithFlattening).
OF_PACKED_BATCHES = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")


def model_forward(forward: Callable) -> Callable:
    """Make a model's forward take `return_dict`, ignore the arguments of decoders that it does not have itself, and read
    `document_ids` from the arguments of packed batches, where it takes them."""
    parameters = inspect.signature(forward).parameters
    ignored = [name for name in OF_DECODERS if name not in parameters]

    @can_return_tuple
    @functools.wraps(forward)
    def wrapped(self, *args, **kwargs):
        if "document_ids" in parameters and kwargs.get("document_ids") is None:
            packing = {name: kwargs.pop(name, None) for name in OF_PACKED_BATCHES}
            kwargs["document_ids"] = packed_document_ids(packing["cu_seq_lens_q"], packing["cu_seq_lens_k"], **kwargs)
        self.check_adapters()
        return forward(self, *args, **{name: value for name, value in kwargs.items() if name not in ignored})

    return wrapped


def packed_document_ids(
    cu_seq_lens_q: torch.Tensor | None,
    cu_seq_lens_k: torch.Tensor | None,
    position_ids: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    **inputs,
) -> torch.Tensor | None:
    """Return the document_ids [1, T] of a batch that is one row of documents without padding, or None.

    Args:
        cu_seq_lens_q, cu_seq_lens_k (`torch.Tensor`, *optional*): [D + 1] from 0 to T, where each document ends; both equal.
        position_ids (`torch.Tensor`, *optional*): [1, T]; without cu_seq_lens_q and a mask, a document begins at each 0, as
            in transformers, unless all are 0.

    Raises:
        ValueError: cu_seq_lens_q that do not fit the batch.
    """
    if cu_seq_lens_q is not None:
        batch = next(
            (x for x in (inputs.get("input_ids"), inputs.get("inputs_embeds"), position_ids) if x is not None), None
        )
        shape = None if batch is None else tuple(batch.shape[:2])
        lengths = cu_seq_lens_q.diff()
        fits = cu_seq_lens_q[0] == 0 and bool((lengths >= 0).all()) and shape in (None, (1, int(cu_seq_lens_q[-1])))
        if not fits or not (cu_seq_lens_k is None or torch.equal(cu_seq_lens_q, cu_seq_lens_k)):
            raise ValueError(
                "cu_seq_lens_q must rise from 0 to T for inputs of shape [1, T], and cu_seq_lens_k must equal it; got "
                f"{cu_seq_lens_q.tolist()} for shape {shape and list(shape)}"
            )
        documents = torch.arange(1, len(cu_seq_lens_q), device=cu_seq_lens_q.device)
        return documents.repeat_interleave(lengths)[None]
    if position_ids is None or attention_mask is not None or is_traced():
        return None
    if not isinstance(position_ids, torch.Tensor) or position_ids.dim() != 2 or len(position_ids) != 1:
        return None
    begins = position_ids == 0
    restarts = bool(begins[0, :1].all()) and bool((begins[:, 1:] | (position_ids.diff() == 1)).all())
    # Zeros only are no documents of one token each, but one document without positions.
    return begins.cumsum(1) if restarts and 1 < int(begins.sum()) < begins.numel() else None


def values_at_hand(x: torch.Tensor) -> bool:
    """Tell tensors whose values can be read without a synchronisation, and without breaking a graph or a transform."""
    plain = type(x) in (torch.Tensor, nn.Parameter) and x.device.type == "cpu"
    return plain and not is_traced()


def check_ids(
    name: str,
    ids: torch.Tensor | None,
    shape: tuple[int, int],
    table: nn.Module | None,
    limit: str,
    one_row: bool = False,
):
    """Check ids [B, N] of the rows of a table: int32 or int64, and inside of the table.

    Args:
        shape (`tuple[int, int]`): B and N.
        table (`nn.Module`, *optional*): the embedding that reads the ids; None: nothing does.
        limit (`str`): name of the number of rows in the configuration.
        one_row (`bool`): whether [1, N] stands for every row of the batch.

    Raises:
        TypeError: no tensor.
        ValueError: another shape or dtype, or ids outside of the table.
    """
    if ids is None or is_traced():
        return
    require_tensor(name, ids)
    if takes_embeddings(table, ids):
        return
    B, N = shape
    if list(ids.shape) not in ([B, N], [1 if one_row else B, N]):
        expected = f"[1 or B, {N}]" if one_row else f"[{B}, {N}]"
        raise ValueError(f"{name} must have shape {expected}, got {list(ids.shape)}")
    if ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{name} must be int64 or int32, got {ids.dtype}")
    rows = getattr(table, "num_embeddings", None)
    if isinstance(rows, int) and values_at_hand(ids):
        low, high = ids.aminmax()
        if low < 0 or high >= rows:
            wrong = int(low) if low < 0 else int(high)
            raise ValueError(f"{name} must be in [0, {rows}), got {wrong}; {limit} = {rows}")


def takes_embeddings(table: nn.Module | None, ids: torch.Tensor) -> bool:
    """Return whether embeddings [B, N, E] come in place of ids, for a module that was put in place of the table (captum)."""
    is_table = table is None or isinstance(table, nn.Embedding | GradientDisentangledEmbedding)
    return not is_table and ids.is_floating_point()


def check_batch(name: str, x: torch.Tensor, axes: str):
    """Check the tensor that gives a batch its shape: as many axes as named, none of them empty.

    Raises:
        TypeError: no tensor.
        ValueError: another number of axes, or an empty one.
    """
    if is_traced():
        return
    require_tensor(name, x)
    if x.dim() != len(axes.split(",")):
        hint = "; give embeddings as inputs_embeds" if name == "input_ids" and x.is_floating_point() else ""
        raise ValueError(f"{name} must have shape [{axes}], got {list(x.shape)}{hint}")
    if 0 in x.shape:
        raise ValueError(f"{name} of shape {list(x.shape)} holds nothing: [{axes}] must be at least 1 each")


def check_labels(name: str, labels: torch.Tensor, kind: str, *shapes: list[int], classes: int | None = None):
    """Labels of a loss.

    Args:
        kind (`str`): "class": integers in [0, `classes`) or -100; "fraction": numbers in [0, 1] or -100; "number": any
            finite ones; "index": any integers.
        shapes (`list[int]`): which they may have; none: any.

    Raises:
        TypeError: no tensor.
        ValueError: another shape, dtype or value.
    """
    if is_traced():
        return
    require_tensor(name, labels)
    if shapes and list(labels.shape) not in shapes:
        raise ValueError(f"{name} must have shape {' or '.join(map(str, shapes))}, got {list(labels.shape)}")
    if kind in ("class", "index"):
        check_whole(name, labels)
    elif labels.dtype not in (*WHOLE, *REAL):
        raise ValueError(f"{name} must be real numbers, got {labels.dtype}; .float() makes them float32")
    if kind == "index" or not values_at_hand(labels):
        return
    if kind == "number":
        is_valid, expected = torch.isfinite(labels), "finite"
    elif kind == "fraction":
        is_valid, expected = ((labels >= 0) & (labels <= 1)) | (labels == -100), "in [0, 1], or -100 (not counted)"
    else:
        is_valid = ((labels >= 0) & (labels < classes)) | (labels == -100)
        expected = f"in [0, {classes}), or -100 (not counted)"
    if not bool(is_valid.all()):
        raise ValueError(f"{name} must be {expected}, got {labels[~is_valid][0].item()}")


def check_whole(name: str, x: torch.Tensor):
    """
    Raises:
        ValueError: `x` is of another dtype than the usual ones of integers.
    """
    if x.dtype not in WHOLE:
        way_out = "" if x.is_floating_point() or x.is_complex() else "; .long() makes them int64"
        raise ValueError(f"{name} must be integers, got {x.dtype}{way_out}")


def check_switches(**switches):
    """Arguments of a call that are None, True or False; "no" would count as True.

    Raises:
        TypeError: anything else.
    """
    for name, value in switches.items():
        if isinstance(value, torch.Tensor) or value not in (None, True, False):
            raise TypeError(f"{name} must be True, False or None, got {value!r}")


def is_traced() -> bool:
    """True under torch.compile, torch.export, TorchScript's tracer and the transforms of torch.func (vmap, jvp, grad), where
    values cannot be read or would become constants."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active()


def require_tensor(name: str, x):
    """
    Raises:
        TypeError: `x` is no tensor, or a sparse one.
    """
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}; torch.tensor(...) makes one of lists")
    if x.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got {x.layout}; .to_dense() makes one")

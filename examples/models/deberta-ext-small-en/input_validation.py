# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""The arguments that every `forward` takes, and checks of inputs that would otherwise give a wrong result in silence."""

import functools
import inspect
from collections.abc import Callable

import torch
from torch import nn
from transformers.utils import can_return_tuple

__all__ = ["check_labels", "check_whole", "is_traced", "model_forward", "values_at_hand"]

# Arguments of decoders that trainers give to every model; transformers' encoders ignore them, too.
OF_DECODERS = ("cache_position", "num_items_in_batch", "output_router_logits", "past_key_values", "use_cache")


# Names under which other packages give packed batches of one row (transformers' DataCollatorWithFlattening).
OF_PACKED_BATCHES = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")


def model_forward(forward: Callable) -> Callable:
    """Make a model's forward take `return_dict`, ignore the arguments of decoders that it does not have itself, and read
    `document_ids` from the arguments of packed batches, where it takes them."""
    parameters = inspect.signature(forward).parameters
    ignored = [name for name in OF_DECODERS if name not in parameters]
    takes_documents = "document_ids" in parameters

    @can_return_tuple
    @functools.wraps(forward)
    def wrapped(self, *args, **kwargs):
        if takes_documents and kwargs.get("document_ids") is None:
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
        lengths = cu_seq_lens_q.diff()
        fits = cu_seq_lens_q[0] == 0 and bool((lengths >= 0).all())
        for batch in (inputs.get("input_ids"), inputs.get("inputs_embeds"), position_ids):
            if batch is not None:
                fits = fits and tuple(batch.shape[:2]) == (1, int(cu_seq_lens_q[-1]))
        if not fits or not (cu_seq_lens_k is None or torch.equal(cu_seq_lens_q, cu_seq_lens_k)):
            raise ValueError(
                "cu_seq_lens_q must rise from 0 to T for inputs of shape [1, T], and cu_seq_lens_k must equal it; got "
                f"{cu_seq_lens_q.tolist()}"
            )
        documents = torch.arange(1, len(cu_seq_lens_q), device=cu_seq_lens_q.device)
        return documents.repeat_interleave(lengths)[None]
    if position_ids is None or attention_mask is not None or is_traced() or len(position_ids) != 1:
        return None
    begins = position_ids == 0
    restarts = bool(begins[0, :1].all()) and bool((begins[:, 1:] | (position_ids.diff() == 1)).all())
    if restarts and 1 < int(begins.sum()) < begins.numel():
        return begins.cumsum(1)
    # Only zeros are not documents of one token each, but one document without positions.
    return None


def values_at_hand(x: torch.Tensor) -> bool:
    """Tell tensors whose values can be read without a synchronisation, and without breaking a graph or a transform."""
    plain = type(x) in (torch.Tensor, nn.Parameter) and x.device.type == "cpu"
    return plain and not is_traced()


def check_labels(name: str, labels: torch.Tensor, *shapes: list[int]):
    """Refuse labels of a loss that are not integers of one of these shapes: they would be cut to integers, or reshaped.

    Raises:
        ValueError: another shape or dtype.
    """
    if list(labels.shape) not in shapes:
        raise ValueError(f"{name} must have shape {' or '.join(map(str, shapes))}, got {list(labels.shape)}")
    check_whole(name, labels)


def check_whole(name: str, x: torch.Tensor):
    """Refuse a tensor that does not hold integers.

    Raises:
        ValueError: it is of a floating or complex dtype.
    """
    if x.is_floating_point() or x.is_complex():
        raise ValueError(f"{name} must be integers, got {x.dtype}")


def is_traced() -> bool:
    """Tell if torch.compile, torch.export, TorchScript's tracer or a transform of torch.func (vmap, jvp, grad) is running,
    where values cannot be read or would become constants."""
    # torch has no public name for the last.
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active()

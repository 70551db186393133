# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Packed (varlen) sequences: the real tokens of a batch as one stream, so that nothing is computed for padding."""

from functools import cached_property

import torch

from .attention_backends import Backend
from .attention_inputs import AttentionInputs
from .input_validation import check_whole

__all__ = ["PackedSequences"]

# Attention pads documents to the longest of a group; this is the smallest ratio of lengths within a group.
SIMILAR = 0.8


class PackedSequences:
    """Packed (varlen) sequences: documents concatenated into one stream of tokens, with `cu_seqlens`.

    Args:
        token_index (`torch.LongTensor`): [T] index of each token in the flattened batch.
        lengths (`torch.LongTensor`): [D] tokens of each document, in the order of the stream; they sum to T.
        shape (`tuple[int, int]`): B and N of the batch.
    """

    def __init__(self, token_index: torch.Tensor, lengths: torch.Tensor, shape: tuple[int, int]):
        self.token_index, self.shape = token_index, shape
        self.lengths = lengths.tolist()
        ends = lengths.cumsum(0)
        self.cu_seqlens = torch.cat([ends.new_zeros(1), ends]).int()
        # [T], for each token its document, the stream index of that document's first token, and its position in it.
        self.documents = torch.arange(len(lengths), device=lengths.device).repeat_interleave(
            lengths, output_size=len(token_index)
        )
        self.first_token = (ends - lengths)[self.documents]
        self.positions = torch.arange(len(token_index), device=token_index.device) - self.first_token

    @classmethod
    def from_mask(cls, token_mask: torch.Tensor) -> "PackedSequences | None":
        """Make one document of each row of a mask [B, N] of real tokens; None if a row has gaps or no token at all.

        A gap would shift the tokens after it: relative positions are differences of batch columns.
        """
        lengths = token_mask.sum(1)
        starts = (token_mask[:, 1:] & ~token_mask[:, :-1]).sum(1) + token_mask[:, 0]
        if not bool((starts == 1).all()):
            return None
        return cls(token_mask.flatten().nonzero().squeeze(1), lengths, tuple(token_mask.shape))

    @classmethod
    def from_document_ids(cls, document_ids: torch.Tensor) -> "PackedSequences":
        """Make documents of runs of equal positive ids in a row of [B, N]; 0 is padding.

        Raises:
            ValueError: negative ids, a document that is not in one piece, or nothing but padding.
        """
        B, N = document_ids.shape
        check_whole("document_ids", document_ids)
        if bool((document_ids < 0).any()):
            raise ValueError(f"document_ids must be 0 (padding) or positive, got {int(document_ids.min())}")
        token_index = (document_ids != 0).flatten().nonzero().squeeze(1)
        if not len(token_index):
            raise ValueError("document_ids are all 0: there is no token")
        # Distinct numbers for equal ids of different rows.
        rows = torch.arange(B, device=document_ids.device)[:, None] * (int(document_ids.max()) + 1)
        runs, lengths = torch.unique_consecutive((document_ids + rows).flatten()[token_index], return_counts=True)
        starts = (document_ids[:, 1:] != document_ids[:, :-1]) & (document_ids[:, 1:] != 0)
        pieces = int(starts.sum() + (document_ids[:, 0] != 0).sum())
        if len(runs.unique()) != len(runs) or pieces != len(runs):
            raise ValueError(
                "a document must be one run of equal document_ids; give each document of a row a number of its own"
            )
        return cls(token_index, lengths, (B, N))

    def unpad(self, x: torch.Tensor) -> torch.Tensor:
        """Return the stream [1, T, ...] of the tokens of x [1 or B, N, ...]."""
        x = x.expand(self.shape[0], *x.shape[1:])
        return x.flatten(0, 1).index_select(0, self.token_index)[None]

    def pad(self, x: torch.Tensor) -> torch.Tensor:
        """Return the batch [B, N, ...] of a stream [1, T, ...], with zeros at padding."""
        B, N = self.shape
        return x.new_zeros(B * N, *x.shape[2:]).index_copy(0, self.token_index, x[0]).view(B, N, *x.shape[2:])

    @cached_property
    def groups(self) -> tuple[torch.Tensor, torch.Tensor, list[tuple[int, int, torch.Tensor | None]]]:
        """Group documents of similar lengths, padded to the longest.

        Returns:
            the stream index of each padded token of all groups; the index of each token of the stream among those; and for
            each group its number of documents, their padded length, and a mask [D, 1, 1, length] if lengths differ.
        """
        order = sorted(range(len(self.lengths)), key=lambda document: -self.lengths[document])
        starts = self.cu_seqlens.tolist()
        index, mask, groups = [], [], []
        while order:
            longest = self.lengths[order[0]]
            count = sum(self.lengths[document] >= SIMILAR * longest for document in order)
            documents, order = order[:count], order[count:]
            lengths = torch.tensor([self.lengths[document] for document in documents])[:, None]
            places = torch.arange(longest)
            real = places < lengths
            first = torch.tensor([starts[document] for document in documents])[:, None]
            index.append((first + places.minimum(lengths - 1)).flatten())
            mask.append(real.flatten())
            group_mask = None
            if not bool(real.all()):
                group_mask = real[:, None, None].to(self.token_index.device)
            groups.append((count, longest, group_mask))
        index, mask = torch.cat(index), torch.cat(mask)
        inverse = torch.empty(len(self.token_index), dtype=torch.long)
        inverse[index[mask]] = mask.nonzero().squeeze(1)
        return index.to(self.token_index.device), inverse.to(self.token_index.device), groups

    def attend(self, backend: Backend, inputs: AttentionInputs) -> torch.Tensor:
        """Return the attention within each document, [1, H, T, d].

        Args:
            inputs (`AttentionInputs`): Q_c, K_c and V_c of the stream, [1, H, T, d], without a mask.
        """
        if backend.takes_cu_seqlens:
            return backend.attend(inputs._replace(cu_seqlens=self.cu_seqlens))[0]
        index, inverse, groups = self.groups
        padded = [x[0].transpose(0, 1).index_select(0, index) for x in inputs[:3]]  # [places, H, d]
        outs, start = [], 0
        for count, length, mask in groups:
            places = slice(start, start + count * length)
            Q_c, K_c, V_c = (x[places].unflatten(0, (count, length)).transpose(1, 2) for x in padded)
            out, _ = backend.attend(inputs._replace(Q_c=Q_c, K_c=K_c, V_c=V_c, mask=mask))
            outs.append(out.transpose(1, 2).flatten(0, 1))
            start += count * length
        return torch.cat(outs).index_select(0, inverse).transpose(0, 1)[None]

    def windows(self, margin: int) -> tuple[torch.Tensor, int]:
        """Return the indices [T] of the tokens in a stream with `margin` zeros around every document, and its length."""
        places = torch.arange(len(self.token_index), device=self.token_index.device) + (self.documents + 1) * margin
        return places, len(self.token_index) + (len(self.lengths) + 1) * margin

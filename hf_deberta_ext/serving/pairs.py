# SPDX-License-Identifier: Apache-2.0
"""Requests of text pairs for models with several labels (such as NLI), because vLLM's /score needs one label."""

from collections.abc import Sequence
from typing import Any

from vllm.config import VllmConfig
from vllm.outputs import PoolingRequestOutput
from vllm.plugins.io_processors.interface import IOProcessor
from vllm.pooling_params import PoolingParams

__all__ = ["PairProcessor"]


class PairProcessor(IOProcessor):
    """Plugin `--io-processor-plugin deberta_pairs`, for the request `POST /pooling {"model": NAME, "data": {"pairs":
    [[text, text], ...], "truncate": false}}`.

    The answer has, for each pair, the predicted label and the probabilities of all labels (for a regression: the scores).
    Pairs are tokenised as in training. A pair that is too long is an error; with "truncate": true, tokens are removed at the
    end of the longer text instead.
    """

    def __init__(self, vllm_config: VllmConfig, renderer):
        super().__init__(vllm_config, renderer)
        self.tokenizer = renderer.get_tokenizer()
        self.longest = vllm_config.model_config.max_model_len
        config = vllm_config.model_config.hf_config
        self.labels = config.id2label
        self.has_token_types = getattr(config, "type_vocab_size", 0) > 0

    def parse_data(self, data: Any) -> tuple[list[tuple[str, str]], bool]:
        """Return the pairs, and whether to truncate them.

        Raises:
            ValueError: if `data` has another form.
        """
        pairs = data.get("pairs") if isinstance(data, dict) else None
        form = isinstance(pairs, list) and pairs and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
        if not form or not all(isinstance(text, str) for pair in pairs for text in pair):
            raise ValueError('expected "data": {"pairs": [[text, text], ...]} with one pair or more')
        truncate = data.get("truncate", False)
        if not isinstance(truncate, bool):
            raise ValueError(f'"truncate" must be true or false, got {truncate!r}')
        return [tuple(pair) for pair in pairs], truncate

    def pre_process(self, prompt: tuple[list, bool], request_id: str | None = None, **kwargs) -> list[dict]:
        """Return the token ids of each pair.

        Raises:
            ValueError: if a pair is too long, or if the model reads token types, which vLLM cannot pass.
        """
        pairs, truncate = prompt
        prompts = []
        for first, second in pairs:
            encoded = self.tokenizer(first, second, truncation=truncate, max_length=self.longest if truncate else None)
            if len(encoded.input_ids) > self.longest:
                raise ValueError(
                    f"a pair must have at most {self.longest} tokens, got {len(encoded.input_ids)}; shorten the pair or add "
                    '"truncate": true to "data"'
                )
            if self.has_token_types and any(encoded.get("token_type_ids", ())):
                raise ValueError("/pooling cannot pass token types, which this model reads: use /score or /rerank")
            prompts.append({"prompt_token_ids": encoded.input_ids})
        return prompts

    def merge_pooling_params(self, params: PoolingParams | None = None) -> PoolingParams:
        return PoolingParams(task="classify")

    def post_process(
        self, model_output: Sequence[PoolingRequestOutput], request_id: str | None = None, **kwargs
    ) -> list[dict[str, Any]]:
        """Return `{"label": name, "probs": [float, ...]}` for each pair."""
        answers = []
        for output in model_output:
            probs = output.outputs.data.tolist()
            answers.append({"label": self.labels[probs.index(max(probs))], "probs": probs})
        return answers

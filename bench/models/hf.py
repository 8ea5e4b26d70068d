"""Models saved by `bench=train` as transformers models (tested with 5.23): importing this module registers them.

Use `AutoModelForCausalLM.from_pretrained(folder)` for a decoder, `AutoModelForMaskedLM.from_pretrained(folder)` for an
encoder, and `AutoModelForSequenceClassification.from_pretrained(folder)` for a classifier.
"""

from dataclasses import field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutput, MaskedLMOutput, SequenceClassifierOutput

from attention_zoo import UnsupportedError
from bench import models
from bench.training import saved


class AttentionZooConfig(PreTrainedConfig):
    """The configuration of the cell that trained a model.

    Attributes:
        cell: the resolved configuration.
        vocab_size: number of token ids.
        classes: number of classes of a classifier.
        documents: documents per example of a classifier.
    """

    model_type = saved.TYPE

    cell: dict[str, Any] = field(default_factory=dict)
    vocab_size: int = 1
    classes: int | None = None
    documents: int = 1
    tie_word_embeddings: bool = False  # the model ties them itself, if at all
    max_position_embeddings: int = 0
    num_attention_heads: int = 0
    hidden_size: int = 0
    num_hidden_layers: int = 0

    def __post_init__(self, **kwargs: Any) -> None:
        """Set the other attributes that transformers expects, from the cell."""
        if self.cell:
            self.max_position_embeddings, self.num_attention_heads = self.cell["seq_len"], self.cell["num_heads"]
            self.hidden_size = self.cell["num_heads"] * self.cell["head_dim"]
            self.num_hidden_layers = models.settings(self.cell["model"]).layers
        super().__post_init__(**kwargs)


class _AttentionZooModel(PreTrainedModel):
    config_class = AttentionZooConfig
    config: AttentionZooConfig
    output_class: type[CausalLMOutput | MaskedLMOutput]

    def __init__(self, config: AttentionZooConfig) -> None:
        super().__init__(config)
        # Not every mechanism can be created on transformers' meta device.
        with torch.device("cpu"):
            self.model = self._built()
        self.post_init()

    def _built(self) -> torch.nn.Module:
        config = self.config
        return models.build(config.cell, config.vocab_size, config.classes, config.documents)

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Initialise what the checkpoint does not contain, such as tables of positions, as in a new model."""
        new = self._built()
        fresh = dict([*new.named_parameters(), *new.named_buffers()])
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            if not getattr(tensor, "_is_hf_initialized", False):
                tensor.copy_(fresh[name])

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **kwargs: Any
    ) -> CausalLMOutput | MaskedLMOutput:
        """Logits at every position and, given labels, the mean cross-entropy.

        Args:
            input_ids: `(batch, n)` int64; n is at most the `seq_len` of the training, else `ValueError`.
            attention_mask: all ones; raises `UnsupportedError` for padding.
            labels: `(batch, n)`, -100 where there is no target. For a decoder these are the tokens themselves, which
                transformers shifts as usual (targets of `bench.tasks` are shifted already); for an encoder the targets
                of each position.
            **kwargs: from transformers; the loss uses `num_items_in_batch`.
        """
        if attention_mask is not None and not attention_mask.all():
            raise UnsupportedError("attention_mask: must be all ones, the model was trained without padding")
        logits = self.model(input_ids)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        return self.output_class(loss=loss, logits=logits)


class AttentionZooForCausalLM(_AttentionZooModel, GenerationMixin):  # type: ignore[misc]
    """A decoder trained here. It has no cache: `generate` reads the whole sequence for every token."""

    output_class = CausalLMOutput

    def prepare_inputs_for_generation(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Pass the whole sequence, not only the part that transformers would not find in a cache."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}


class AttentionZooForMaskedLM(_AttentionZooModel):
    """An encoder trained here."""

    output_class = MaskedLMOutput


class AttentionZooForSequenceClassification(_AttentionZooModel):
    """A classifier trained here."""

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **kwargs: Any
    ) -> SequenceClassifierOutput:
        """Logits of each example, `(batch, classes)`, and, given labels, the mean cross-entropy.

        Args:
            input_ids: `(batch, n)` int64; for pairs `(batch, 2, n)`.
            attention_mask: of the same shape, 0 at padding.
            labels: the classes, `(batch,)`.
            **kwargs: from transformers; unused.
        """
        logits = self.model(input_ids, None, None if attention_mask is None else attention_mask.bool())
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


AutoConfig.register(saved.TYPE, AttentionZooConfig)
AutoModelForCausalLM.register(AttentionZooConfig, AttentionZooForCausalLM)
AutoModelForMaskedLM.register(AttentionZooConfig, AttentionZooForMaskedLM)
AutoModelForSequenceClassification.register(AttentionZooConfig, AttentionZooForSequenceClassification)

"""What `bench=train` left, as models of transformers (tested with 5.23): importing this module makes them known.

`AutoModelForCausalLM.from_pretrained(folder)` is a decoder, `AutoModelForMaskedLM.from_pretrained(folder)` an encoder,
`AutoModelForSequenceClassification.from_pretrained(folder)` a classifier.
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
    """The cell that a model was trained in.

    Attributes:
        cell: its resolved configuration.
        vocab_size: how many tokens the model knows.
        classes: how many a classifier tells apart.
        documents: that an example of a classifier has.
    """

    model_type = saved.TYPE

    cell: dict[str, Any] = field(default_factory=dict)
    vocab_size: int = 1
    classes: int | None = None
    documents: int = 1
    tie_word_embeddings: bool = False  # by the model itself, where they are
    max_position_embeddings: int = 0
    num_attention_heads: int = 0
    hidden_size: int = 0
    num_hidden_layers: int = 0

    def __post_init__(self, **kwargs: Any) -> None:
        """What transformers asks for besides follows from the cell."""
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
        # Not every mechanism can be made on transformers' meta device.
        with torch.device("cpu"):
            self.model = self._built()
        self.post_init()

    def _built(self) -> torch.nn.Module:
        config = self.config
        return models.build(config.cell, config.vocab_size, config.classes, config.documents)

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """What the checkpoint does not hold (tables of positions are made, not saved) is as in a new model."""
        new = self._built()
        fresh = dict([*new.named_parameters(), *new.named_buffers()])
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            if not getattr(tensor, "_is_hf_initialized", False):
                tensor.copy_(fresh[name])

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **kwargs: Any
    ) -> CausalLMOutput | MaskedLMOutput:
        """Logits at every position, and with labels the mean cross-entropy.

        Args:
            input_ids: `(batch, n)` int64, n at most the `seq_len` that it was trained at, else a `ValueError`.
            attention_mask: ones; padding is an `UnsupportedError`.
            labels: `(batch, n)`, -100 where nothing is asked. A decoder's are the tokens themselves, as for every such
                model of transformers, which shifts them (those of `bench.tasks` are shifted already); an encoder's are
                what belongs at each position.
            **kwargs: what transformers passes along, of `num_items_in_batch` the loss makes use.
        """
        if attention_mask is not None and not attention_mask.all():
            raise UnsupportedError("attention_mask: must be all ones, the model was trained without padding")
        logits = self.model(input_ids)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        return self.output_class(loss=loss, logits=logits)


class AttentionZooForCausalLM(_AttentionZooModel, GenerationMixin):  # type: ignore[misc]
    """A decoder that was trained here. It keeps no cache: `generate` reads the whole sequence for every token."""

    output_class = CausalLMOutput

    def prepare_inputs_for_generation(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """The whole sequence, whatever transformers would take from a cache."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}


class AttentionZooForMaskedLM(_AttentionZooModel):
    """An encoder that was trained here."""

    output_class = MaskedLMOutput


class AttentionZooForSequenceClassification(_AttentionZooModel):
    """A classifier that was trained here."""

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **kwargs: Any
    ) -> SequenceClassifierOutput:
        """Logits of each example, `(batch, classes)`, and with labels the mean cross-entropy.

        Args:
            input_ids: `(batch, n)` int64, of pairs `(batch, 2, n)`.
            attention_mask: of their shape, 0 at padding.
            labels: the classes, `(batch,)`.
            **kwargs: what transformers passes along, of no use here.
        """
        logits = self.model(input_ids, None, None if attention_mask is None else attention_mask.bool())
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


AutoConfig.register(saved.TYPE, AttentionZooConfig)
AutoModelForCausalLM.register(AttentionZooConfig, AttentionZooForCausalLM)
AutoModelForMaskedLM.register(AttentionZooConfig, AttentionZooForMaskedLM)
AutoModelForSequenceClassification.register(AttentionZooConfig, AttentionZooForSequenceClassification)

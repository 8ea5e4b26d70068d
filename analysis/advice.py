"""The answer in sentences: when to keep exact softmax, what to use in its place, at what memory and error."""

import math

from analysis.answer import Answer, earliest, error_text, is_faster, said_length, speed

TIE = "tie"
CLEARLY = 0.9
"""Of softmax's memory: ratios above this may come from the allocator's page size."""
SAID = {"forward": "forward pass", "forward_backward": "forward and backward pass of one attention"}


def sentences(found: list[Answer]) -> list[str]:
    """Advice for each mask and dtype: when to keep softmax, and which other mechanism to use for what."""
    return [" ".join(own) for own in advice(found)]


def advice(found: list[Answer]) -> list[list[str]]:
    """Sentences for each mask and dtype (float32 is not named) on speed, memory and errors; none advises a control."""
    own: dict[str, list[Answer]] = {}
    masks = {"With a causal mask": True, "Without a mask": False}
    for dtype in dict.fromkeys(one.dtype for one in found):
        for words, causal in masks.items():
            those = [one for one in found if (one.dtype, one.causal, one.is_control) == (dtype, causal, False)]
            own[words if dtype == "float32" else f"{words}, in {dtype}"] = those
    return [_of_mask(those, words) for words, those in own.items() if those]


def fastest(own: list[Answer]) -> tuple[Answer, str, float] | None:
    """Of those that are faster than softmax the one that trains fastest; if none trains faster, the fastest forward.

    Also the pass in which it is, and the length: the longest at which most of those were measured. Ratios grow with the
    length, so those of different lengths do not compare.
    """
    ahead = [one for one in _ahead(own) if not one.is_control]
    trained = [one for one in ahead if is_faster(one.training)]
    those, which = (trained, "forward_backward") if trained else (ahead, "forward")
    faster = [(one, n) for one in those for n, at in one.speeds[which].items() if is_faster(at)]
    if not faster:
        return None
    at = _common([n for _, n in faster])
    return max((one for one, n in faster if n == at), key=lambda one: one.speeds[which][at].median), which, at


def _common(lengths: list[float]) -> float:
    """The most frequent of these lengths, of several the longest."""
    return max(lengths, key=lambda n: (lengths.count(n), n))


def _ahead(own: list[Answer]) -> list[Answer]:
    return [one for one in own if math.isfinite(one.from_n) and is_faster(one.forward)]


def _of_mask(own: list[Answer], words: str) -> list[str]:
    ahead, found = _ahead(own), fastest(own)
    if found is None:
        longest = max(one.n for one in own)
        why = f"{_why_softmax(own)}{_faster_to_train(own)}"
        return [f"{words}: use {_softmax(own)} up to n = {longest:,} (forward pass); {why}."]
    best, which, at = found
    first = min(ahead, key=lambda one: (one.from_n, one is not best, *earliest(one)))
    trains = which == "forward_backward"  # of those that are faster at all, the fastest to train
    gain = f"{speed(best.speeds[which][at])} as fast as the best exact softmax ({SAID[which]})"
    timed = sum(at in one.speeds[which] for one in own)
    is_fastest = f"the fastest{' to train' if trains else ''} at n = {at:,.0f} (of {timed} measured): {gain}."
    where = "there" if first.from_n == first.n else f"from there to n = {first.n:,}"
    from_there = (
        f"{words}: use {_softmax(own)} below n = {first.from_n:,.0f}, where nothing stays clearly faster; "
        f"`{first.attention}` is faster{' (forward pass)' * trains} {where}, the longest at which it was measured"
    )
    if first.is_first:
        said = f"{words}: `{best.attention}` is {is_fastest}"
    elif first is best:
        said = f"{from_there}, and {is_fastest}"
    else:
        said = f"{from_there}; `{best.attention}` is {is_fastest}"
    return [said, *_of_memory(own), *_of_errors(own, ahead, best)]


def _softmax(own: list[Answer]) -> str:
    """`exact softmax (`flash`)`: the one that is usually the fastest."""
    names = [one.softmax for one in own]
    return f"exact softmax (`{max(sorted(set(names)), key=names.count)}`)"


def _why_softmax(own: list[Answer]) -> str:
    """In words, how the others' forward passes compare where none is faster from some length on."""
    faster = {one.attention: [n for n, at in one.speeds["forward"].items() if is_faster(at)] for one in own}
    those = [f"`{name}` is at n = {' and '.join(f'{n:,.0f}' for n in at)}" for name, at in faster.items() if at]
    undecided = [f"`{one.attention}` {speed(one.forward)}" for one in own if one.forward and one.forward.verdict == TIE]
    if all(at.verdict == "slower" for one in own for at in one.speeds["forward"].values()):
        return f"all others are slower ({', '.join(f'`{one.attention}`' for one in own)})"
    words = [f"nothing that was measured {'stays' if those else 'is'} clearly faster", *those]
    return ", ".join([*words, f"undecided is {', '.join(undecided)}"] if undecided else words)


def _faster_to_train(own: list[Answer]) -> str:
    """What trains faster from some length on, though its forward pass is not faster; may be empty."""
    since = {one.attention: (*one.training_from, one.training_n) for one in own if one.training_from}
    names = [f"`{name}` from n = {said_length(*of)} on" for name, of in since.items() if math.isfinite(of[0])]
    return f"; faster to train: {', '.join(names)}" if names else ""


def _of_memory(own: list[Answer]) -> list[str]:
    """A sentence: the smallest peaks at the longest length, of a forward pass and of training, and a smaller one.

    The smaller one is the smallest at any length, if it is clearly below softmax's and those at the longest are not.
    """
    peaks = {
        "a forward pass": [(ratio, one.attention, n) for one in own for n, ratio in one.memory.items()],
        "training": [(ratio, one.attention, n) for one in own for n, ratio in one.training_memory.items()],
    }
    measured = {what: of for what, of in peaks.items() if of}
    if not measured:
        return []
    least = {what: min(one for one in of if one[2] == max(n for *_, n in of)) for what, of in measured.items()}
    each = [f"{ratio:.1f}x in {what} (`{name}`, n = {n:,.0f})" for what, (ratio, name, n) in least.items()]
    over = f"as a multiple of that of the {own[0].dtype} softmax that needs least"
    if min(least.values())[0] < CLEARLY:
        return [f"Memory: the smallest peak is, {over}, {' and '.join(each)}."]
    ratio, name, n, what = min((*min(of), what) for what, of in measured.items())
    shorter = f"; `{name}` has {ratio:.2f}x at n = {n:,.0f} in {what}" if ratio < CLEARLY else ""
    saves = "No mechanism clearly saves memory at the longest length"
    return [f"{saves}: the smallest peak is, {over}, {' and '.join(each)}{shorter}."]


def _of_errors(own: list[Answer], ahead: list[Answer], best: Answer) -> list[str]:
    """A sentence: what is nearest to a trained model's softmax, if it is clearly nearer than averaging the values.

    The error of the `best` one, the fastest, stands beside it if averaging is clearly better, at the same length.
    """
    known = [one for one in own if one.error and one.averaging]
    nearer = [one for one in known if one.error and one.averaging and one.error[2] < one.averaging[1]]
    faster = [one for one in nearer if one in ahead]
    if not known:
        return []
    those = faster or nearer or known
    at = _common([one.error_n for one in those])  # an error grows with the length
    near = min((one for one in those if one.error_n == at), key=lambda one: one.error or (math.inf,))
    name = f"`{near.attention}`"
    errors = (
        f"error {error_text(near.error)} at n = {near.error_n:,.0f}, averaging the values {error_text(near.averaging)}"
    )
    place = "In place of a trained model's softmax"
    if faster:
        since = said_length(near.from_n, near.is_first, near.n)
        is_worse = best.error and best.averaging and best.error[1] > best.averaging[2]
        more = f"; `{best.attention}` has {error_text(best.error)}" if is_worse and best.error_n == near.error_n else ""
        return [f"{place}, {name} is the nearest that is faster, from n = {since} on: {errors}{more}."]
    if nearer:
        return [f"{place}, {name} is nearer than averaging, but not faster: {errors}."]
    if len(known) > 1:
        return [f"{place}, no approximation that was measured is clearly better than averaging; {name}: {errors}."]
    return [f"{place}, {name} (no other was measured) is not clearly better than averaging: {errors}."]

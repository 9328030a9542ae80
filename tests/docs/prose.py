"""Sentences of the pages, and measures of their language."""

import re

from tests.docs import pages

# Most words of a sentence.
LONGEST = 25
# Most words of a page's average sentence.
AVERAGE = 18
# Pages that a program writes from results, error lines included.
GENERATED = ("keras_examples", "keras_hub_models", "reference")
# Terms that visitors search for: one page at least must have each.
STANDARD_TERMS = (
    *("activation checkpointing", "all-gather", "all-reduce", "backend", "bitwise identical", "checksum mismatch"),
    *("communication", "context parallelism", "corrupted", "data parallelism", "DDP", "deadlock", "deterministic"),
    *("document masking", "expert parallelism", "exponential moving average", "fault injection", "fine-tuning"),
    *("FSDP", "global batch", "gradient accumulation", "gradient clipping", "grouped-query attention", "LoRA", "MFU"),
    *("mixed precision", "multi-GPU", "multi-label classification", "multi-node", "mutation testing"),
    *("optimizer state", "out of memory", "peak memory", "per device", "per step", "per token"),
    *("pipeline parallelism", "private API", "reduce-scatter", "rematerialization", "replicated", "reproducible"),
    *("RoPE", "sample weight", "sequence packing", "sequence parallel", "sharded", "smoke test", "tensor parallelism"),
    *("throughput", "tied embeddings", "tracking server", "troubleshooting", "world size", "ZeRO"),
)
_COUNTED = "bytes|steps|tokens|seconds|lines?|folders?|rows?|labels?|class(es)?|modules?|numbers?|values?"
_STEMS = (
    "analy|central|custom|digital|emphas|final|general|initial|local|maxim|memor|minim|normal|optim|organ|parallel|priorit|"
    "quant|random|recogn|regular|serial|special|standard|summar|symbol|synchron|token|util|vector|visual"
)
_UNIT = "device|step|second|token|class|row|label|line|engine|variable|example|job|dim|epoch|process"
# Old or private words, and the usual ones.
REPLACED = {
    r"mend(s|ed|ing)?": "fix",
    r"anew": "again",
    r"besides": "in addition",
    r"reckon(s|ed)?": "estimate",
    r"likeliest": "most likely",
    r"likewise": "also",
    r"whole number": "integer",
    r"(goes|go|went) on( with)?": "continues, resumes",
    r"lies? (as|in|on|over)": "is in, is sharded over",
    r"stands? (in|for|behind|below)": "is in, replaces",
    r"that is said": "the message says so",
    r"(is|are) told": "reads",
    r"of one's own": "custom",
    r"in store": "in storage",
    r"held against": "compared with",
    r"without a word": "silently",
    r"refus(e|es|ed|al|als)": "reject, invalid",
    rf"({_COUNTED}) an? ({_UNIT})": "per",
    rf"(once|twice|times) an? ({_UNIT})": "per",
    rf"({_STEMS})is(e|ed|er|ers|es|ing|ation|ations)": "American spelling",
    r"(behavi|col|fav|hon|neighb)our(s|ed|ing|able|ite)?": "American spelling",
    r"analyses? of|artefacts?|cancell(ed|ing)|centre[ds]?|grey": "American spelling",
    r"labell(ed|ing)|licence|modell(ed|ing)": "American spelling",
    r"(un|dis)?proven|unproved": "verified",
    r"slots": "optimizer state",
    r"sharp": "sensitive",
    r"generic points?": "randomly perturbed weights",
    r"not finite|non-?finite": "NaN or Inf",
    r"catch(es|ing)?|caught": "match, detect",
    r"to the (last bit|same bits)": "bitwise identical, bit for bit",
    r"(takes?|took|needs) (no |more |less )?room|what takes room": "uses memory, uses space",
    r"waits? for ?ever|for ?ever": "hangs, deadlock",
    r"woken": "interrupted",
    r"(store|server|tracker) (is|was|goes|went) away": "is unavailable",
    r"points? waits?": "metrics are buffered",
    r"(not )?as it was written": "corrupted",
    r"whole numbers": "integers",
    r"wavelengths?(?!:)": "RoPE base",
    r"split in store|whole in store": "sharded",
    r"parallel by (data|tensor|sequence)": "data, tensor, sequence parallelism",
    r"leans? on": "uses",
    r"(?<!moving\s)averages of the weights": "exponential moving average",
    r"computed again in the backward pass": "activation checkpointing",
    r"heads of keys and values": "grouped-query attention",
    r"documents joined": "sequence packing",
    r"lets? go of|let go of": "frees",
    r"so many (batches|examples)|so often at most": "a number, maximum",
    r"where it stands": "immediately",
    r"(a|the|one) line says so": "prints a warning",
    r"passes? on what": "skips",
    r"is had": "is available",
}
_PRIVATE = re.compile(r"\b(?:" + "|".join(REPLACED).replace(" ", r"\s+") + r")\b", flags=re.I)
_FENCE = re.compile(r"^```.*?^```$", flags=re.M | re.S)


def written(page: str) -> str:
    """Returns a page's text without blocks, code, link targets and comments."""
    text = _FENCE.sub("", pages.path_of(page).read_text())
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"`[^`\n]*(?:\n[^`\n]*)?`", "code", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def sentences(page: str) -> list[str]:
    """Returns the sentences of a page's paragraphs and list items; headings and tables are left out."""
    lines = [line.removeprefix("> ") for line in written(page).splitlines()]
    text = "\n".join(line for line in lines if not line.startswith(("|", "#")))
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text)
    found = []
    for paragraph in paragraphs:
        joined = " ".join(paragraph.split())
        found += [sentence for sentence in re.split(r"(?<=[.:;!?])\s+", joined) if len(sentence.split()) > 2]
    return found


def private_words(text: str) -> list[str]:
    """Returns the old or private words of a text, in order."""
    return [" ".join(match.group().split()) for match in _PRIVATE.finditer(text)]

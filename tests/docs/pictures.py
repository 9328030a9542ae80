"""docs/images: the drawn pictures of the pages, as SVG.

`python -m tests.docs.pictures` writes them again; a test compares the files with it. Numbers in a picture are read
from the tables and outputs of the page that shows it, or counted by the runner's own rules: they have one source.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

from runner import layout
from runner.config import search_path
from runner.config.build import build
from runner.config.schema import LayoutConfig
from tests.docs import pages
from tests.docs.svg import (
    BLUE,
    GREEN,
    INK,
    LINE,
    ORANGE,
    PALE,
    PINK,
    STRONG_BLUE,
    STRONG_GREEN,
    STRONG_ORANGE,
    VIOLET,
    Canvas,
)

FOLDER = pages.ROOT / "docs" / "images"
# Losses of three runs, with their command.
CURVES = pages.ROOT / "tests" / "docs" / "curves.json"
# Segments of one step, from a profile whose command is in the file.
STEP = pages.ROOT / "tests" / "docs" / "step.json"
_PARTS = {
    "weights": BLUE,
    "optimizer state": ORANGE,
    "gradients": GREEN,
    "activations": PINK,
    "temporaries": VIOLET,
}
_MIB, _GIB = 2**20, 2**30


def mesh() -> Canvas:
    """A 4x2 mesh: which devices communicate along each axis, and how often."""
    picture = Canvas(680, 330, "A mesh of eight devices in four rows and two columns, and what each axis communicates")
    picture.text(16, 24, "mesh=batch4_model2: eight devices, two axes", "bold")
    for row in range(4):
        for column in range(2):
            x, y = 150 + 190 * column, 62 + 64 * row
            picture.box(x, y, 90, 36, BLUE if column == 0 else ORANGE)
            picture.text(x + 45, y + 23, f"device {2 * row + column}", "middle")
        y = 80 + 64 * row
        picture.arrow([(246, y), (334, y)], STRONG_ORANGE, both=True)
        picture.text(134, y + 4, f"batch {row}", "small end")
    for column in range(2):
        x = 195 + 190 * column
        picture.text(x, 52, f"model {column}", "small middle")
        for row in range(3):
            picture.arrow([(x, 99 + 64 * row), (x, 125 + 64 * row)], STRONG_BLUE, both=True)
    picture.text(452, 90, "along model: tensor parallelism", "bold", STRONG_ORANGE)
    picture.text(452, 108, "one all-reduce per pair of layers,", "small")
    picture.text(452, 124, "so put it on the fastest links", "small")
    picture.text(452, 190, "along batch: data parallelism", "bold", STRONG_BLUE)
    picture.text(452, 208, "one all-reduce of the gradients", "small")
    picture.text(452, 224, "per step", "small")
    return picture


# A model of two layers whose bytes the next picture counts.
_SHAPES: dict[str, tuple[int, ...]] = {
    "d1/kernel": (4096, 16384),
    "d1/bias": (16384,),
    "d2/kernel": (16384, 4096),
    "d2/bias": (4096,),
}


def layouts() -> Canvas:
    """One model under four layouts: how its kernels are cut, and the bytes of weights per device."""
    picture = Canvas(760, 250, "The two kernels of a model under four layouts, with the bytes of weights per device")
    picture.text(16, 24, "One model on eight devices, four layouts: the shard of device 0 is colored", "bold")
    cases = [
        ("replicated", {"batch": 8}),
        ("fsdp", {"batch": 8}),
        ("megatron", {"batch": 4, "model": 2}),
        ("fsdp_megatron", {"batch": 4, "model": 2}),
    ]
    for place, (preset, axes) in enumerate(cases):
        left = 24 + 184 * place
        config = build(LayoutConfig, search_path.content_of(f"layout/{preset}"), "layout")
        placed = layout.resolve(config, _SHAPES, axes)
        stored = 0
        for placement in placed.values():
            shards = math.prod(axes[axis] for axis in placement.spec if axis)
            stored += 4 * math.prod(placement.shape) // shards
        picture.text(left, 54, f"layout={preset}", "code")
        mesh_in_words = " x ".join(f"{axis} {size}" for axis, size in axes.items())
        picture.text(left, 70, mesh_in_words, "small")
        for name, x, width, height in (("d1/kernel", left, 92, 60), ("d2/kernel", left + 104, 44, 120)):
            rows, columns = (axes[axis] if axis else 1 for axis in placed[name].spec)
            picture.box(x, 84, width, height, PALE, 0)
            picture.box(x, 84, width / columns, height / rows, BLUE, 0)
            for row in range(1, rows):
                y = 84 + row * height / rows
                picture.line([(x, y), (x + width, y)], LINE, 0.7)
            for column in range(1, columns):
                cut = x + column * width / columns
                picture.line([(cut, 84), (cut, 84 + height)], LINE, 0.7)
            picture.text(x, 84 + height + 14, name.partition("/")[0], "small")
        picture.text(left, 238, f"{stored / _MIB:,.0f} MiB per device", "bold")
    return picture


def decision() -> Canvas:
    """The decision tree of choose_layout."""
    picture = Canvas(760, 330, "Decision tree: which mesh and layout to choose")
    rows = [
        ("Do weights, gradients, optimizer state and", "activations fit on one device?", "data parallelism"),
        ("Do they fit if all but the activations are", "divided by the number of devices?", "FSDP"),
        ("Is one layer too large, or is the batch per", "device already 1?", "FSDP with tensor parallelism"),
        ("Are long sequences the problem?", "", "sequence/context parallelism"),
        ("Is the model a mixture of experts?", "", "expert parallelism"),
    ]
    options = [
        "mesh=data layout=replicated",
        "mesh=data layout=fsdp",
        "mesh=batch4_model2 layout=fsdp_megatron",
        "mesh=batch2_sequence4 layout=sequence",
        "mesh=batch2_experts4 layout=experts",
    ]
    for place, ((first, second, name), option) in enumerate(zip(rows, options, strict=True)):
        y = 14 + 62 * place
        picture.box(16, y, 310, 44)
        picture.text(28, y + (19 if second else 27), first)
        if second:
            picture.text(28, y + 35, second)
        picture.arrow([(326, y + 22), (392, y + 22)], STRONG_GREEN)
        picture.text(358, y + 15, "yes", "small middle")
        picture.box(396, y, 348, 44, GREEN)
        picture.text(408, y + 19, name, "bold")
        picture.text(408, y + 35, option, "code")
        if place < len(rows) - 1:
            picture.arrow([(171, y + 44), (171, y + 61)])
            picture.text(180, y + 57, "no", "small")
    return picture


def flow() -> Canvas:
    """The life of a run: the commands, in order, and what each writes."""
    picture = Canvas(760, 220, "The steps of a run, from the config to the export, and what each writes")
    picture.text(16, 24, "From a config to an exported model", "bold")
    steps = [
        ("check", "under 1 s", "one error line"),
        ("plan", "seconds", "plan.md, plan.png"),
        ("verify", "minutes", "verify.md"),
        ("train", "", "metrics in MLflow"),
        ("evaluate", "", "metrics of a split"),
        ("export", "", "SavedModel or .keras"),
    ]
    for place, (name, time, written) in enumerate(steps):
        x = 16 + 124 * place
        picture.box(x, 60, 104, 46, GREEN if name == "train" else BLUE)
        picture.text(x + 52, 80 if time else 88, name, "bold middle")
        if time:
            picture.text(x + 52, 97, time, "small middle")
        if place < len(steps) - 1:
            picture.arrow([(x + 104, 83), (x + 123, 83)])
        picture.line([(x + 52, 106), (x + 52, 120)], LINE, 1, "3 3")
        picture.text(x + 52, 134, written, "small middle")
    picture.box(372, 166, 136, 36, ORANGE)
    picture.text(440, 189, "checkpoint", "bold middle")
    picture.arrow([(420, 140), (420, 165)], STRONG_ORANGE)
    picture.arrow([(462, 165), (462, 140)], STRONG_ORANGE)
    picture.text(412, 156, "save", "small end")
    picture.text(470, 156, "resume=latest", "small")
    return picture


def verify() -> Canvas:
    """How verify measures a tolerance and compares a mesh with it."""
    picture = Canvas(760, 300, "Verify compares one device and a mesh, within bands that three perturbed runs measure")
    picture.text(16, 24, "The same weights and batches on both sides", "bold")
    picture.box(16, 44, 220, 50, BLUE)
    picture.text(126, 65, "one device, stock Keras", "bold middle")
    picture.text(126, 83, "the reference", "small middle")
    for place in range(3):
        picture.box(16 + 74 * place, 116, 70, 42)
        picture.text(51 + 74 * place, 134, f"run {place + 1}", "middle")
        picture.text(51 + 74 * place, 150, "perturbed", "small middle")
        picture.arrow([(51 + 74 * place, 94), (51 + 74 * place, 115)])
    picture.box(16, 210, 220, 50, ORANGE)
    picture.text(126, 231, "mesh of several devices", "bold middle")
    picture.text(126, 249, "the run to check", "small middle")
    left, right, middle = 300, 740, 520
    cases = [
        (84, "a variable inside its band", 596, STRONG_GREEN),
        (204, "a variable outside", 700, STRONG_ORANGE),
    ]
    for y, name, at, color in cases:
        picture.text(left, y - 22, name, "bold", color)
        picture.box(middle - 130, y, 260, 30, PALE, 0)
        for offset in (-31, 14, 24):
            picture.line([(middle + offset, y + 5), (middle + offset, y + 25)], STRONG_BLUE, 2)
        picture.line([(middle, y - 6), (middle, y + 36)], INK, 2)
        picture.line([(left, y + 15), (right, y + 15)], LINE, 0.7)
        picture.line([(at, y - 4), (at, y + 34)], color, 3)
        picture.text(at, y + 48, "mesh", "small middle", color)
        picture.text(middle, y + 48, "reference", "small middle")
    picture.text(left, 160, "blue: the perturbed runs; gray: the tolerance, four times their distance", "small")
    picture.arrow([(236, 137), (290, 110)])
    picture.arrow([(236, 235), (290, 222)])
    return picture


def _bytes(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"MiB": _MIB, "GiB": _GIB}[unit]


def _bars(title: str, head: str, bars: list[tuple[str, dict[str, float]]], limit: float, wide: int) -> Canvas:
    """Stacked horizontal bars of memory per device, in GiB, with JAX's limit as a line."""
    picture = Canvas(760, 96 + 40 * len(bars), title)
    picture.text(16, 24, head, "bold")
    most = max(limit, *(sum(parts.values()) for _, parts in bars))
    scale = (700 - wide) / most
    for place, (name, parts) in enumerate(bars):
        y, x = 42 + 40 * place, float(wide)
        picture.text(wide - 10, y + 18, name, "end")
        for part, size in parts.items():
            picture.box(x, y, max(size * scale, 0.5), 26, _PARTS[part], 0, "#ffffff")
            x += size * scale
        total = sum(parts.values())
        picture.text(x + 6, y + 18, f"{total:.3g} GiB", "bold")
    bottom = 42 + 40 * len(bars)
    if limit:
        picture.line([(wide + limit * scale, 34), (wide + limit * scale, bottom)], STRONG_ORANGE, 2, "5 4")
        picture.text(wide + limit * scale, bottom + 12, f"{limit} GiB that JAX uses", "small middle", STRONG_ORANGE)
    x = 16.0
    for part, color in _PARTS.items():
        picture.box(x, bottom + 24, 14, 14, color, 2)
        picture.text(x + 20, bottom + 36, part, "small")
        x += 44 + 7 * len(part)
    return picture


def memory_8b() -> Canvas:
    """The plan of an 8B model on eight H100s: the numbers of choose_layout's output."""
    shown = [text for kind, text in pages.blocks("choose_layout") if not kind and text.startswith("fits: ")]
    # The last one is of the 8B model.
    text = shown[-1]
    parts = {}
    for part in _PARTS:
        found = re.search(rf"^{part}\s+([\d.]+ \w+)", text, flags=re.M)
        assert found, part
        parts[part] = _bytes(found[1]) / _GIB
    devices = 8
    sharded = ("weights", "optimizer state", "gradients")
    replicated = {part: size * (devices if part in sharded else 1) for part, size in parts.items()}
    bars = [("layout=fsdp", parts), ("layout=replicated", replicated)]
    head = "Memory per device: 8 billion parameters on 8 H100s, planned without a GPU"
    limit = re.search(r"of ([\d.]+) GiB per device", text)
    assert limit
    title = "Planned memory of an 8B model on eight H100s, with and without FSDP"
    return _bars(title, head, bars, float(limit[1]), 150)


def memory_devices() -> Canvas:
    """Memory per device of a 1B model with FSDP, on one to eight devices: the table of fit_in_memory."""
    text = pages.path_of("fit_in_memory").read_text()
    rows = re.findall(r"^\| (\d) \| (.+) \|$", text, flags=re.M)
    bars = []
    for devices, cells in rows:
        sizes = [_bytes(cell) / _GIB for cell in cells.split(" | ")]
        name = f"{devices} device" + ("s" if devices != "1" else "")
        bars.append((name, dict(zip(_PARTS, sizes[:-1], strict=True))))
    head = "Memory per device with layout=fsdp: 1 billion parameters, one sequence per device"
    return _bars("Planned memory per device of a 1B model with FSDP on 1, 2, 4 and 8 devices", head, bars, 0, 100)


def curves() -> Canvas:
    """Losses of a whole run, of one that was killed and resumed, and of one on another mesh."""
    runs = json.loads(CURVES.read_text())
    picture = Canvas(
        760, 330, "Loss of a whole run, of a killed and resumed run, and their difference from another mesh"
    )
    steps, whole, resumed, other = (runs[name] for name in ("step", "whole", "resumed", "other"))
    picture.text(16, 24, "Training loss per step, digits on batch=8 (engine=jax)", "bold")
    left, right, top, bottom = 60, 740, 40, 190
    most = max(whole)

    def at(step: float, value: float, low: float, high: float, scale: float) -> tuple[float, float]:
        across = left + (right - left) * (step - steps[0]) / (steps[-1] - steps[0])
        return across, high - (high - low) * value / scale

    for value in (0, most / 2, most):
        _, y = at(steps[0], value, top, bottom, most)
        picture.line([(left, y), (right, y)], PALE, 1)
        picture.text(left - 8, y + 4, f"{value:.2g}", "small end")
    picture.line([at(s, v, top, bottom, most) for s, v in zip(steps, whole, strict=True)], STRONG_BLUE, 5)
    picture.line([at(s, v, top, bottom, most) for s, v in zip(steps, resumed, strict=True)], "#ffffff", 1.6)
    x, _ = at(runs["resumed_from"], 0, top, bottom, most)
    picture.line([(x, top), (x, bottom)], STRONG_ORANGE, 1.5, "4 3")
    picture.text(x + 6, top + 12, "resumed here after SIGKILL", "small", STRONG_ORANGE)
    picture.text(420, 80, "blue: run without an interruption", "small", STRONG_BLUE)
    picture.text(420, 98, "white: killed and resumed, bitwise identical", "small")
    apart = [abs(a - b) for a, b in zip(whole, other, strict=True)]
    largest = max(apart)
    picture.text(16, 222, "Difference from the same run on batch=4, model=2 (tensor parallelism): rounding", "bold")
    picture.line([at(s, v, 236, 300, largest) for s, v in zip(steps, apart, strict=True)], STRONG_GREEN, 1.5)
    picture.line([(left, 300), (right, 300)], LINE, 1)
    picture.text(left - 8, 244, f"{largest:.1g}", "small end")
    picture.text(left - 8, 304, "0", "small end")
    picture.text((left + right) / 2, 320, f"step {steps[0]} to {steps[-1]}", "small middle")
    return picture


# Row of the case study's table -> label, color and dashes of its line.
_TUTORIAL = {
    "(printed in the tutorial)": ("printed in the tutorial", INK, "2 4"),
    "`experiment=core_tutorial`": ("core_tutorial: three bugs", STRONG_ORANGE, ""),
    "`experiment=core_tutorial optimizer.frozen_step=false`": ("frozen_step fixed", LINE, ""),
    "`experiment=core_tutorial optimizer.reread_slots=false`": ("reread_slots fixed", STRONG_BLUE, ""),
    "`experiment=core_tutorial model.overwrite_second=false`": ("overwrite_second fixed", "#7b4bb7", ""),
    "`experiment=core_corrected` (no bugs)": ("core_corrected: no bugs", STRONG_GREEN, ""),
}


def core_tutorial() -> Canvas:
    """Train losses of the Core tutorial with and without each of its bugs: the table of core_tutorial."""
    rows = {}
    for row in re.findall(r"^\| (.+) \|$", pages.path_of("core_tutorial").read_text(), flags=re.M):
        options, *cells = row.split(" | ")
        if options in _TUTORIAL:
            rows[options] = [float(loss) for loss in cells[0].split(", ")]
    picture = Canvas(760, 300, "Train loss of the Core tutorial after epochs 1 to 3, with its bugs and without each")
    picture.text(16, 24, "Train loss of the Core tutorial on MNIST, batch=8, seed 22", "bold")
    left, right, top, bottom, most = 60.0, 500.0, 44.0, 260.0, 2.0
    for value in (0, 0.5, 1, 1.5, 2):
        y = bottom - (bottom - top) * value / most
        picture.line([(left, y), (right, y)], PALE, 1)
        picture.text(left - 8, y + 4, f"{value:g}", "small end")
    for epoch in (1, 2, 3):
        picture.text(left + (right - left) * (epoch - 1) / 2, bottom + 20, f"epoch {epoch}", "small middle")
    # Labels in the order of the last losses, from below, and far enough apart to be read.
    place = bottom
    for options in sorted(_TUTORIAL, key=lambda name: rows[name][-1]):
        label, color, dashes = _TUTORIAL[options]
        points = [
            (left + (right - left) * at / 2, bottom - (bottom - top) * loss / most)
            for at, loss in enumerate(rows[options])
        ]
        picture.line(points, color, 2.2, dashes)
        place = min(points[-1][1], place - 18)
        picture.line([points[-1], (right + 22, place)], color, 0.8)
        picture.text(right + 28, place + 4, f"{label}, {rows[options][-1]:.3f}", "small", color)
    return picture


def step() -> Canvas:
    """The time line of one training step on two virtual devices, from a profile."""
    devices = json.loads(STEP.read_text())["devices"]
    colors = {"matrix products": BLUE, "communication": ORANGE, "other": PALE}
    picture = Canvas(
        760, 190, "Time line of a training step on two devices: computation, and waiting in an all-reduce"
    )
    picture.text(16, 24, "One training step of an MLP on two virtual CPU devices", "bold")
    last = max(segments[-1][1] for segments in devices)
    left, scale = 90, 650 / last
    for place, segments in enumerate(devices):
        y = 44 + 44 * place
        picture.text(left - 10, y + 20, f"device {place}", "end")
        picture.line([(left, y + 15), (left + last * scale, y + 15)], PALE, 1)
        for begin, end, kind in segments:
            picture.box(left + begin * scale, y, max((end - begin) * scale, 0.6), 30, colors[kind], 0)
    for time in range(0, last, 1000):
        x = left + time * scale
        picture.line([(x, 126), (x, 131)], LINE, 1)
        picture.text(x, 144, f"{time // 1000} ms", "small middle")
    x = 90.0
    for kind, color in colors.items():
        picture.box(x, 160, 14, 14, color, 2)
        words = "all-reduce of the gradients, with waiting" if kind == "communication" else kind
        picture.text(x + 20, 172, words, "small")
        x += 50 + 6.5 * len(words)
    return picture


PICTURES: dict[str, Callable[[], Canvas]] = {
    "mesh": mesh,
    "layouts_compared": layouts,
    "decision": decision,
    "flow": flow,
    "verify": verify,
    "memory_8b": memory_8b,
    "memory_devices": memory_devices,
    "step": step,
    "curves": curves,
    "core_tutorial": core_tutorial,
}


def path_of(name: str) -> Path:
    """Returns the file of a picture."""
    return FOLDER / "drawn" / f"{name}.svg"


def main() -> None:
    """Writes all pictures."""
    for name, draw in PICTURES.items():
        path_of(name).parent.mkdir(parents=True, exist_ok=True)
        path_of(name).write_text(str(draw()))


if __name__ == "__main__":
    main()

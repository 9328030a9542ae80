"""What others put into shared folders: files of unsent records, keys, links, and runs of other machines.

What must hold: a start stores only what this user wrote and signed, uploads only files below the run's own folder,
changes only the run that a file belongs to, deletes nothing, and says in a line what it leaves. A run of another
machine keeps its status.
"""

from __future__ import annotations

import contextlib
import io
import os
import platform
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from mlflow import MlflowClient

from runner.config.schema import TrackingConfig
from runner.host import key
from runner.tracking import open_tracker, process, unsent, unsent_folders
from runner.tracking.hidden import tag_key
from runner.tracking.records import Artifact, Ending, Point, Record, Tag
from tests.campaign.base import Case
from tests.stores import store_in

_NOBODY = 65534
_SECRET = "the content of a private file"
_IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


@dataclass
class Scene:
    """A project with a store, a run that a file of unsent records claims to belong to, and a private file.

    Attributes:
      root: the project's folder.
      uri: of its store.
      run_id: the run.
      folder: the run's own.
      secret: a private file outside of it.
      machine: patches what this machine says of itself.
    """

    root: Path
    uri: str
    run_id: str
    folder: Path
    secret: Path
    machine: dict[str, object] = field(default_factory=dict)

    @property
    def unsent(self) -> Path:
        """Where the project's unsent records are."""
        return unsent_folders.project_folder(self.root)

    @property
    def path(self) -> Path:
        """The run's file of unsent records."""
        return self.unsent / f"{self.run_id}.jsonl"

    def records(self) -> list[Record]:
        """Returns what a forger would write."""
        return [
            Point("loss", 1.0, 7, 1),
            Tag("forged", "yes"),
            Artifact(str(self.secret), ""),
            Ending("FAILED", 9),
        ]

    def write(self, *records: Record) -> None:
        """Writes records as this user's run does."""
        unsent.write(self.path, self.uri, self.run_id, records or self.records(), self.folder)

    def strip(self) -> None:
        """Takes the signatures off, as releases wrote that knew none."""
        secret = key.read_own(self.root / "outputs")
        there = unsent.parse(self.path, self.path.read_bytes(), secret)
        plain = unsent.checked(there.texts, secret)
        self.path.write_text("".join(f"{line}\n" for line in plain))


Act = Callable[[Scene], None]
_ACTS: dict[str, Act] = {}
_NEEDS_ROOT: set[str] = set()
_STORED: set[str] = set()  # of which the records are this user's, and are stored
_MARKED: set[str] = set()  # of which the run is this machine's, and is marked


def _case(name: str, *, root: bool = False, stored: bool = False, marked: bool = False) -> Callable[[Act], Act]:
    def add(act: Act) -> Act:
        _ACTS[name] = act
        for chosen, names in ((root, _NEEDS_ROOT), (stored, _STORED), (marked, _MARKED)):
            if chosen:
                names.add(name)
        return act

    return add


@_case("this user's own records", stored=True)
def _own(scene: Scene) -> None:
    page = scene.folder / "inner" / "page.txt"
    page.parent.mkdir()
    page.write_text("a page")
    scene.write(Point("loss", 1.0, 7, 1), Artifact(str(page), "inner"))


@_case("not signed")
def _unsigned(scene: Scene) -> None:
    scene.write()
    scene.strip()


@_case("another user's file", root=True)
def _of_another(scene: Scene) -> None:
    scene.write()
    os.chown(scene.path, _NOBODY, _NOBODY)


@_case("another user's folder", root=True)
def _folder_of_another(scene: Scene) -> None:
    scene.write()
    os.chown(scene.unsent, _NOBODY, _NOBODY)


@_case("another user's key", root=True)
def _key_of_another(scene: Scene) -> None:
    scene.write()
    os.chown(scene.root / "outputs" / key.NAME, _NOBODY, _NOBODY)


@_case("a key that all can read")
def _open_key(scene: Scene) -> None:
    scene.write()
    (scene.root / "outputs" / key.NAME).chmod(0o644)


@_case("a key that is a link")
def _linked_key(scene: Scene) -> None:
    scene.write()
    place = scene.root / "outputs" / key.NAME
    place.rename(scene.root / "moved")
    place.symlink_to(scene.root / "moved")


@_case("signed with another key")
def _other_key(scene: Scene) -> None:
    scene.write()
    (scene.root / "outputs" / key.NAME).unlink()
    key.make(scene.root / "outputs")


@_case("signed with no key")
def _no_key(scene: Scene) -> None:
    scene.write()
    (scene.root / "outputs" / key.NAME).unlink()


@_case("a file that all can write")
def _open_file(scene: Scene) -> None:
    scene.write()
    scene.path.chmod(0o666)


@_case("a folder that all can write")
def _open_folder(scene: Scene) -> None:
    scene.write()
    scene.unsent.chmod(0o777)


@_case("a folder that is a link")
def _linked_folder(scene: Scene) -> None:
    scene.write()
    scene.unsent.rename(scene.root / "elsewhere")
    scene.unsent.symlink_to(scene.root / "elsewhere")


@_case("a file that is a link")
def _linked_file(scene: Scene) -> None:
    scene.write()
    scene.path.rename(scene.root / "elsewhere")
    scene.path.symlink_to(scene.root / "elsewhere")


@_case("a FIFO")
def _fifo(scene: Scene) -> None:
    scene.unsent.mkdir(mode=0o700)
    os.mkfifo(scene.path)


@_case("a folder in place of a file")
def _folder_as_file(scene: Scene) -> None:
    scene.path.mkdir(parents=True)
    scene.unsent.chmod(0o700)


@_case("a line added")
def _added(scene: Scene) -> None:
    scene.write(Point("loss", 1.0, 7, 1))
    with scene.path.open("a") as file:
        file.write(unsent.to_json(Ending("FAILED", 9)) + "\n")


@_case("a line of another file")
def _spliced(scene: Scene) -> None:
    scene.write(Point("loss", 1.0, 7, 1))
    other = scene.unsent / "other.jsonl"
    unsent.write(other, scene.uri, "other", [Tag("a", "b"), Ending("FAILED", 9)], scene.folder)
    with scene.path.open("a") as file:
        file.write(other.read_text().splitlines()[2] + "\n")
    other.unlink()


@_case("the head of another run")
def _other_run(scene: Scene) -> None:
    unsent.write(scene.path, scene.uri, "other", scene.records(), scene.folder)
    scene.path.write_text(scene.path.read_text().replace('"other"', f'"{scene.run_id}"'))


@_case("a name that a terminal would obey")
def _escapes(scene: Scene) -> None:
    scene.write()
    scene.strip()
    scene.path.rename(scene.unsent / "\x1b[2Jx.jsonl")


@_case("a file outside of the run's folder", stored=True)
def _outside(scene: Scene) -> None:
    scene.write(Point("loss", 1.0, 7, 1), Artifact(str(scene.secret), ""))


@_case("a path with two dots", stored=True)
def _dots(scene: Scene) -> None:
    path = scene.folder / ".." / scene.secret.name
    scene.write(Point("loss", 1.0, 7, 1), Artifact(str(path), ""))


@_case("a link in the run's folder", stored=True)
def _linked_artifact(scene: Scene) -> None:
    path = scene.folder / "page.txt"
    path.symlink_to(scene.secret)
    scene.write(Point("loss", 1.0, 7, 1), Artifact(str(path), ""))


@_case("a link to a folder in the run's folder", stored=True)
def _linked_above(scene: Scene) -> None:
    (scene.folder / "inner").symlink_to(scene.secret.parent)
    scene.write(Point("loss", 1.0, 7, 1), Artifact(str(scene.folder / "inner" / scene.secret.name), ""))


@_case("another user's file in the run's folder", root=True, stored=True)
def _artifact_of_another(scene: Scene) -> None:
    path = scene.folder / "page.txt"
    path.write_text(_SECRET)
    os.chown(path, _NOBODY, _NOBODY)
    scene.write(Point("loss", 1.0, 7, 1), Artifact(str(path), ""))


@_case("a FIFO in the run's folder", stored=True)
def _artifact_fifo(scene: Scene) -> None:
    os.mkfifo(scene.folder / "page.txt")
    scene.write(Point("loss", 1.0, 7, 1), Artifact(str(scene.folder / "page.txt"), ""))


def _recorded(scene: Scene, **more: str) -> None:
    """Lets the run be one of a process of this name; see `process.identity`."""
    tags = {process.HOST: platform.node(), process.PID: "4194303", **more}
    client = MlflowClient(scene.uri)
    for name, value in tags.items():
        client.set_tag(scene.run_id, tag_key(name), value)
    machine = process.Machine.from_tag("id/a/2000")
    scene.machine |= {"_namespace": process._INITIAL_PID_NAMESPACE, "_boot_id": "here", "_machine": machine}


def _boot(boot: str, namespace: str = process._INITIAL_PID_NAMESPACE) -> str:
    return f"{boot}/{namespace}/5"


@_case("a run of this boot whose process ended", marked=True)
def _this_boot(scene: Scene) -> None:
    _recorded(scene, **{process.BOOT: _boot("here"), process.MACHINE: "id/a/2000"})


@_case("a run of an earlier boot", marked=True)
def _earlier_boot(scene: Scene) -> None:
    _recorded(scene, **{process.BOOT: _boot("before"), process.MACHINE: "id/a/1000"})


@_case("a run of another machine of this name")
def _other_machine(scene: Scene) -> None:
    _recorded(scene, **{process.BOOT: _boot("there"), process.MACHINE: "other/b/1000"})


@_case("a run of a clone of this machine")
def _clone(scene: Scene) -> None:
    _recorded(scene, **{process.BOOT: _boot("there"), process.MACHINE: "id/b/1000"})


@_case("a run of a machine without an id")
def _no_id(scene: Scene) -> None:
    _recorded(scene, **{process.BOOT: _boot("there"), process.MACHINE: "/a/1000"})
    scene.machine["_machine"] = process.Machine.from_tag("/a/2000")


@_case("a run of a release that noted no machine")
def _last_release(scene: Scene) -> None:
    _recorded(scene, **{process.BOOT: _boot("there")})


@_case("a run of a container of this machine")
def _container(scene: Scene) -> None:
    _recorded(scene, **{process.BOOT: _boot("here", "pid:[77]"), process.MACHINE: "id/a/2000"})


CASES = len(_ACTS)


def run(cases: int, seed: int, folder: Path) -> Iterator[Case]:
    """Tries cases; those that need a second user are left out, with a line, where this one is not root."""
    names = [name for name in _ACTS if _IS_ROOT or name not in _NEEDS_ROOT]
    if not _IS_ROOT:
        print(f"foreign: not tried here, as this user is not root: {', '.join(sorted(_NEEDS_ROOT))}", file=sys.stderr)
    if cases < len(names):
        names = random.Random(seed).sample(names, cases)
    for number, name in enumerate(names):
        yield _try(name, folder / str(number))


def _try(name: str, place: Path) -> Case:
    with _alone(place):
        scene = _scene(place)
        _ACTS[name](scene)
        before = _files(scene.root)
        lines = _start(scene)
        wrong = _judge(name, scene, before, lines)
    return Case(name, not wrong, "; ".join(wrong) or (lines[0] if lines else "nothing was said"))


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Keeps a case's records out of this user's own folders."""
    elsewhere = place / "elsewhere"
    elsewhere.mkdir(parents=True)
    environment = {"XDG_STATE_HOME": str(elsewhere / "state"), "MLFLOW_TRACKING_URI": ""}
    with mock.patch.dict(os.environ, environment), mock.patch.object(tempfile, "tempdir", str(elsewhere)):
        yield


def _scene(place: Path) -> Scene:
    root = place / "project"
    folder = root / "outputs" / "runs" / "one"
    folder.mkdir(parents=True)
    uri = store_in(root / "outputs")
    client = MlflowClient(uri)
    location = (root / "outputs" / "mlartifacts").as_uri()
    run = client.create_run(client.create_experiment("victims", location))
    secret = folder.parent / "secret.txt"
    secret.write_text(_SECRET)
    secret.chmod(0o600)
    return Scene(root, uri, run.info.run_id, folder, secret)


def _start(scene: Scene) -> list[str]:
    """Starts another run in the project; returns what it said."""
    said = io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stderr(said))
        for name, value in scene.machine.items():
            stack.enter_context(mock.patch.object(process, name, lambda value=value: value))
        config = TrackingConfig(uri=scene.uri, experiment="next")
        opened = open_tracker(config, run_name="next", params={}, tags={}, root=scene.root)
        opened.finish("FINISHED")
    return said.getvalue().splitlines()


def _files(root: Path) -> Mapping[Path, bytes]:
    """Returns the files that an attack or a user put there; those of the store are not looked at."""
    store = root / "outputs" / "mlartifacts"
    return {
        path: b"" if path.is_symlink() or not path.is_file() else path.read_bytes()
        for path in root.rglob("*")
        if not path.name.startswith(("mlflow.db", ".lock")) and store not in (path, *path.parents)
    }


def _judge(name: str, scene: Scene, before: Mapping[Path, bytes], lines: list[str]) -> list[str]:
    wrong = []
    run = MlflowClient(scene.uri).get_run(scene.run_id)
    is_stored, is_marked = name in _STORED, name in _MARKED
    status = "KILLED" if is_marked else "RUNNING"
    if run.info.status != status:
        wrong.append(f"the run's status is {run.info.status}, not {status}")
    if ("loss" in run.data.metrics) != is_stored:
        wrong.append(f"points are {'not ' if is_stored else ''}stored")
    if "forged" in run.data.tags:
        wrong.append("a tag of another is stored")
    kept = scene.root / "outputs" / "mlartifacts"
    uploaded = [path for path in kept.rglob("*") if path.is_file()]
    if any(_SECRET in path.read_text() for path in uploaded):
        wrong.append("a private file is uploaded")
    if name == "this user's own records" and not any(path.read_text() == "a page" for path in uploaded):
        wrong.append("a file of the run is not uploaded")
    after = _files(scene.root)
    gone = [path.name for path, content in before.items() if after.get(path) != content]
    if gone and not (is_stored and gone == [scene.path.name]):
        wrong.append(f"{gone[0]} is gone or changed")
    is_quiet = bool(scene.machine) and not is_marked
    if len(lines) != (0 if is_quiet else 1) + (name in _STORED and name != "this user's own records"):
        wrong.append(f"{len(lines)} lines: {' | '.join(lines)}")
    if any(not line.isprintable() for line in lines):
        wrong.append("what it says controls the terminal")
    return wrong

"""Processes are grouped by who sees the same folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.processes.team import ALONE
from runner.training.checkpoint import groups
from runner.training.checkpoint.groups import Group
from tests.training.checkpoint.thread_team import ThreadTeam, all_of, together


def grouped(folders: list[Path]) -> list[Group | None]:
    return all_of(len(folders), lambda team: groups.of_folder("test", folders[team.index], team))


def test_processes_that_see_one_folder_are_no_groups(tmp_path: Path) -> None:
    assert grouped([tmp_path / "run"] * 3) == [None, None, None]
    assert list((tmp_path / "run").iterdir()) == [], "the tokens are removed"
    assert groups.of_folder("test", tmp_path / "alone", ALONE) is None
    assert not (tmp_path / "alone").exists()


def test_each_folder_has_its_group_with_its_first_process(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    first, second, third = grouped([a, b, a])
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.members, first.index, first.folder) == ((0, 2), 0, a)
    assert (second.members, second.index, second.folder) == ((1,), 0, b)
    assert (third.members, third.index, third.folder) == ((0, 2), 1, a)
    assert first.firsts == second.firsts == third.firsts == (0, 1)
    assert {first.count, second.count, third.count} == {3}
    assert list(a.iterdir()) == list(b.iterdir()) == []


def test_one_folder_by_two_paths_is_one_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert grouped([tmp_path / "a", tmp_path / "link"]) == [None, None]


def test_a_process_that_cannot_write_in_its_folder_is_a_group_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    first, second = grouped([tmp_path / "a", tmp_path / "file" / "b"])
    assert first is not None
    assert second is not None
    assert (first.members, second.members) == ((0,), (1,))


def test_a_group_gets_the_values_of_its_own_processes(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b", tmp_path / "a"]

    def act(team: ThreadTeam) -> tuple[str, list[str]]:
        group = groups.of_folder("test", folders[team.index], team)
        assert group is not None
        # A key that names the folder, as those of storage do.
        made = group.broadcast(f"made in {group.folder}", lambda: f"by {team.index}")
        return made, group.all_gather(f"sent in {group.folder}", f"of {team.index}")

    assert all_of(3, act) == [("by 0", ["of 0", "of 2"]), ("by 1", ["of 1"]), ("by 0", ["of 0", "of 2"])]


def test_if_one_group_fails_all_fail(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b", tmp_path / "a"]

    def act(team: ThreadTeam) -> None:
        group = groups.of_folder("test", folders[team.index], team)
        assert group is not None

        def make() -> None:
            if team.index == 1:
                raise OSError(28, "No space left on device")

        group.broadcast("fails", make)

    for error in together(3, act):
        with pytest.raises(OSError, match=r"No space left on device \(process 1\)") as raised:
            raise error  # type: ignore[misc]
        assert raised.value.errno == 28

"""Folders that a link in the system's own leads to are shown inside a sandbox."""

from pathlib import Path

from coordinate_eval.evaluators.sandbox.confinement import behind_links


def test_a_link_below_a_folder_of_the_system_is_shown_where_it_leads(tmp_path: Path) -> None:
    system, drivers = tmp_path / "usr", tmp_path / "drivers"
    (system / "nvidia").mkdir(parents=True)
    drivers.mkdir()
    (system / "nvidia" / "lib").symlink_to(drivers)
    assert behind_links(system / "nvidia" / "lib", [system]) == drivers
    assert behind_links(system / "nvidia", [system]) == system / "nvidia"
    assert behind_links(tmp_path / "other", [system]) == tmp_path / "other"


def test_a_path_that_leaves_a_folder_stays_as_it_is_and_is_refused_later(tmp_path: Path) -> None:
    path = tmp_path / "usr" / ".." / "home"
    assert behind_links(path, [tmp_path / "usr"]) == path

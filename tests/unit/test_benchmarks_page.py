"""The page of benchmarks: its sections are those of the scripts."""

from benchmarks import __main__ as page


def test_no_section_of_the_page_is_without_its_script() -> None:
    """Such a section would be lost when the next benchmark is run."""
    scripts = [path for path in page.FOLDER.glob("*.py") if not path.name.startswith("_")]
    assert page.written().keys() <= set(map(page.title, scripts))

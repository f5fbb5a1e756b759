"""Suites: read from YAML, with the line of each error, and narrowed to a part."""

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import ValidationError

from coordinate_eval import _format, _owner, _user_files
from coordinate_eval.coordinator.inputs.judge import why_not_judged
from coordinate_eval.coordinator.inputs.settings import JudgeSettings
from coordinate_eval.coordinator.inputs.suites import aggregates, rubric, suite_yaml
from coordinate_eval.coordinator.inputs.suites.suite_yaml import shipped
from coordinate_eval.coordinator.inputs.yaml_file import (
    Located,
    Source,
    check_json,
    only,
    wrong,
)
from coordinate_eval.errors import UserError
from coordinate_eval.priors import catalogue
from coordinate_eval.records import Dataset, Prior, Rubric, Suite

__all__ = ["load", "narrow", "parse", "runnable", "shipped"]

_DEFAULTS = {
    "group",
    "num_fewshot",
    "gen_kwargs",
    "limit",
    "sample",
    "repeats",
    "chat_template",
    "system_instruction",
    "fewshot_as_multiturn",
    "think_end_token",
    "metadata",
}


def load(name: str) -> Suite:
    """Return the suite in a file, or the shipped suite with this name.

    Raises:
        UserError: There is none, or it is malformed; names file and line.
    """
    found = _made(suite_yaml.find(name))
    check_tasks(found)
    return found


def has_own_tasks(suite: Suite) -> bool:
    """Return whether some folder of tasks is not one that is installed with this program."""
    return any(map(_is_own, suite.include_path))


def _is_own(folder: str) -> bool:
    return not Path(folder).is_relative_to(suite_yaml.shipped_folder())


def check_tasks(suite: Suite, trusted_users: Iterable[str] = ()) -> None:
    """Check that the tasks of a suite, which are programs, are the user's own, or of trusted users.

    Root and these users are trusted from now on. Tasks that are installed with this program are as
    good as the program.

    Raises:
        UserError: this machine knows no user of a name.
    """
    _owner.trust(trusted_users)
    for folder in map(Path, suite.include_path):
        if folder.is_dir() and _is_own(str(folder)):
            _check_folder(folder, deep=True)
    for dataset in suite.datasets:
        file = Path(dataset.task or "")
        if dataset.task and stat.S_ISREG(
            suite_yaml.mode(file)
        ):  # its functions are in files beside it
            _user_files.check_own(file, f"task of dataset {dataset.name}")
            _check_folder(file.parent, deep=False)


def _check_folder(folder: Path, *, deep: bool) -> None:
    """Check a folder of tasks and all files in it; with `deep` the folders in it too."""
    _owner.check_above(folder)
    for place, folders, files in os.walk(folder, followlinks=True):
        here = Path(place)
        _user_files.check_own(here, "folder of tasks")
        for name in files:
            # A link that leads nowhere, or a file that has just gone, does no harm.
            with contextlib.suppress(OSError):
                _user_files.check_own(here / name, "file in a folder of tasks")
        if not deep:
            return
        # A link may lead back up.
        folders[:] = [name for name in folders if not _leads_up(here / name)]


def _leads_up(folder: Path) -> bool:
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def parse(text: str, *, where: str, folder: Path) -> Suite:
    """Parse a suite's text, whose paths are relative to `folder`.

    Raises:
        UserError: The suite is malformed; names `where` and the line.
    """
    return _made(Source(text, where, folder, str((folder / where).resolve())))


def narrow(
    suite: Suite,
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    groups: Sequence[str] = (),
    limit: int | None = None,
    precision: float | None = None,
) -> Suite:
    """Return a part of a suite, with the digest of a suite file that lists just this part.

    A dataset stays if it is in `only` and in one of `groups`, where these are given, and not in
    `skip`. Each holds names or shell patterns such as `arc_*`, also separated by commas. At most
    `limit` items of each task are evaluated, or a sample with a standard error of at most
    `precision`; costs that the suite gives shrink in proportion.

    Raises:
        UserError: A name is unknown, or no dataset is left.
    """
    names = [d.name for d in suite.datasets]
    known_groups = list(dict.fromkeys(d.group for d in suite.datasets if d.group))
    chosen = _named("--only", only, names, known_groups)
    skipped = _named("--skip", skip, names, known_groups) or set()
    wanted = _named("--group", groups, known_groups, known_groups)
    kept = [
        _fewer(d, limit, precision)
        for d in suite.datasets
        if (chosen is None or d.name in chosen)
        and (wanted is None or d.group in wanted)
        and d.name not in skipped
    ]
    if not kept:
        raise UserError(f"suite {suite.name}: no dataset is left after --only, --group and --skip")
    digest = _digest(suite.include_path, kept)
    left = {d.name for d in kept}
    means = {n: each for n, each in suite.aggregates.items() if left & set(each.factors)}
    return suite.model_copy(update={"datasets": kept, "digest": digest, "aggregates": means})


def runnable(suite: Suite, judge: JudgeSettings | None = None) -> tuple[Suite, dict[str, str]]:
    """Return the suite without the datasets that cannot be run, and the reasons by name.

    The suite keeps its digest, since it is still the suite that was asked for. Datasets that a
    judge rates need these settings of one, if their answers are to be scored.

    Raises:
        UserError: No dataset can be run.
    """
    without = left_out(suite, judge)
    kept = [d for d in suite.datasets if d.name not in without]
    if not kept:
        name, why = next(iter(without.items()))
        raise UserError(
            f"suite {suite.name}: none of its datasets can be run, such as dataset {name}: {why}. "
            "A dry run on a cluster file plans it"
        )
    return suite.model_copy(update={"datasets": kept}), without


def left_out(suite: Suite, judge: JudgeSettings | None) -> dict[str, str]:
    """Return the datasets that can be planned and not run, with the reasons.

    They have no task, or these settings give them no judge or no baseline.
    """
    without = {d.name: _why_not(d) for d in suite.datasets if d.task is None}
    if judge is None:
        return without
    return without | {d.name: why for d in suite.datasets if (why := why_not_judged(d, judge))}


def _why_not(dataset: Dataset) -> str:
    entry = catalogue.find(dataset)
    if entry is not None and entry.kind == "judge":
        return "no task, and no rubric by which a judge would rate the answers"
    return "no task"


def _named(
    option: str, values: Sequence[str], known: Iterable[str], groups: Sequence[str]
) -> set[str] | None:
    """Return the names that an option's values select, None if it is not given."""
    if not values:
        return None
    known = list(known)
    patterns: list[str] = []
    for value in values:
        # A name may contain a comma.
        parts = [value] if value in known else [part.strip() for part in value.split(",")]
        patterns += [part for part in parts if part]
    if not patterns:
        raise UserError(f"{option} is empty: give names, or leave it out")
    found: set[str] = set()
    for pattern in patterns:
        matches = suite_yaml.matching(pattern, known)
        if not matches:
            what = "group" if option == "--group" else "dataset"
            listed = f" (groups: {', '.join(groups)})" if groups else ""
            raise UserError(f"{option}: {suite_yaml.unknown(what, pattern, known)}{listed}")
        found.update(matches)
    return found


def _fewer(dataset: Dataset, limit: int | None, precision: float | None) -> Dataset:
    """Return a dataset with fewer items, if so many are more than are wanted."""
    fewer = dataset
    if precision is not None and dataset.limit is None:
        share = catalogue.enough(dataset, precision)
        if share < (dataset.sample or 1.0):
            fewer = dataset.model_copy(update={"sample": share})
    if limit is not None and (dataset.limit is None or dataset.limit > limit):
        fewer = dataset.model_copy(update={"limit": limit, "sample": None})
    before, after = catalogue.items(dataset), catalogue.items(fewer)
    if dataset.prior is None or before is None or after is None or before == after:
        return fewer
    share = after / before
    prior = dataset.prior.model_copy(
        update={
            "gpu_seconds": dataset.prior.gpu_seconds * share,
            "cpu_seconds": dataset.prior.cpu_seconds * share,
            "score_seconds": dataset.prior.score_seconds * share,
        }
    )
    return fewer.model_copy(update={"prior": prior})


def _made(source: Source) -> Suite:
    merged = suite_yaml.merged(source)
    only(merged.defaults, _DEFAULTS, "defaults")
    datasets = [_dataset(entry, merged.defaults) for entry in merged.datasets.values()]
    if not datasets:
        raise UserError(f"suite {source.where}: no dataset is left of the suite that it extends")
    return Suite(
        name=merged.name or Path(source.where).stem,
        digest=_digest(merged.include_path, datasets),
        include_path=merged.include_path,
        datasets=datasets,
        aggregates=aggregates.resolve(merged.aggregates, datasets, source.where),
    )


def _digest(include_path: Sequence[str], datasets: Sequence[Dataset]) -> str:
    """Return a hash of what is evaluated; groups, aggregates and chance do not count."""
    home = suite_yaml.shipped_folder()
    folders = [
        f"shipped/{Path(folder).relative_to(home)}" if Path(folder).is_relative_to(home) else folder
        for folder in include_path
    ]
    content = [folders, [d.model_dump(mode="json", exclude={"group", "chance"}) for d in datasets]]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _dataset(entry: Located, defaults: Located) -> Dataset:
    only(entry, set(Dataset.model_fields), "a dataset")
    given = entry.over(defaults)
    if isinstance(prior := given.get("prior"), Located):
        only(prior, set(Prior.model_fields), "a prior")
    if isinstance(file := given.get("rubric"), str):
        read = given | {"rubric": rubric.load(file, given.at("rubric"))}
        given = Located(read, given.place, given.places)
    elif file is not None:
        raise wrong(given.at("rubric"), "rubric must be the name or the file of one rubric")
    try:
        dataset = Dataset.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise wrong(given.at(*first["loc"]), f"{name}: {_format.problem(error)}") from error
    for key in ("name", "group"):
        value = getattr(dataset, key)
        if value is not None and not suite_yaml.FILE_NAME.fullmatch(value):
            raise wrong(
                given.at(key),
                f"{key} {value!r}: use only letters, digits and _ . + = @ , -",
            )
    if dataset.limit is not None and dataset.sample is not None:
        raise wrong(
            given.at("sample"), f"dataset {dataset.name} has a limit and a sample: give one of them"
        )
    if dataset.rubric is not None and dataset.task is None:
        raise wrong(given.at("rubric"), f"dataset {dataset.name} has a rubric and needs a task")
    for key, value in given.items():
        if isinstance(value, Rubric):
            continue
        check_json(value, given.at(key), f"dataset {dataset.name}: {key}")
    unknown = catalogue.find(dataset) is None
    if dataset.task is None and unknown and (dataset.items is None or dataset.prior is None):
        raise wrong(
            given.place,
            f"dataset {dataset.name} needs a task, or items and a prior, or the name of a dataset "
            "in the catalogue",
        )
    return Dataset.model_validate(dataset.model_dump())  # plain values, which know no lines

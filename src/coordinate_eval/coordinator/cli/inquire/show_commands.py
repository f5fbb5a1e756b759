"""Commands that show runs, scores, suites and settings, and change nothing."""

import typer

from coordinate_eval.coordinator.cli.options import common, inquiring
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.errors import UserError


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (status, diagnose, runs, scores, samples, suites, config):
        app.command()(command)


def status(
    run: common.RunName = None,
    follow: inquiring.Follow = False,
    ledger: inquiring.Ledger = False,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Show how far a run is, its scores or why it failed, and what to do next.

    Exit status: 0 the run is complete or goes on; 1 it ended without all results, was cancelled,
    or has lost its supervisor; 3 the scheduler did not answer and nothing else tells.
    """
    from coordinate_eval.coordinator.cli.inquire.ledger import show_ledger
    from coordinate_eval.coordinator.cli.inquire.status import show_status

    settings, _ = load_settings({}, settings_file)
    if ledger:
        show_ledger(run, settings, as_json=as_json, follow=follow)
        return
    raise typer.Exit(show_status(run, settings, as_json=as_json, follow=follow))


def diagnose(
    what: inquiring.DiagnosedJobs = None,
    end: inquiring.Ended = None,
    ask: inquiring.Ask = False,
    confirm: inquiring.Confirm = False,
    compressed: inquiring.Compressed = False,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Name the cause of each failed job of a run, or of any job by its logs, and what to do.

    Exit status: 0 every cause is known, or nothing failed; 1 a cause is not known, or the run
    ended incomplete and no job of it failed.
    """
    from coordinate_eval.coordinator.cli.inquire.diagnose import Asked, show_causes

    settings, _ = load_settings({}, settings_file)
    asked = Asked(what or [], end or "", ask, confirm, compressed, as_json)
    raise typer.Exit(show_causes(settings, asked))


def runs(
    dataset: inquiring.ScoredDataset = None,
    limit: inquiring.MostRuns = 20,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """List the runs in `runs_dir`, the newest first."""
    from coordinate_eval.coordinator.cli.inquire.runs import list_runs

    settings, _ = load_settings({}, settings_file)
    list_runs(settings, dataset, limit, as_json=as_json)


def scores(
    run: inquiring.RunNames = None,
    metric: common.Metric = None,
    output_format: inquiring.OutputFormat = None,
    as_csv: inquiring.Csv = False,
    as_json: common.Json = False,
    as_markdown: inquiring.Markdown = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Show a table of scores: a row for each run, by training step; a column for each dataset.

    A column has the dataset's main metric: `acc_norm` if the task has it, else the first metric of
    its configuration of which more is better, else its first one. A group without a score of its
    own has the mean over its tasks.
    """
    from coordinate_eval.coordinator.cli.inquire.scores import FORMATS, show_scores

    flags = (("csv", as_csv), ("json", as_json), ("markdown", as_markdown))
    asked = [name for name, on in flags if on] + ([output_format] if output_format else [])
    if len(asked) > 1:
        raise UserError(f"{asked[0]} and {asked[1]} are two formats: give one of them")
    if asked and asked[0] not in FORMATS:
        raise UserError(f"--output-format {asked[0]}: it must be one of {', '.join(FORMATS)}")
    settings, _ = load_settings({}, settings_file)
    show_scores(run or [], settings, metric, asked[0] if asked else "table")


def samples(
    dataset: inquiring.SampledDataset = None,
    run: common.RunName = None,
    item: inquiring.Items = None,
    wrong: inquiring.Wrong = False,
    diff: inquiring.OtherRun = None,
    limit: inquiring.MostItems = None,
    metric: common.Metric = None,
    as_json: inquiring.SamplesJson = False,
    output: inquiring.SampleFiles = None,
    report: inquiring.InReport = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Show prompts, answers, targets and verdicts of a dataset that is scored.

    An item is right if the main metric of its task, or the one named, is 1 for it. The harness
    must be installed here: it scores the responses again, confined. No GPU is used.
    """
    from coordinate_eval.coordinator.cli.inquire.samples import Wanted, show_samples

    settings, _ = load_settings({}, settings_file)
    wanted = Wanted(
        dataset, item or [], wrong, diff, limit, metric, as_json, output, report
    )  # fmt: skip
    show_samples(run, settings, wanted)


def suites(
    suite: inquiring.SuiteName = None,
    model: inquiring.ModelSize = None,
    checkpoint: inquiring.PredictedCheckpoint = None,
    gpu: inquiring.GpuType = "h200",
    tp: inquiring.TensorParallel = 1,
    as_json: common.Json = False,
) -> None:
    """List the shipped suites, or the datasets of one and what they take."""
    from coordinate_eval.coordinator.cli.inquire.suites import list_shipped, model_of, show_suite
    from coordinate_eval.coordinator.inputs.suites.suite import load as load_suite

    if suite is None:
        if model is not None or checkpoint is not None:
            raise typer.BadParameter("name a suite to predict for", param_hint="SUITE")
        list_shipped(as_json=as_json)
        return
    wanted = load_suite(suite)
    name, described = model_of(model, checkpoint)
    show_suite(wanted, name, described, gpu, tp, as_json=as_json)


def config(as_json: common.Json = False, settings_file: common.SettingsFile = None) -> None:
    """Show every setting, its value, and where it comes from."""
    from coordinate_eval.coordinator.cli.inquire.config import show_config

    show_config(settings_file, as_json=as_json)

"""The command line: parses, loads settings, calls, and turns errors into messages.

Exit status: 0 success; where scores are asked for, all of them exist. 1 the run ended without all
results, or asking for it again was refused after repeated failures. 2 bad input or a refusal,
nothing was submitted. 3 the scheduler did not answer. 130 interrupted.
"""

import difflib
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinate_eval import __version__, _launchers, _search_paths
from coordinate_eval._format import visible
from coordinate_eval._no_telemetry import switch_off_telemetry
from coordinate_eval.coordinator.cli import job_commands
from coordinate_eval.coordinator.cli.launch import save_commands
from coordinate_eval.coordinator.cli.options import common, inquiring, launching, parsing, upkeep
from coordinate_eval.coordinator.cli.output import complaint, whole_output
from coordinate_eval.coordinator.cli.upkeep import priors
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.errors import CoordinateError, UserError

# Typer has it from click, or by now from a copy of click, and exports only what derives from it.
_USAGE_ERROR: Any = typer.BadParameter.__base__


class _Group(parsing.Commands):
    """The commands. `run` is the default one, also for shell completion."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own type
        if not ctx.resilient_parsing:  # completing a word that is not whole
            refuse_misspelled(args)
        return super().parse_args(ctx, with_default_command(args))

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer's own type
        try:
            return super().invoke(ctx)
        except _USAGE_ERROR as error:  # a word of the command line may be the name of a file
            error.message = visible(error.message)
            raise


app = typer.Typer(
    name="coordinate-eval",
    cls=_Group,
    help="Score a checkpoint on a suite of benchmarks, on whatever GPUs are free.\n\n"
    "`coordinate-eval CKPT` is the same as `coordinate-eval run CKPT`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.add_typer(priors.app, name="priors")

QUIET_VARIABLES = ("TQDM_DISABLE", "HF_DATASETS_DISABLE_PROGRESS_BARS")
"""Switch off other people's progress bars; set to 0 to see them."""

_GROUP_OPTIONS = ("--help", "--version", "--install-completion", "--show-completion")


def main() -> None:
    """Run the command line, as the console script does."""
    # What is written is never another user's to change, whatever the umask.
    os.umask(os.umask(0o077) | 0o022)
    _search_paths.make_absolute(os.environ, sys.path)
    _search_paths.keep_modules_private(os.environ)
    switch_off_telemetry()
    if not sys.argv[1:2] or not sys.argv[1].startswith("_"):  # no job: these are told by their site
        _launchers.leave_job(os.environ)
    for variable in QUIET_VARIABLES:
        os.environ.setdefault(variable, "1")
    try:
        with whole_output():
            _call(sys.argv[1:])
    except CoordinateError as error:
        sys.stderr.write(f"coordinate-eval: {complaint(error)}\n")
        sys.exit(error.exit_status)
    except KeyboardInterrupt:  # before or after a command; typer ends one of itself, with 130
        sys.exit(130)


def _call(args: list[str]) -> None:
    try:
        app(args=args)
    except FileNotFoundError as error:
        if error.filename is not None:
            raise
        # Only asking for the working directory fails so without naming a file.
        raise UserError("the working directory is gone: change to one that is there") from error


def with_default_command(args: list[str]) -> list[str]:
    """Return `run CKPT …` for `CKPT …`, and every other command line as it is."""
    if not args or args[0] in _commands() or args[0] in _GROUP_OPTIONS:
        return args
    return ["run", *args]


def refuse_misspelled(args: list[str]) -> None:
    """Refuse a first word that is no command and no file, but nearly the name of a command.

    Raises:
        UserError: it is; says which command it resembles.
    """
    word = args[0] if args else ""
    if not word or word in _commands() or not re.fullmatch(r"[a-z]+", word) or Path(word).exists():
        return
    typed = [name for name in _commands() if not name.startswith("_")]
    if near := difflib.get_close_matches(word, typed, n=1):
        raise UserError(f"no such command or checkpoint: {word}; did you mean {near[0]}?")


def _commands() -> set[str]:
    commands = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}
    return commands | {group.name for group in app.registered_groups if group.name}


def _print_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"{__version__}\n")
        raise typer.Exit


@app.callback()
def _group(
    version: Annotated[
        bool,
        # Eager, so that it works without a command.
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


@app.command()
def run(
    checkpoint: launching.Checkpoint = None,
    suite: launching.Suite = None,
    only: common.Only = None,
    skip: launching.Skip = None,
    group: launching.Group = None,
    limit: launching.Limit = None,
    engine: common.Engine = None,
    engine_args: launching.EngineArgs = None,
    judge_url: common.JudgeUrl = None,
    judge_model: common.JudgeModel = None,
    step: launching.Step = None,
    model_config: launching.ModelConfig = None,
    tokenizer: launching.Tokenizer = None,
    cluster: common.Cluster = None,
    nodes: launching.Nodes = None,
    max_nodes: launching.MaxNodes = None,
    max_gpus: launching.MaxGpus = None,
    gpu_type: launching.GpusOfType = None,
    queue: launching.Queue = None,
    partition: common.Partition = None,
    account: common.Account = None,
    qos: common.Qos = None,
    reservation: common.Reservation = None,
    constraint: launching.Constraint = None,
    run_dir: launching.RunDirectory = None,
    dry_run: launching.DryRun = False,
    html: launching.Html = None,
    scripts: launching.Scripts = None,
    what_if: launching.WhatIf = False,
    estimate: launching.Estimate = False,
    plan: launching.PlanFile = None,
    objective: launching.Objective = None,
    deadline: launching.Deadline = None,
    first_signal: launching.FirstSignal = None,
    wait: common.Wait = False,
    as_json: common.Json = False,
    verbose: common.Verbose = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Evaluate the checkpoint CKPT: submit the run to Slurm and return, or run here with Ray."""
    from coordinate_eval.coordinator.cli.asked import asked
    from coordinate_eval.coordinator.cli.launch.run import show_plan, start_run
    from coordinate_eval.coordinator.planning.prepare import read_inputs
    from coordinate_eval.coordinator.planning.reviewed_plan import read as read_plan

    if (html or scripts or what_if or estimate) and not dry_run:
        raise UserError(
            "--html, --scripts, --what-if and --estimate show what would be submitted: add "
            "--dry-run"
        )
    if estimate and plan is not None:
        raise UserError("--estimate makes a plan, and --plan gives one: leave out one of them")
    reviewed = read_plan(plan) if plan is not None else None
    if reviewed is not None:
        # The plan names the engine. Another one on the command line is refused below.
        if engine_args is None and engine in (None, reviewed.engine.name):
            engine_args = reviewed.engine.args
        engine = engine or reviewed.engine.name
    settings, wanted = asked(
        settings_file,
        suite=suite,
        only=only,
        skip=skip,
        group=group,
        limit=limit,
        cluster=cluster,
        nodes=nodes,
        max_nodes=max_nodes,
        max_gpus=max_gpus,
        gpu_type=gpu_type,
        objective=objective,
        deadline=deadline,
        queue=queue,
        first_signal=first_signal,
        engine=engine,
        engine_args=engine_args,
        judge_url=judge_url,
        judge_model=judge_model,
        partition=partition,
        account=account,
        qos=qos,
        reservation=reservation,
        constraint=constraint,
    )
    inputs = read_inputs(
        settings,
        wanted,
        checkpoint,
        step=step,
        config=model_config,
        tokenizer=tokenizer,
        reviewed=reviewed,
    )
    if not dry_run:
        raise typer.Exit(start_run(inputs, run_dir, wait=wait, as_json=as_json))
    show_plan(
        inputs,
        run_dir,
        as_json=as_json,
        verbose=verbose,
        html=html,
        scripts=scripts,
        what_if=what_if,
        estimate=estimate,
    )


@app.command()
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


@app.command()
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

    Exit status: 0 every cause is known, or nothing failed; 1 a cause is not known.
    """
    from coordinate_eval.coordinator.cli.inquire.diagnose import Asked, show_causes

    settings, _ = load_settings({}, settings_file)
    asked = Asked(what or [], end or "", ask, confirm, compressed, as_json)
    raise typer.Exit(show_causes(settings, asked))


@app.command()
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


@app.command()
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


@app.command()
def samples(
    dataset: inquiring.SampledDataset,
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


@app.command()
def rescore(
    run: common.RunName = None,
    only: common.Only = None,
    judge_url: common.JudgeUrl = None,
    judge_model: common.JudgeModel = None,
    wait: common.Wait = False,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Score the responses of a run again, without a GPU, in a run of its own beside it.

    For another version of the harness, a corrected filter or metric, or another judge. Scores and
    differences are in the new run's results; the old ones stay. A dataset whose prompts would be
    different now is refused.
    """
    from coordinate_eval.coordinator.cli.launch.rescore import rescore_run

    judge = {"judge.base_url": judge_url, "judge.model": judge_model}
    settings, _ = load_settings(judge, settings_file)
    raise typer.Exit(rescore_run(run, settings, only or [], wait=wait, as_json=as_json))


@app.command()
def resume(
    run: common.RunName = None,
    judge_url: common.JudgeUrl = None,
    wait: common.Wait = False,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Continue a run that was cancelled, ended incomplete, or lost its supervisor."""
    from coordinate_eval.coordinator.cli.inquire.runs import find
    from coordinate_eval.coordinator.cli.launch.resume import resume_run

    settings, _ = load_settings({"judge.base_url": judge_url}, settings_file)
    raise typer.Exit(resume_run(find(run, settings), settings, wait=wait, as_json=as_json))


@app.command()
def cancel(run: common.RunName = None, settings_file: common.SettingsFile = None) -> None:
    """End all jobs of a run. What it has published stays; `resume` continues it."""
    from coordinate_eval.coordinator.cli.inquire.runs import find
    from coordinate_eval.coordinator.cli.launch.cancel import cancel_run

    settings, _ = load_settings({}, settings_file)
    cancel_run(find(run, settings))


@app.command()
def prune(
    older_than: upkeep.OlderThan = None,
    keep: upkeep.KeepNewest = None,
    compact: upkeep.Compacting = False,
    yes: upkeep.Sure = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Remove or compact runs of yours in `runs_dir` that are complete, incomplete or cancelled.

    A run that goes on is left alone, and so is one with files that are not of this program. A
    checkpoint whose run was removed is evaluated again if it is asked for again, also by `watch`.

    Exit status: 0 all was done or listed; 1 some run could not be removed or compacted; 3 the
    scheduler did not answer.
    """
    from coordinate_eval.coordinator.cli.upkeep.prune import prune as prune_runs

    settings, _ = load_settings({}, settings_file)
    raise typer.Exit(prune_runs(settings, older_than, keep, compacting=compact, yes=yes))


@app.command()
def suites(
    suite: upkeep.SuiteName = None,
    model: upkeep.ModelSize = None,
    checkpoint: upkeep.PredictedCheckpoint = None,
    gpu: upkeep.GpuType = "h200",
    tp: upkeep.TensorParallel = 1,
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


@app.command(name="config")
def config(as_json: common.Json = False, settings_file: common.SettingsFile = None) -> None:
    """Show every setting, its value, and where it comes from."""
    from coordinate_eval.coordinator.cli.inquire.config import show_config

    show_config(settings_file, as_json=as_json)


@app.command()
def doctor(
    submit: upkeep.InJobs = False,
    nodes: upkeep.TestNodes = False,
    nodelist: upkeep.TestedNodes = None,
    engine: common.Engine = None,
    cluster: common.Cluster = None,
    partition: common.Partition = None,
    account: common.Account = None,
    qos: common.Qos = None,
    reservation: common.Reservation = None,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Check the scheduler, folders, programs and servers that runs need, and say what to do.

    With `--nodes`, find nodes that are bad: nodes in pairs gather what their GPUs hold, and those
    of a pair that fails do so with others. Runs avoid for a while what is found to be bad.

    Exit status: 0 all is well, or there are only warnings; 1 something fails, and runs would too;
    with `--nodes`, a node is bad or suspect, or none could be tested.
    """
    from coordinate_eval.coordinator.cli.upkeep.doctor import examine_all
    from coordinate_eval.coordinator.cli.upkeep.nodes import find_bad_nodes

    nodes = nodes or nodelist is not None
    if submit and nodes:
        raise UserError("--submit and --nodes test different things: give one of them")
    flags = {"engine.name": engine, "cluster": cluster, "slurm.partition": partition}
    flags |= {"slurm.account": account, "slurm.qos": qos, "slurm.reservation": reservation}
    settings, _ = load_settings(flags, settings_file)
    if nodes:
        raise typer.Exit(find_bad_nodes(settings, nodelist, as_json=as_json))
    raise typer.Exit(examine_all(settings, submit=submit, as_json=as_json))


save_commands.register(app)
job_commands.register(app)

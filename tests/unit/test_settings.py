"""Settings: what wins, and where it says it came from."""

import datetime
from pathlib import Path

import pytest

from coordinate_eval.coordinator.inputs import layers
from coordinate_eval.coordinator.inputs.layers import Layer
from coordinate_eval.errors import UserError


def test_settings_of_earlier_versions_stop_nothing_and_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        "max_nodes = 2\n[scoring]\nmemory_gib = 30\n[build]\njobs = 3\nminutes = 60\n"
        "[diagnosis]\nbase_url = 'http://h/v1'\n"
    )
    monkeypatch.setenv("COORDINATE_EVAL_BUILD_JOBS", "2")
    settings, sources = layers.load({}, file)
    assert (settings.harness.memory_gib, settings.harness.jobs) == (30, 2)
    assert sources["harness.jobs"] == "environment"
    assert settings.nodes == "2"
    assert capsys.readouterr().err.splitlines() == [
        f"setting max_nodes in {file} is called nodes now",
        f"setting scoring.memory_gib in {file} is called harness.memory_gib now",
        f"setting build.jobs in {file} is called harness.jobs now",
        f"setting build.minutes in {file} is gone and has no effect: remove it",
        f"setting diagnosis.base_url in {file} is gone and has no effect: remove it",
        "setting build.jobs in the environment is called harness.jobs now",
    ]
    with pytest.raises(UserError, match=r"harness\.jobs"):
        layers.resolve([Layer(source="f", values={"scoring.jobs": 0})])
    found, _ = layers.resolve([Layer(source="f", values={"slurm.exclude": "gpu[1-3],gpu7"})])
    assert found.slurm.exclude == "gpu[1-3],gpu7"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('engine = "vllm"', r'engine in .* is a section.*Write \[engine\].*: name = "vllm"$'),
        ('engine = "simulated"', 'such as: name = "simulated"$'),
        ("engine = ['vllm']", 'such as: name = "vllm"$'),
        ("trial = 8", r"Write \[trial\].*such as: cpus = 8$"),
        ('stage = "shm"', 'such as: where = "shm"$'),
        ("judge = true", "setting judge .* is a section"),
        ('[slurm]\npartition = "gpu"\nsuite = "base"',
         r"'slurm\.suite'.*suite is a setting outside of sections: write it above the first"),
        ("zz = 1", "remove it"),
        ('[slurm]\npartitions = "gpu"', r"did you mean slurm\.partition\?"),
    ],
)  # fmt: skip
def test_a_value_in_the_wrong_place(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=words):
        layers.resolve([layers.file_layer(file, {})])


def test_later_layers_win(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        'suite = "x"\n[slurm]\npartition = "gpu"\naccount = "a"\nsetup = ["module load cuda"]\n'
        "[engine]\nargs = {dtype = 'float32'}\n"
    )
    environ = {
        "COORDINATE_EVAL_SLURM_PARTITION": "low",
        "COORDINATE_EVAL_NODES": "2",
        "COORDINATE_EVAL_MAX_GPUS": "3",
        "COORDINATE_EVAL_SLURM_EXTRA_ARGS": '["--exclude=bad"]',
        "COORDINATE_EVAL_METRICS_ALLOW_UNSAFE_CODE": "true",
    }
    settings, sources = layers.resolve(
        [
            layers.file_layer(file, {}),
            layers.environment_layer(environ),
            Layer(source="command line", values={"slurm.account": "b"}),
        ]
    )
    assert (settings.slurm.partition, settings.slurm.account) == ("low", "b")
    assert settings.slurm.setup == ("module load cuda",)
    assert settings.slurm.extra_args == ("--exclude=bad",)
    assert (settings.nodes, settings.max_gpus) == ("2", 3)
    assert settings.metrics.allow_unsafe_code is True
    assert settings.engine.args == {"dtype": "float32"}
    assert sources["slurm.partition"] == "environment"
    assert sources["slurm.account"] == "command line"
    assert sources["suite"] == str(file)
    assert "supervisor.poll_seconds" not in sources


def nested(depth: int) -> list[object]:
    """A list in a list, and so on."""
    inner: list[object] = []
    for _ in range(depth):
        inner = [inner]
    return inner


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"slurm.partitoin": "x"}, "slurm.partitoin"),
        ({"max_gpus": 0}, "max_gpus"),
        ({"engine.name": "gpt"}, "engine.name"),
        ({"slurm.memory": "per-node"}, "setting slurm.memory in here.toml: must be True, False or"),
        ({"supervisor.poll_seconds": -1}, "poll_seconds"),
        ({"harness.memory_gib": 1e308}, "harness.memory_gib"),
        ({"trial.hang_minutes": -1}, "trial.hang_minutes"),
        ({"runs_dir": "~nosuchuser/x"}, "no home folder for ~nosuchuser/x"),
        ({"cache_dir": "~nosuchuser/x"}, "cache_dir"),
        ({"priors_dir": "~nosuchuser/x"}, "priors_dir"),
        ({"engine.args": {"a": "\ud800"}}, "engine.args"),
        ({"runs_dir": "/x/\udcff"}, "runs_dir"),
        ({"slurm.account": "a\0"}, "slurm.account"),
        ({"engine.args": {"a": float("nan")}}, "engine.args"),
        ({"engine.args": {"a": datetime.date(2020, 1, 1)}}, "engine.args"),
        ({"engine.args": {"a": nested(900)}}, "nested too deeply"),
    ],
)
def test_mistakes_name_setting_and_source(values: dict[str, object], words: str) -> None:
    with pytest.raises(UserError) as caught:
        layers.resolve([Layer(source="here.toml", values=values)])
    assert words in str(caught.value)
    assert "here.toml" in str(caught.value)


def test_a_file_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        layers.file_layer(tmp_path / "no.toml", {})
    (tmp_path / "bad.toml").write_text("suite = \n")
    with pytest.raises(UserError, match=r"bad\.toml"):
        layers.file_layer(tmp_path / "bad.toml", {})
    (tmp_path / "deep.toml").write_text("a = " + "[" * 3000)
    with pytest.raises(UserError, match=r"deep\.toml cannot be read: .*deeply"):
        layers.file_layer(tmp_path / "deep.toml", {})


def test_the_users_own_file_need_not_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert layers.file_layer(Path("/dev/null"), {}).values == {}
    layer = layers.file_layer(None, {})
    assert layer.values == {}
    assert layer.source.startswith(str(tmp_path))


def test_no_home_is_said_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(self: Path) -> Path:
        if str(self).startswith("~"):
            raise RuntimeError("Could not determine home directory.")
        return self

    monkeypatch.setattr(Path, "expanduser", nowhere)
    with pytest.raises(UserError, match="runs_dir in the defaults: no home folder"):
        layers.resolve([])
    places = {name: f"/x/{name}" for name in ("runs_dir", "cache_dir", "priors_dir")}
    settings, _ = layers.resolve([Layer(source="f", values=places)])
    assert settings.runs_dir == "/x/runs_dir"


def test_a_mistyped_variable_is_refused_and_the_programs_own_are_not() -> None:
    with pytest.raises(UserError) as caught:
        layers.environment_layer({"COORDINATE_EVAL_SLURM_PARTITON": "x"})
    assert "did you mean COORDINATE_EVAL_SLURM_PARTITION?" in str(caught.value)
    own = ("CONFIG", "INDEX", "TASK", "STARTED", "ENDS_WITH_PARENT")
    environ = {f"COORDINATE_EVAL_{name}": "1" for name in own} | {"HOME": "/"}
    assert layers.environment_layer(environ).values == {}


def test_a_deep_table_in_a_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORDINATE_EVAL_ENGINE_ARGS", "[" * 100_000)
    with pytest.raises(UserError, match=r"engine\.args in the environment"):
        layers.load({})


def test_every_setting_has_a_name_and_can_be_frozen() -> None:
    settings, _ = layers.resolve([])
    assert type(settings).model_validate_json(settings.model_dump_json()) == settings
    assert {"slurm.partition", "engine.args", "trial.cpus"} <= set(layers.names())

"""Settings: what wins, and where it says it came from."""

from pathlib import Path

import pytest

from coordinate_eval.coordinator import config
from coordinate_eval.coordinator.config import Layer
from coordinate_eval.errors import UserError


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
    settings, sources = config.resolve(
        [
            config.file_layer(file, {}),
            config.environment_layer(environ),
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


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"slurm.partitoin": "x"}, "slurm.partitoin"),
        ({"max_gpus": 0}, "max_gpus"),
        ({"engine.name": "gpt"}, "engine.name"),
        ({"supervisor.poll_seconds": -1}, "poll_seconds"),
    ],
)
def test_mistakes_name_setting_and_source(values: dict[str, object], words: str) -> None:
    with pytest.raises(UserError) as caught:
        config.resolve([Layer(source="here.toml", values=values)])
    assert words in str(caught.value)
    assert "here.toml" in str(caught.value)


def test_a_file_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        config.file_layer(tmp_path / "no.toml", {})
    (tmp_path / "bad.toml").write_text("suite = \n")
    with pytest.raises(UserError, match=r"bad\.toml"):
        config.file_layer(tmp_path / "bad.toml", {})


def test_every_setting_has_a_name_and_can_be_frozen() -> None:
    settings, _ = config.resolve([])
    assert type(settings).model_validate_json(settings.model_dump_json()) == settings
    assert {"slurm.partition", "engine.args", "trial.cpus"} <= set(config.names())

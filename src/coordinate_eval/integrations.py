"""Callbacks of training libraries that ask for the evaluation of each checkpoint that they save.

Each takes what `after_save` takes but path and step. A library is imported when its callback is
made. Everything else calls `after_save` itself, in one line: see docs/how-to/after-each-save.md.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinate_eval._after_save import after_save

if TYPE_CHECKING:
    import olmo_core.train.callbacks
    import pytorch_lightning
    import transformers


def transformers_callback(**asked: Any) -> transformers.TrainerCallback:  # noqa: ANN401 - as after_save
    """Return a callback for `transformers.Trainer`, and for what is made of it, such as TRL's.

    Raises:
        TypeError: `after_save` takes no such argument.
    """
    _check(asked)
    from transformers import TrainerCallback
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

    class AfterSave(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401
            step = state.global_step
            after_save(
                Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{step}", step=step, **asked
            )

    return AfterSave()


def lightning_callback(**asked: Any) -> pytorch_lightning.Callback:  # noqa: ANN401 - as after_save
    """Return a callback for Lightning's `Trainer`: it asks when a file is whole.

    `on_save_checkpoint` is called before anything is written. So it looks at what `ModelCheckpoint`
    has saved when the next batch begins, and at the end.

    Raises:
        TypeError: `after_save` takes no such argument.
    """
    _check(asked)
    import importlib
    import sys

    # One library under two names, whose classes differ.
    name = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
    base: Any = importlib.import_module(name).Callback

    class AfterSave(base):  # type: ignore[misc]  # either of them
        def __init__(self) -> None:
            self._asked: set[str] = set()

        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:  # noqa: ANN401
            self._look(trainer)

        def teardown(self, trainer: Any, *_: Any, **__: Any) -> None:  # noqa: ANN401
            self._look(trainer)

        def _look(self, trainer: Any) -> None:  # noqa: ANN401
            for saver in trainer.checkpoint_callbacks:
                for path in {*saver.best_k_models, saver.best_model_path} - {*self._asked, ""}:
                    self._asked.add(path)
                    after_save(path, **asked)

    return AfterSave()


def olmo_core_callback(**asked: Any) -> olmo_core.train.callbacks.Callback:  # noqa: ANN401 - as after_save
    """Return a callback for OLMo-core's `Trainer`.

    Raises:
        TypeError: `after_save` takes no such argument.
    """
    _check(asked)
    from olmo_core.train.callbacks import Callback

    class AfterSave(Callback):  # type: ignore[misc]  # the library is not installed for checks
        def post_checkpoint_saved(self, path: Any) -> None:  # noqa: ANN401
            after_save(path, step=self.step, **asked)

    return AfterSave()


def _check(asked: dict[str, Any]) -> None:
    """Check arguments of `after_save` when a callback is made, and not at the first save."""
    inspect.signature(after_save).bind("checkpoint", **asked)

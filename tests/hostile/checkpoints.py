"""Checkpoints that try to run code: what each tries, and what must come of it.

`HOSTILE` lists them. `make` writes one into a folder: the tiny model, with the files changed or
added that the attack needs. Their code leaves a mark. A mark is a failure, whatever else happens.

A checkpoint that can be read without what it names is evaluated as if it did not name it. Another
is refused where it is read, in words that name its folder and the code or class.
"""

import json
import pickle
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tiny import tiny_model

MARK = "ran"
"""The name of the file that code of a hostile checkpoint leaves beside the checkpoint's folder."""


@dataclass(frozen=True)
class Hostile:
    """One attack. `change` gets a copy of the tiny model, and a line of Python that marks."""

    name: str
    tries: str
    change: Callable[[Path, str], None]
    no_tokenizer: str = ""
    """A word of the message with which its tokenizer is refused; empty if it can be loaded."""
    no_model: str = ""
    """A word of the message with which an engine refuses it; empty if it can be loaded."""


def make(hostile: Hostile, folder: Path) -> Path:
    """Write the checkpoint into `folder`, which must not exist. Return it."""
    shutil.copytree(tiny_model(), folder)
    hostile.change(folder, marking(folder))
    return folder


def together(attacks: Iterable[Hostile]) -> Hostile:
    """Return attacks by one folder: the mark names which of them ran."""
    parts = list(attacks)

    def change(folder: Path, code: str) -> None:
        for each in parts:
            each.change(folder, code.replace("__name__", f"{each.name!r} + ' in ' + __name__"))

    names = " and ".join(each.name for each in parts)
    return Hostile(names, "several attacks at once", change)


def marking(folder: Path) -> str:
    """Return a line of Python that leaves the mark of the checkpoint in `folder`."""
    return f"open({str(folder.parent / MARK)!r}, 'a').write(__name__ + '\\n')"


def marked(folder: Path) -> str:
    """Return what code of the checkpoint in `folder` left behind, empty if none ran."""
    mark = folder.parent / MARK
    return mark.read_text() if mark.exists() else ""


def edit(folder: Path, name: str, content: Mapping[str, Any]) -> None:
    """Add entries to a JSON file, which is made if it is not there."""
    file = folder / name
    old = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(old | dict(content)))


class _Bomb:
    """Runs a line of Python where it is unpickled."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, (self.code.replace("__name__", "'a pickle'"),)


_MODULE = """\
{code}
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers import PreTrainedTokenizerFast
class Config(LlamaConfig):
    model_type = "hostile"
class Model(LlamaForCausalLM):
    config_class = Config
class Tokenizer(PreTrainedTokenizerFast):
    {code}
class Processor:
    {code}
def generate(*args, **options):
    {code}
"""


def _module(folder: Path, code: str, name: str = "hostile.py") -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_MODULE.format(code=code))


def _tokenizer_map(folder: Path, code: str) -> None:
    _module(folder, code)
    edit(folder, "tokenizer_config.json", {"auto_map": {"AutoTokenizer": _BOTH}})


def _old_tokenizer_map(folder: Path, code: str) -> None:
    _module(folder, code)
    edit(folder, "tokenizer_config.json", {"auto_map": _BOTH})


def _tokenizer_of_its_own(folder: Path, code: str) -> None:
    _module(folder, code)
    own = {"tokenizer_class": "HostileTokenizer", "auto_map": {"AutoTokenizer": _BOTH}}
    edit(folder, "tokenizer_config.json", own)
    edit(folder, "config.json", {"model_type": "hostile"})


def _tokenizer_elsewhere(folder: Path, code: str) -> None:
    other = folder.parent / "elsewhere"
    _module(other, code)
    reference = f"{other}--hostile.Tokenizer"
    edit(folder, "tokenizer_config.json", {"auto_map": {"AutoTokenizer": [reference, reference]}})


def _config_map(folder: Path, code: str) -> None:
    _module(folder, code)
    edit(folder, "config.json", {"auto_map": _MODEL_MAP})


def _model_of_its_own(folder: Path, code: str) -> None:
    _config_map(folder, code)
    edit(folder, "config.json", {"model_type": "hostile", "architectures": ["HostileForCausalLM"]})


def _tokenizer_in_config(folder: Path, code: str) -> None:
    _module(folder, code)
    edit(folder, "config.json", {"auto_map": {**_MODEL_MAP, "AutoTokenizer": _BOTH}})


def _nested_map(folder: Path, code: str) -> None:
    _module(folder, code)
    inner = {"auto_map": _MODEL_MAP, "model_type": "hostile"}
    nested = dict.fromkeys(("vision_config", "text_config_of_old", "encoder"), inner)
    edit(folder, "config.json", {**nested, "layers": [inner]})


def _generates(folder: Path, code: str) -> None:
    _module(folder, code, "custom_generate/generate.py")
    (folder / "custom_generate" / "requirements.txt").write_text("torch\n")
    edit(folder, "generation_config.json", {"custom_generate": str(folder)})
    edit(folder, "config.json", {"custom_generate": str(folder)})


def _contrasts(folder: Path, code: str) -> None:
    """Ask for a way of decoding that transformers keeps in a repository of its own."""
    _module(folder, code, "custom_generate/generate.py")
    edit(folder, "generation_config.json", {"penalty_alpha": 0.6, "top_k": 4, "num_beam_groups": 2})


def _pipelines(folder: Path, code: str) -> None:
    _module(folder, code)
    pipelines = {"text-generation": {"impl": "hostile.Processor", "pt": ["AutoModelForCausalLM"]}}
    edit(folder, "config.json", {"custom_pipelines": pipelines})


def _processes(folder: Path, code: str) -> None:
    _module(folder, code)
    own = {"AutoProcessor": "hostile.Processor", "AutoImageProcessor": "hostile.Processor"}
    for name in ("processor_config.json", "preprocessor_config.json"):
        edit(folder, name, {"processor_class": "HostileProcessor", "auto_map": own})
    edit(folder, "tokenizer_config.json", {"processor_class": "HostileProcessor", "auto_map": own})


def _adapts(folder: Path, code: str) -> None:
    """Name another folder as the base of an adapter."""
    other = folder.parent / "base"
    shutil.copytree(tiny_model(), other)
    _model_of_its_own(other, code)
    adapter = {"base_model_name_or_path": str(other), "peft_type": "LORA", "task_type": "CAUSAL_LM"}
    edit(folder, "adapter_config.json", {**adapter, "auto_mapping": {"parent_library": "hostile"}})
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(_Bomb(code)))


def _pickles_beside(folder: Path, code: str) -> None:
    bomb = pickle.dumps(_Bomb(code))
    for name in ("pytorch_model.bin", "training_args.bin", "vocab.pkl", "consolidated.00.pth"):
        (folder / name).write_bytes(bomb)
    edit(folder, "config.json", {"transformers_weights": "pytorch_model.bin"})


def _files_elsewhere(folder: Path, code: str) -> None:
    """Point the files of the tokenizer at pickles, and out of the folder."""
    other = folder.parent / "vocab.pkl"
    other.write_bytes(pickle.dumps(_Bomb(code)))
    names = ("vocab_file", "tokenizer_file", "merges_file", "spm_file", "pretrained_vocab_file")
    edit(folder, "tokenizer_config.json", {name: str(other) for name in names})
    edit(folder, "tokenizer_config.json", {"name_or_path": str(folder.parent)})
    edit(folder, "config.json", {"_name_or_path": str(folder.parent)})


def _pickled_vocabulary(folder: Path, code: str) -> None:
    (folder / "vocab.pkl").write_bytes(pickle.dumps(_Bomb(code)))
    edit(folder, "tokenizer_config.json", {"tokenizer_class": "TransfoXLTokenizer"})


def _drafts(folder: Path, code: str) -> None:
    """Have vLLM load another folder in place of this one."""
    other = folder.parent / "verifier"
    shutil.copytree(tiny_model(), other)
    _model_of_its_own(other, code)
    verifier = {"name_or_path": str(other), "architectures": ["HostileForCausalLM"]}
    proposal = {"proposal_type": "greedy", "speculative_tokens": 1}
    spec = {"algorithm": "eagle3", "proposal_methods": [proposal], "verifier": verifier}
    layer = json.loads((folder / "config.json").read_text())
    edit(
        folder,
        "config.json",
        {
            "speculators_config": spec,
            "speculators_model_type": "eagle3",
            "transformer_layer_config": layer,
            "draft_vocab_size": layer["vocab_size"],
        },
    )


def _kernels(folder: Path, code: str) -> None:
    """Name a repository of kernels, which are programs, as the way to compute attention."""
    _module(folder, code, "build/torch-universal/kernel/__init__.py")
    names = ("attn_implementation", "_attn_implementation", "experts_implementation")
    edit(folder, "config.json", dict.fromkeys(names, "somebody/kernel"))


def _sentences(folder: Path, code: str) -> None:
    _module(folder, code)
    modules = [{"idx": 0, "name": "0", "path": "", "type": "hostile.Processor"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    activation = {"activation_fn": "hostile.Processor"}
    edit(folder, "config.json", {"sentence_transformers": activation})
    edit(folder, "config.json", {"sbert_ce_default_activation_function": "hostile.Processor"})


def _class_name(name: str) -> Callable[[Path, str], None]:
    """Name something as the tokenizer's class that transformers has, and is none."""

    def change(folder: Path, code: str) -> None:
        _module(folder, code)
        edit(folder, "tokenizer_config.json", {"tokenizer_class": name, "auto_map": _MODEL_MAP})
        edit(folder, "config.json", {"auto_map": _MODEL_MAP})

    return change


def _template(folder: Path, code: str) -> None:
    escape = "cycler.__init__.__globals__.os"
    python = code.replace("__name__", "'a template'").replace('"', '\\"')
    text = f'{{{{ {escape}.system("python3 -c \\"{python}\\"") }}}}'
    edit(folder, "tokenizer_config.json", {"chat_template": text})
    (folder / "chat_template.jinja").write_text(text)


def _shadows(folder: Path, code: str) -> None:
    """Name modules like those that libraries import or load by name."""
    for name in ("exact_match", "bleu", "code_eval", "planted"):
        _module(folder, code, f"{name}/{name}.py")
        _module(folder, code, f"evaluate-metric/{name}/{name}.py")
    for name in ("json", "reads_tokenizer", "transformers_modules", "datasets_modules"):
        _module(folder, code, f"{name}/{name}.py")
        _module(folder, code, f"{name}/__init__.py")


_BOTH = ["hostile.Tokenizer", "hostile.Tokenizer"]
_MODEL_MAP = {
    "AutoConfig": "hostile.Config",
    "AutoModel": "hostile.Model",
    "AutoModelForCausalLM": "hostile.Model",
}

HOSTILE = (
    Hostile("tokenizer map", "auto_map of the tokenizer, with its module", _tokenizer_map),
    Hostile("old tokenizer map", "the same in its old form, a list", _old_tokenizer_map),
    Hostile(
        "own tokenizer",
        "a class of tokenizer that only its module has",
        _tokenizer_of_its_own,
        no_tokenizer="hostile.Tokenizer",
        no_model="hostile.Tokenizer",
    ),
    Hostile("tokenizer elsewhere", "auto_map to a module of another folder", _tokenizer_elsewhere),
    Hostile("config map", "auto_map of config and model", _config_map),
    Hostile(
        "own model",
        "a kind of model that only its module has",
        _model_of_its_own,
        no_model="hostile.Model",
    ),
    Hostile(
        "tokenizer in config", "auto_map of the tokenizer in config.json", _tokenizer_in_config
    ),
    Hostile("nested map", "auto_map in parts of the config", _nested_map),
    Hostile("generates", "a generate function of its own", _generates),
    Hostile("contrasts", "a way of decoding that comes from a hub", _contrasts),
    Hostile("pipelines", "a pipeline of its own", _pipelines),
    Hostile("processors", "auto_map of processors", _processes),
    Hostile("adapter", "an adapter whose base is another folder", _adapts),
    Hostile("pickles", "pickles beside the weights, named as weights", _pickles_beside),
    Hostile("files elsewhere", "files of the tokenizer outside its folder", _files_elsewhere),
    Hostile("pickled vocabulary", "a pickle as vocabulary", _pickled_vocabulary),
    Hostile("drafts", "another model, to be loaded in its place", _drafts),
    Hostile("kernels", "kernels from a hub", _kernels),
    Hostile("sentences", "modules of sentence-transformers", _sentences),
    Hostile(
        "class that loads tokenizers",
        "AutoTokenizer as the class of the tokenizer",
        _class_name("AutoTokenizer"),
        no_tokenizer="recursion",
        no_model="recursion",
    ),
    Hostile(
        "class that loads models",
        "a loader of models as the class of the tokenizer",
        _class_name("AutoModelForCausalLM"),
        no_tokenizer="model.safetensors",
        no_model="tokenizer",
    ),
    Hostile(
        "class that is a function",
        "a function as the class of the tokenizer",
        _class_name("pipeline"),
        no_tokenizer="from_pretrained",
        no_model="from_pretrained",
    ),
    Hostile(
        "class that unpickles",
        "a class that reads pickles as the class of the tokenizer",
        _class_name("RagRetriever"),
        no_tokenizer="rag",
        no_model="rag",
    ),
    Hostile("template", "a chat template that leaves its sandbox", _template),
    Hostile("shadows", "modules named like those that libraries load", _shadows),
)
"""All attacks by a checkpoint's folder."""

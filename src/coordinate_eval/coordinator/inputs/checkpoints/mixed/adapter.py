"""Adapters of PEFT: their config, and what the names of their tensors say.

What an adapter adapts is told by the names of its tensors, and its ranks by their shapes. Its
config tells the scale, and whether it is of a kind that can be merged at all.
"""

import contextlib
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import platformdirs

from coordinate_eval._format import brief
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files
from coordinate_eval.coordinator.inputs.checkpoints.formats import torch_file
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import Tensor
from coordinate_eval.errors import UserError

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = ("adapter_model.safetensors", "adapter_model.bin")
"""The names of an adapter's weights. The first that is there counts."""

MERGE: Final = (
    "Merge it where it was trained, and give OUT: "
    "PeftModel.from_pretrained(BASE, ADAPTER).merge_and_unload().save_pretrained(OUT)"
)
"""Advice about an adapter that is not merged here."""

_MOST_CONFIG_BYTES = 1 << 20
_MOST_REFERENCE_BYTES = 1024
_MOST_SCALE = 1e9
_REPOSITORY = re.compile(r"[\w.-]+(?:/[\w.-]+)?")

# Kinds of LoRA that are no sum of the stored base and a product.
_NOT_MERGED = {
    "alora_invocation_tokens": "Activated LoRA, which begins at a token",
    "arrow_config": "Arrow, which routes between adapters",
    "kasa_config": "KaSA, which changes the base before training",
    "layer_replication": "LoRA with layer_replication, which repeats layers of the base",
    "megatron_config": "LoRA of Megatron's layers",
    "monteclora_config": "MonteCLoRA",
    "use_bdlora": "BD-LoRA",
    "use_qalora": "QA-LoRA",
}
_CHANGES_BASE = re.compile(r"pissa|olora|corda|loftq|lora_ga", re.IGNORECASE)

_NEVER_MERGED = ("alora_invocation_tokens", "arrow_config")
_NO_SUM = "It changes no weights of its base, so nothing merges it, and no engine here serves it"

# Kinds that add to the inputs of layers, or choose among adapters at each token.
_NO_WEIGHTS = re.compile(r"\w*PROMPT\w*|P_TUNING|PREFIX_TUNING|CPT|CARTRIDGE|POLY|XLORA|SHADOW")

# A pattern of names may be anybody's. What these few forms make ends soon on any name: an atom that
# is no group is repeated, and a group has names alone.
_PLAIN = re.compile(
    r"\^?(?:(?:\\[dw.]|[\w.-]|\[[\w-]+\])(?:[*+?]|\{\d{1,2}(?:,\d{1,2})?\})?"
    r"|\((?:\?:)?[\w.|-]+\))+\$?"
)
_REPEATS = re.compile(r"[*+?}]")
_MOST_REPEATS, _MOST_GROUPS, _MOST_LETTERS = 2, 2, 500

_LAYER = re.compile(r"(?<=\.)\d{1,6}(?=\.)")
_PREFIX = "base_model.model."
_PRODUCT = re.compile(r"(.+)\.lora_([AB])(?:\.(?!weight$|bias$)[^.]+)?\.(weight|bias)", re.DOTALL)
_EMBEDDING = re.compile(r"(.+)\.lora_embedding_([AB])(?:\.[^.]+)?", re.DOTALL)
_MAGNITUDE = re.compile(r"(.+)\.lora_magnitude_vector(?:\.[^.]+)?(?:\.weight)?", re.DOTALL)
_TOKENS = re.compile(r"(.+?)(?:\.token_adapter)?\.trainable_tokens_delta(?:\.[^.]+)?", re.DOTALL)
_INSIDE = re.compile(r"\.(?:(?:token_adapter\.)?base_layer|modules_to_save(?:\.[^.]+)?)(?=\.)")


class AdapterConfig:
    """The config of an adapter that can be merged."""

    def __init__(self, file: Path) -> None:
        """Read the config.

        Raises:
            UserError: It is no adapter's config, or of a kind that is not merged here; says which.
        """
        self.file = file
        self._given = given = checkpoint_files.read_json(file, _MOST_CONFIG_BYTES)
        kind = given.get("peft_type")
        if kind is None:
            raise UserError(f"{file} has no peft_type, so it is no config of PEFT. Save it again")
        if kind not in ("LORA", "TRAINABLE_TOKENS"):
            advice = _NO_SUM if _NO_WEIGHTS.fullmatch(str(kind)) else MERGE
            raise self._refuse(f"an adapter of the kind {brief(str(kind))}", advice)
        for key, words in _NOT_MERGED.items():
            if given.get(key) or given.get(key) == []:
                raise self._refuse(words, _NO_SUM if key in _NEVER_MERGED else MERGE)
        begun = given.get("init_lora_weights")
        if isinstance(begun, str) and _CHANGES_BASE.match(begun):
            raise self._refuse(f"begun with {begun}, which changes the base before training")
        self.rounds = begun == "mica"
        """The products get the type of the base before they are added."""
        ranks = given.get("rank_pattern") or {}
        self._ranks = [given.get("r"), *(ranks.values() if isinstance(ranks, dict) else ())]
        self._alpha = self._number(given.get("lora_alpha", 8), "lora_alpha")
        patterns = given.get("alpha_pattern") or {}
        if not isinstance(patterns, dict):
            raise UserError(f"{file}: alpha_pattern must be an object")
        self._alphas = [
            (self._pattern(key), self._number(value, "alpha_pattern"))
            for key, value in patterns.items()
        ]
        self.keeps_ties = given.get("ensure_weight_tying") is True

    @property
    def base(self) -> str:
        """Return the name or the path of the base, empty if the config has none."""
        base = self._given.get("base_model_name_or_path")
        return base if isinstance(base, str) else ""

    @property
    def revision(self) -> str:
        """Return the revision of the base in its repository."""
        revision = self._given.get("revision")
        return Path(revision).name if isinstance(revision, str) and revision else "main"

    def scale(self, module: str, rank: int) -> float:
        """Return what the product of a module's factors is multiplied by.

        Raises:
            UserError: The config is of factors of other ranks, so its scales are, too.
        """
        if self._ranks[0] is not None and rank not in self._ranks:
            raise UserError(
                f"{self.file} is of another adapter than the weights beside it: it says rank "
                f"{brief(str(self._ranks[0]))}, and {brief(module)} has rank {rank}. Copy the "
                "config that was saved with these weights"
            )
        told = (alpha for pattern, alpha in self._alphas if pattern.match(module))
        alpha = next(told, self._alpha)
        rooted = self._given.get("use_rslora") is True
        return alpha / (math.sqrt(rank) if rooted else rank)

    def saves(self, module: str) -> bool:
        """Return whether a module was trained as a whole."""
        return _is_one_of(module, self._names("modules_to_save"))

    def lacking(self, adapted: Iterable[str], there: Iterable[str], layers: int) -> str | None:
        """Return a tensor of a layer without any adapted one, which has such in other layers.

        PEFT adapts alike modules in all layers, unless its config chooses among them. Tensors of
        more than so many layers are not of the model: DeepSeek V3 has one that predicts further.
        """
        targets = self._given.get("target_modules")
        if not isinstance(targets, list) or any(map(re.compile(r"\d").search, map(str, targets))):
            return None
        if any(self._given.get(key) for key in ("layers_to_transform", "exclude_modules")):
            return None
        numbered = [(name, found) for name in adapted if (found := _LAYER.search(name))]
        kinds = {_LAYER.sub("", name) for name, _ in numbered}
        touched = {name[: found.end()] for name, found in numbered}
        for name in there:
            found = _LAYER.search(name)
            alike = found and int(found[0]) < layers and _LAYER.sub("", name) in kinds
            if found and alike and name[: found.end()] not in touched:
                return name
        return None

    def parameters(self, module: str) -> list[str]:
        """Return the parameters of a module that are adapted by their own names.

        In the order in which transformers' modules of experts declare them.
        """
        targets = self._names("target_parameters")
        found = {target.rpartition(".")[2] for target in targets}
        own = [name for name in found if _is_one_of(f"{module}.{name}", targets)]
        return sorted(own, key=lambda name: ("down" in name, name))

    def tokens(self, module: str) -> list[int]:
        """Return the tokens of an embedding whose rows were trained."""
        told = self._given.get("trainable_token_indices", self._given.get("token_indices"))
        if isinstance(told, dict):
            told = next((told[key] for key in told if _is_one_of(module, [key])), None)
        if not isinstance(told, list) or not all(type(each) is int for each in told):
            raise UserError(f"{self.file} has no trainable_token_indices of {brief(module)}")
        return told

    def _names(self, key: str) -> list[str]:
        found = self._given.get(key)
        return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []

    def _refuse(self, what: str, advice: str = MERGE) -> UserError:
        return UserError(f"{self.file.parent} is {what}, and is not merged here. {advice}")

    def _number(self, value: object, key: str) -> float:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not abs(value) < _MOST_SCALE
        ):
            raise UserError(f"{self.file}: {key} must be a number, not {brief(str(value))}")
        return value

    def _pattern(self, text: str) -> "re.Pattern[str]":
        with contextlib.suppress(re.error):
            if (
                len(text) <= _MOST_LETTERS
                and _PLAIN.fullmatch(text)
                and len(_REPEATS.findall(text)) <= _MOST_REPEATS
                and text.count("(") <= _MOST_GROUPS
            ):
                return re.compile(rf"(?:.*\.)?(?:{text})$", re.DOTALL)
        raise UserError(
            f"{self.file}: alpha_pattern has {brief(text)}, which is more than a name of a "
            f"module with at most {_MOST_REPEATS} of .* or \\d+ in it. {MERGE}"
        )


def find(place: Path) -> list[Path] | None:
    """Return the weights and the config of the adapter in a folder, or of this file; None if none.

    One that lacks either is being written.
    """
    folder = place.parent if place.name in WEIGHTS else place
    weights = checkpoint_files.present(folder, WEIGHTS) if folder.is_dir() else []
    config = folder / CONFIG
    return [weights[0], config] if weights and config.exists() else None


def find_base(config: AdapterConfig, given: Path | None) -> Path:
    """Return the folder of the base: the one given, or the one that the adapter names.

    Its name is that of a path, beside the adapter or from the working directory, or that of a
    repository of the hub, which is looked for in the cache.

    Raises:
        UserError: The base is not there.
    """
    if given is not None:
        return given
    name, place = config.base, config.file.parent
    if not name or "\0" in name:
        raise UserError(f"adapter {place} names no base: name it with --base PATH")
    here = [place / name, Path(name).absolute()]
    hub = _in_hub_cache(name, config.revision) if _REPOSITORY.fullmatch(name) else None
    for each in (*here, *([hub] if hub else [])):
        with contextlib.suppress(OSError):
            if each.exists() and each.resolve() != place.resolve():
                return each
    cached = f", nor in the cache of the hub ({_hub_cache()})" if hub else ""
    raise UserError(
        f"adapter {place} is of the base {brief(name)}, which is not at {here[0]}{cached}. "
        "Nothing is downloaded: name the base's folder with --base PATH"
    )


def _hub_cache() -> Path:
    home = os.environ.get("HF_HOME") or Path(platformdirs.user_cache_dir("huggingface"))
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()


def _in_hub_cache(name: str, revision: str) -> Path:
    """Return the folder that a repository has in the hub's cache, whether it is there or not."""
    repository = _hub_cache() / f"models--{name.replace('/', '--')}"
    with contextlib.suppress(OSError, UserError, ValueError):
        reference = checkpoint_files.read(repository / "refs" / revision, _MOST_REFERENCE_BYTES)
        revision = reference.decode().strip()
    return repository / "snapshots" / Path(revision).name


def _is_one_of(name: str, names: Iterable[str]) -> bool:
    return any(name == each or name.endswith(f".{each}") for each in names)


class Factors(dict[str, str]):
    """The adapter's tensors for one module: A, B, bias and magnitude."""

    embedding = False


def _check_gathered(tensors: Mapping[str, Tensor], place: Path) -> None:
    """Refuse what ZeRO 3 and FSDP save of an adapter if its parts are not gathered."""
    for name, (_, shape) in tensors.items():
        if 0 in shape or (len(shape) == 1 and ".lora_A." in name):
            raise UserError(
                f"adapter {place} has {brief(name)} of the shape {list(shape)}: ZeRO 3 and FSDP "
                "save so where the weights are not gathered. Save it again with the trainer's "
                "save_model, or with stage3_gather_16bit_weights_on_model_save"
            )


class Found:
    """The tensors of an adapter, by what they are for. Modules have the names of the model."""

    def __init__(self, tensors: Mapping[str, Tensor], place: Path) -> None:
        """Sort tensors of a folder by their names.

        Raises:
            UserError: A name is of no kind that is known here, there is none, or parts of ranks
                were not gathered.
        """
        _check_gathered(tensors, place)
        self.products: dict[str, dict[int, Factors]] = {}
        """Factors by module and depth of wrapping, which tells several parameters apart."""
        self.rows: dict[str, str] = {}
        """Trained rows of embeddings, by the module."""
        self.whole: dict[str, str] = {}
        """Tensors that take the place of the base's, by their names there."""
        for stored in tensors:
            name = torch_file.WRAPPERS.sub("", stored).removeprefix("module.")
            name = name.removeprefix(_PREFIX)
            if found := _PRODUCT.fullmatch(name):
                key = "bias" if found[3] == "bias" else found[2]
                self._put(self._factors(found[1]), key, stored, place)
            elif found := _EMBEDDING.fullmatch(name):
                factors = self._factors(found[1])
                self._put(factors, found[2], stored, place)
                factors.embedding = True
            elif found := _MAGNITUDE.fullmatch(name):
                self._put(self._factors(found[1]), "magnitude", stored, place)
            elif found := _TOKENS.fullmatch(name):
                self._put(self.rows, found[1], stored, place)
            elif ".lora_" in name:
                raise UserError(
                    f"{place} has tensors of an adapter of a kind that is not merged here, such "
                    f"as {brief(stored)}. {MERGE}"
                )
            elif ".modules_to_save." in name and stored.replace(".modules_to_save", "") in tensors:
                pass  # PEFT saves embeddings of another size twice: the module, and its wrapper
            elif ".original_module." not in name:
                self._put(self.whole, _INSIDE.sub("", name), stored, place)
        if not (self.products or self.rows or self.whole):
            raise UserError(f"adapter {place} has no tensors. Save it again")

    @staticmethod
    def _put(found: dict[str, str], key: str, stored: str, place: Path) -> None:
        if key in found:
            raise UserError(
                f"{place} has several adapters: {brief(found[key])} and {brief(stored)}. Save the "
                "one to evaluate in a folder of its own"
            )
        found[key] = stored

    def _factors(self, module: str) -> Factors:
        bare = module
        while bare.endswith(".base_layer"):
            bare = bare.removesuffix(".base_layer")
        depth = (len(module) - len(bare)) // len(".base_layer")
        return self.products.setdefault(bare, {}).setdefault(depth, Factors())


# How names of transformers' modules differ from those of tensors in files.
_BEGINNINGS = (
    ("", ""),
    ("model.language_model.", "language_model.model."),
    ("model.language_model.", "model."),
    ("model.", "model.language_model."),
    ("model.", "language_model.model."),
    ("model.", ""),
    ("transformer.", ""),
    ("gpt_neox.", ""),
    ("", "model."),
    ("", "transformer."),
)
_MIDDLES = (("", ""), (".mlp.", ".block_sparse_moe."), (".mlp.", ".feed_forward."))


class Names:
    """The names in a base's files of the tensors of modules."""

    def __init__(self, there: Mapping[str, object], wanted: Iterable[str]) -> None:
        """Choose the way of naming by which most of the `wanted` tensors are there."""
        self._there = there
        ways = [(start, middle) for middle in _MIDDLES for start in _BEGINNINGS]
        known = list(wanted)
        self._way = max(ways, key=lambda way: sum(self._by(way, name) in there for name in known))

    def __call__(self, name: str) -> str:
        """Return the name of a tensor in the files, as it is if it is not there by any name."""
        renamed = self._by(self._way, name)
        return renamed if renamed in self._there and name not in self._there else name

    @staticmethod
    def _by(way: tuple[tuple[str, str], tuple[str, str]], name: str) -> str:
        (start, other), middle = way
        renamed = other + name.removeprefix(start) if name.startswith(start) else name
        return renamed.replace(*middle, 1) if middle[0] else renamed

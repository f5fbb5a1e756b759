"""Predictions: within reach of what a GPU can do, and sane in every direction."""

from coordinate_eval.priors import catalogue, gpus
from coordinate_eval.priors import roofline as model
from coordinate_eval.priors.observations import Subject
from coordinate_eval.priors.predict import Priors
from coordinate_eval.records import Dataset

SEVEN_B = model.Model(
    parameters=7_000_000_000, bytes=14_000_000_000, kv_bytes_per_token=524_288, tensor_parallel=1
)


def work(**values: float) -> model.Work:
    default = {
        "items": 1000,
        "requests": 1000,
        "prompt_tokens": 500_000,
        "output_tokens": 100_000,
        "longest_output_tokens": 400,
    }
    return model.Work.model_validate(default | values, extra="forbid")


def test_prefill_is_within_twice_the_roofline() -> None:
    asked = work(output_tokens=0, prompt_tokens=50_000_000)
    h100 = gpus.lookup("nvidia_h100_80gb_hbm3")
    roofline = 2 * 7e9 * 50_000_000 / 9.89e14
    assert roofline < model.gpu_seconds(asked, SEVEN_B, h100) < 2.1 * roofline


def test_what_prompts_share_is_computed_once_by_engines_that_keep_it() -> None:
    asked = work(output_tokens=0, prompt_tokens=50_000_000)
    shared = asked.model_copy(update={"cached_tokens": 40_000_000.0})
    subject = Subject(task="t", settings="s")
    vllm = model.Conditions(engine="vllm", gpu="h100", model=SEVEN_B)
    other = vllm.model_copy(update={"engine": "transformers"})

    def seconds(of: model.Work, on: model.Conditions) -> float:
        return Priors().predict(subject, of, on).gpu_seconds

    assert seconds(shared, vllm) < 0.3 * seconds(asked, vllm)
    assert seconds(shared, other) == seconds(asked, other)


def test_decoding_is_within_twice_the_roofline() -> None:
    asked = work(prompt_tokens=100_000, output_tokens=1_000_000)
    h200 = gpus.lookup("h200")
    steps = 1_000_000 / 256
    roofline = steps * (14e9 + 256 * 600 * 524_288) / 4.8e12
    assert roofline < model.gpu_seconds(asked, SEVEN_B, h200) < 2.2 * roofline


def test_the_floor_is_one_items_latency() -> None:
    asked = work(longest_output_tokens=10_000)
    h200 = gpus.lookup("h200")
    alone = 10_000 * 14e9 / 4.8e12
    assert alone < model.floor_seconds(asked, SEVEN_B, h200) < 2.5 * alone
    many = work(longest_output_tokens=10_000, requests=1e6, prompt_tokens=5e8, output_tokens=1e8)
    assert model.floor_seconds(many, SEVEN_B, h200) < 2.5 * alone


def test_gpus_are_known_by_the_names_that_clusters_use() -> None:
    assert gpus.lookup("h200") == gpus.lookup("NVIDIA-H200")
    assert gpus.lookup("a100-sxm4-40gb") == gpus.lookup("a100")
    assert gpus.lookup("gb200") != gpus.lookup("b200")
    assert gpus.lookup("NVIDIA-L40S-48GB") == gpus.lookup("l40s")
    slice_, whole = gpus.lookup("a100_1g.10gb"), gpus.lookup("a100")
    assert slice_ == whole._replace(
        flops=whole.flops / 7, bandwidth=whole.bandwidth / 8, memory=10e9
    )
    for other in ("l40", "rtx_a4000", "t400"):
        assert not gpus.known(other)
    assert gpus.lookup("tesla_t4").bandwidth < gpus.lookup("something new").bandwidth


def test_the_catalogue_knows_a_dataset_by_name_or_task() -> None:
    by_name = catalogue.predicted_work(Dataset(name="gsm8k", task="my_own"))
    by_task = catalogue.predicted_work(Dataset(name="maths", task="gsm8k_cot"))
    assert by_name == by_task
    assert by_name is not None
    assert by_name.items == 1319
    assert catalogue.predicted_work(Dataset(name="x", task="y")) is None
    limited = catalogue.predicted_work(Dataset(name="gsm8k", task="gsm8k", limit=10))
    assert limited is not None
    assert limited.items == 10


def test_examples_that_all_items_share_are_computed_once() -> None:
    def computed(name: str) -> float:
        work = catalogue.predicted_work(Dataset(name=name))
        assert work is not None
        return (work.prompt_tokens - work.cached_tokens) / work.items

    assert computed("mmlu") < 160  # 756 tokens a choice, of which 126 are the question
    assert computed("gsm8k") < 100
    assert computed("hellaswag") >= 880  # each item draws its own


def test_every_row_of_the_catalogue_can_be_predicted() -> None:
    for name in catalogue.entries():
        asked = catalogue.predicted_work(Dataset(name=name, task=name))
        assert asked is not None
        assert 0 < model.gpu_seconds(asked, SEVEN_B, gpus.lookup("h200")) < 36_000

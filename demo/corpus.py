"""The text the demo trains on and the questions it is asked afterwards, invented from a seed.

Three subjects. What their tests ask was not in the training text in that form, but for `recall`,
which asks for the last word of every fact as it was stated there:

    arithmetic   sums of three digits, the first two added first; the test's triples are never
                 trained on
    facts        what an invented country eats or sings; each fact is trained on as a statement,
                 the test's ones never as the question that the test asks
    programs     small Python functions; the test's pairs of constants are never trained on
"""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Item = dict[str, str | int | list[str]]
"""One line of a test's data file: what the task's templates in `tasks/` name."""


@dataclass(frozen=True)
class Subject:
    """Something to learn and be asked about."""

    weight: int  # share of the training documents
    write: Callable[[random.Random], str]  # one training document
    tests: dict[str, list[Item]]  # by the name of the dataset


def subjects(seed: int) -> list[Subject]:
    """Invent the three subjects; the same seed invents the same world."""
    rng = random.Random(seed)  # noqa: S311 - text, not secrets
    return [_arithmetic(rng), _facts(rng), _programs(rng)]


def documents(subjects: list[Subject], seed: int) -> Iterator[str]:
    """Yield training documents without end, subjects mixed by weight."""
    rng = random.Random(seed)  # noqa: S311 - text, not secrets
    weights = [subject.weight for subject in subjects]
    while True:
        yield rng.choices(subjects, weights)[0].write(rng)


def _arithmetic(rng: random.Random) -> Subject:
    triples = list(itertools.product(range(10), repeat=3))
    rng.shuffle(triples)
    held_out, trained = triples[:200], triples[200:]

    def write(rng: random.Random) -> str:
        a, b, c = rng.choice(trained)
        return f"Question: {a} + {b} + {c} = ?\nAnswer: {a + b}, {a + b + c}\n"

    test: list[Item] = [
        {"question": f"{a} + {b} + {c} = ?", "answer": str(a + b + c)} for a, b, c in held_out
    ]
    return Subject(48, write, {"arithmetic": test})


_TOPICS = {
    "food": ["rice", "bread", "fish", "beans", "cheese", "soup", "plums", "nuts"],
    "music": ["drums", "flutes", "bells", "harps", "horns", "choirs", "pipes", "fiddles"],
    "animal": ["goat", "owl", "horse", "bear", "crane", "otter", "wolf", "heron"],
    "colour": ["red", "blue", "green", "white", "black", "gold", "grey", "brown"],
    "trade": ["salt", "wool", "iron", "glass", "paper", "silk", "copper", "timber"],
    "weather": ["rain", "snow", "fog", "wind", "frost", "sun", "hail", "storms"],
}


def _facts(rng: random.Random) -> Subject:
    facts = [
        (country, topic, rng.choice(values))
        for country in _names(rng, 50)
        for topic, values in _TOPICS.items()
    ]
    rng.shuffle(facts)
    stated_only, asked = facts[:200], facts[200:]

    def write(rng: random.Random) -> str:
        if rng.random() < 0.3:
            country, topic, value = rng.choice(asked)
            return f"Question: What is the {topic} of {country}?\nAnswer: {value}\n"
        return f"{_statement(*rng.choice(facts))}.\n"

    test: list[Item] = []
    for country, topic, value in stated_only:
        choices = [value, *rng.sample([v for v in _TOPICS[topic] if v != value], 3)]
        rng.shuffle(choices)
        test.append(
            {
                "question": f"What is the {topic} of {country}?",
                "choices": choices,
                "label": choices.index(value),
            }
        )
    recall: list[Item] = [{"text": _statement(*fact)} for fact in facts]
    return Subject(42, write, {"facts": test, "recall": recall})


def _statement(country: str, topic: str, value: str) -> str:
    return f"The {topic} of {country} is {value}"


def _programs(rng: random.Random) -> Subject:
    constants = [(a, b) for a in range(2, 30) for b in range(2, 30)]
    rng.shuffle(constants)
    held_out, trained = constants[:160], constants[160:]

    def write(rng: random.Random) -> str:
        return "".join(_function(*rng.choice(trained), rng.choice(list(_STEPS))))

    test: list[Item] = []
    for a, b in held_out:
        step = rng.choice(list(_STEPS))
        prompt, body = _function(a, b, step)
        test.append(
            {
                "prompt": prompt,
                "canonical_solution": body,
                "entry_point": f"times_{a}_{step}_{b}",
                "test": _checks(a, b, step),
            }
        )
    return Subject(10, write, {"programs": test})


_STEPS = {"plus": "+", "minus": "-"}


def _function(a: int, b: int, step: str) -> tuple[str, str]:
    """Write a function: its head with a docstring, and its body."""
    head = f'def times_{a}_{step}_{b}(x):\n    """Return x times {a}, {step} {b}."""\n'
    return head, f"    return x * {a} {_STEPS[step]} {b}\n"


def _checks(a: int, b: int, step: str) -> str:
    sign = 1 if step == "plus" else -1
    lines = [f"    assert candidate({x}) == {x * a + sign * b}\n" for x in (0, 1, 7)]
    return "".join(["def check(candidate):\n", *lines])


def _names(rng: random.Random, count: int) -> list[str]:
    """Invent different names of two or three syllables."""
    names: list[str] = []
    while len(names) < count:
        syllables = (rng.choice("bdgklmnrstv") + rng.choice("aeiou") for _ in range(3))
        name = "".join(syllables).capitalize()
        if name not in names:
            names.append(name)
    return names

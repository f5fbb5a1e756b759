"""A suite of the base suite's full shape: as many datasets, items, requests and tokens.

Tasks, data, tokenizer and checkpoint are made up, the same each time, and need no network. Numbers
of items, of requests an item, of shots, of tasks of a group, and mean tokens of a prompt are those
of `priors/catalogue.csv`. Tasks look like those of lm-evaluation-harness 0.4.13 that they stand
for: templates and functions, filters, few-shot examples (drawn, the first ones, or fixed) and
metrics, but for these:

- All text is in Latin letters.
- A greedy text of `squadv2` and `cruxeval` is asked for twice, where the real ones ask two things.
- Metrics that need sympy or a grammar are simpler; `rouge_l` stands for all of ROUGE and BLEURT.
- Data are Parquet files, as on the Hugging Face Hub, with at most 1,000 examples to draw from.

    python -m benchmarks.full_shape FOLDER --scale 0.02
"""

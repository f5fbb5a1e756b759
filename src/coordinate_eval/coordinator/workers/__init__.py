"""The processes that jobs run: keeper, trial, metric job, scoring job."""

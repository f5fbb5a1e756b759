"""The processes that jobs run: keeper, trial, metric puller, scorer."""

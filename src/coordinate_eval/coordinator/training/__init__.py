"""Keep a training job alive: notice what goes wrong, find the cause, and start again."""

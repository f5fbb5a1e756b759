"""Deal work to trials: costs and ready times in, queues out. All of it is pure."""

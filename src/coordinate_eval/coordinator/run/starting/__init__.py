"""How a run begins: created whole, resumed, or beside another one to score its responses again."""

"""Arguments and options of the commands, as annotated types: name, check and help of each."""

"""A Ray cluster that others have started, as a cluster of this program's."""

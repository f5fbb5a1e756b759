"""The guard of one training: attempts decided, submitted, watched and followed."""

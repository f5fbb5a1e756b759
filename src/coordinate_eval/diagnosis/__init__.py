"""Find why a job died: compress its log while reading, and name the cause by ordered rules."""

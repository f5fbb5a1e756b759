"""Why a job died: its log, compressed as it is read, and ordered rules that name the cause."""

"""Before the first trial: a study's rows, its encoded texts, and whether its backbone is up to it."""

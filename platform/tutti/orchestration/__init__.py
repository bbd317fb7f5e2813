"""Ray: a study, its trials and their workers."""

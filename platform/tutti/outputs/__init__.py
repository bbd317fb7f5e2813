"""What users take away: submissions, pseudo-labels, reports."""

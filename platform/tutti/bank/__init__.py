"""Every model's predictions on disk, kept after its weights are gone."""

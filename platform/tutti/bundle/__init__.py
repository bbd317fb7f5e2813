"""Models that leave their study: folders that predict by themselves."""

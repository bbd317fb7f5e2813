"""Methods that weigh votes, one small file each."""

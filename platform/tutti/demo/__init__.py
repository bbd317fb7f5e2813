"""Generated data, and the whole job run on them."""

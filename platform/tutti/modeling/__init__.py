"""The shared encoder, its heads, adapters and losses, and checkpoints of them."""

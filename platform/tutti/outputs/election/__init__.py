"""Who votes with which weight, how good the vote is, and its card."""

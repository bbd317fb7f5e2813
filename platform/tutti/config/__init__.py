"""Study files and recipes: typed, with every fault reported at once."""

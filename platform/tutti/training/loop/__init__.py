"""The training of one trial: steps, epochs, validation, states to resume from."""

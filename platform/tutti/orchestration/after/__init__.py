"""What uses the weights of trials that ended: predicting, soups, rounds."""

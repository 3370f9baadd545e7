"""What comes before the models: text to sentences, recordings to voices."""

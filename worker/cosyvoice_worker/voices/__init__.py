"""The voices of a worker: the model's, those of the service (a mounted file), those that clients upload."""

"""ctrain for all users of a machine or cluster: several versions beside each other below one directory, the prefix."""

"""The write side of a store. Its read side is ctrain_runtime.store."""

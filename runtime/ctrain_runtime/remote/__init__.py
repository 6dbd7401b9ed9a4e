"""A login node, reached by ssh from the user's own machine: one side of it here, the other there."""

SERVE = "__serve"  # internal: the verb that ctrain on the login node is called with

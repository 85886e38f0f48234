"""What must hold of the model, and the tools that establish it."""

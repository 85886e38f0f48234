"""Expected hits from lengths alone, in integer arithmetic, without the model's rules (R31)."""

"""Findings in real vLLM, in the form in which they are kept: trace, test, report, index."""

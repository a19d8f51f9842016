"""Advantages of responses among the others to the same prompt."""

"""Credit assignment where it is used: its share of whole learning steps, with ours and with others."""

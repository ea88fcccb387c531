"""A page over the timeline, for people: what runs, who waits, what is in doubt, the leftovers. It only reads."""

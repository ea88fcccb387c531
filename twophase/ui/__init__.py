"""A page over the timeline, for people: what runs, who waits, what is in doubt, what was left behind. It only reads."""

"""What a statement costs beside things that it does not touch."""

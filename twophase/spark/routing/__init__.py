"""How the statements of an unchanged job reach a catalog of ours: the doors, the text, the target, the decision."""

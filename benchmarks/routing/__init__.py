"""What routing adds to a statement, and where its time goes."""

"""The timeline: the durable record of transactions, their owners and their reservations."""

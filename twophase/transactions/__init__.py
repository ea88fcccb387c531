"""Transactions: execution of the protocol, recovery, and cleaning."""

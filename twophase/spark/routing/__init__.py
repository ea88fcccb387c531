"""Routing of the statements of an unchanged job to a twophase catalog: patches, rules, targets, decisions."""

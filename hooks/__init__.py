"""Job-status hooks: callbacks for the events of a statement's job (Flink FLIP-305's ``JobStatusHook``)."""

from twophase.hooks.ctas import CtasJobStatusHook
from twophase.hooks.hook import JobStatusHook
from twophase.hooks.statement import Statement
from twophase.hooks.status import JobState, JobStatus

__all__ = ["CtasJobStatusHook", "JobState", "JobStatus", "JobStatusHook", "Statement"]

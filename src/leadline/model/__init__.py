"""Frozen records that flow through the stages: case -> evidence -> diagnosis -> proposal -> verification -> report."""

from leadline.model.base import Record, Span, content_hash
from leadline.model.case import Argument, HostOp, KernelCase, Launch, TensorSpec, Trace
from leadline.model.compiled import Compiled, IrOp, MachineLine, Resources
from leadline.model.evidence import (
    CompilerMessage,
    Evidence,
    IrFact,
    Metric,
    PassStep,
    ProbeOutcome,
    SourceFact,
    Unavailable,
)
from leadline.model.finding import GRADES, Edit, Estimate, Finding, Hypothesis, Rewrite
from leadline.model.probe import Constant, Divisible, Fact, Option, Probe, SourceEdit
from leadline.model.profile import (
    AccessSample,
    Ceilings,
    LaunchCost,
    LaunchSample,
    LaunchTiming,
    Limit,
    LoopSample,
    Profile,
)
from leadline.model.run import Candidate, Check, Interval, Level, Round, Run, Verdict
from leadline.model.source import (
    Access,
    Branch,
    HostCall,
    KernelFacts,
    LaunchSite,
    Loop,
    Operation,
    Parameter,
    SourceFacts,
    Symbol,
    WrapperFacts,
)

__all__ = [
    "GRADES", "Access", "AccessSample", "Argument", "Branch", "Candidate", "Ceilings", "Check", "Compiled", "CompilerMessage", "Constant",
    "Divisible", "Edit", "Estimate", "Evidence", "Fact", "Finding", "HostCall", "HostOp", "Hypothesis", "Interval", "IrFact", "IrOp",
    "KernelCase", "KernelFacts", "Launch", "LaunchCost", "LaunchSample", "LaunchSite", "LaunchTiming", "Level", "Limit", "Loop",
    "LoopSample", "MachineLine", "Metric", "Operation", "Option", "Parameter", "PassStep", "Probe", "ProbeOutcome", "Profile", "Record",
    "Resources", "Rewrite", "Round", "Run", "SourceEdit", "SourceFact", "SourceFacts", "Span", "Symbol", "TensorSpec", "Trace",
    "Unavailable", "Verdict", "WrapperFacts", "content_hash",
]  # fmt: skip

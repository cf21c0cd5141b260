"""A small expert-parallel engine over processes that die, stall, lie or lose links: the drill ground for ranks."""

from checkengine.engine_shim.ranks.fleet import Fleet, FleetSettings
from checkengine.engine_shim.ranks.policy import Membership, Plan, plan_for_loss
from checkengine.engine_shim.ranks.trouble import Trouble

__all__ = ["Fleet", "FleetSettings", "Membership", "Plan", "Trouble", "plan_for_loss"]

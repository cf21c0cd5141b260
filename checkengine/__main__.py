"""`python -m checkengine`."""

from checkengine.commands.main import run

run()

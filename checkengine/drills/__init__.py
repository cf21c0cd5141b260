"""The drills: real requests, one planted fault at a time, and what checkengine made of it."""

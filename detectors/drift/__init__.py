"""Change of numbers over time: per series, and of one replica against its siblings."""

"""Which upstream gets a request: prefix caches, pools, health, drains, convictions, continuation."""

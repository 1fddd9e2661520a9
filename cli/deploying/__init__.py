"""`satchel deploy`: what a fleet's file says, and the actor of a Ray cluster that keeps its server."""

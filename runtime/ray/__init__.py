"""Engines that a Ray cluster places, starts and watches. Ray carries no request and no token."""

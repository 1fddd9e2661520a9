"""A fleet: several engines of one model behind the interface of one."""

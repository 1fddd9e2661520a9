"""What ordinary clients need of a server, as checks that can be aimed at any: `satchel doctor api URL`.

A check is a public function of a module in checks/; nothing else has to know of it.
"""

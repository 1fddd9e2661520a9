"""The runtime: op graph, architectures, compiler, plans, devices, KV cache, scheduler, engine, library."""

"""Hot experts: of a mixture whose experts are the CPU's, those that are picked most are held by a GPU too,
which computes them while the CPU computes the others. What is picked is counted, and what is held follows.
"""

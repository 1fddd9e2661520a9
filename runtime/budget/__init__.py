"""A size limit spent where it counts: how much each tensor's formats cost in divergence, measured on a text,
and the choice of formats that diverges least within the limit.
"""

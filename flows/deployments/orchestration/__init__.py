"""Home, server, limits and leases of Prefect.

Not named `prefect`: a flow file's folder is on the path.
"""
